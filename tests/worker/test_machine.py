"""The machine's name."""

from worker.machine import chip, describe, linux_chip


def test_the_chip_is_the_first_model_name() -> None:
    assert linux_chip("processor\t: 0\nmodel name\t: A Chip @ 2 GHz\nmodel name\t: other\n") == "A Chip @ 2 GHz"
    assert linux_chip("processor\t: 0\n") == ""


def test_a_machine_is_told_by_its_chip_and_device() -> None:
    told = describe("a device", {})
    assert chip() in told
    assert "a device" in told


def test_what_changes_the_speed_changes_the_name() -> None:
    plain = describe("cpu", {})
    fast = describe("cpu", {"LD_PRELOAD": "/x/libopenblas.so"})
    one = describe("cpu", {"LD_PRELOAD": "/x/libopenblas.so", "OPENBLAS_NUM_THREADS": "1"})
    assert len({plain, fast, one}) == 3
