"""The machine's name."""

from fleet import __version__
from worker.machine import ask, chip, describe, host, linux_chip, platform_uuid, read, serial


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


def test_a_host_is_what_people_read_and_a_given_name_wins() -> None:
    told = host()
    assert told.name
    assert told.chip == chip()
    assert told.memory_bytes > 100 << 20
    assert told.version == __version__
    assert host("studio").name == "studio"


def test_what_the_system_does_not_tell_is_empty(tmp_path) -> None:
    assert ask(["/nowhere/scutil"]) == ""
    assert ask(["false"]) == ""
    assert ask(["echo", " Anna's Air "]) == "Anna's Air"
    assert read(tmp_path / "nothing") == ""


def test_a_mac_is_told_from_others_by_its_hardware() -> None:
    told = '  |   "IOPlatformSerialNumber" = "X"\n      "IOPlatformUUID" = "01234567-89AB-CDEF-0123-456789ABCDEF"\n'
    assert platform_uuid(told) == "01234567-89AB-CDEF-0123-456789ABCDEF"
    assert platform_uuid("") == ""
    assert serial() == serial()
