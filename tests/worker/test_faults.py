"""Faults for tests cannot be set off by accident."""

from worker.faults import Faults

KEY = bytes(range(16))
ON = {"FLEET_TEST_FAULTS": "1", "FLEET_TEST_POISON_KEYS": KEY.hex()}


def test_without_the_switch_nothing_is_poison() -> None:
    assert not Faults.from_environment({**ON, "FLEET_TEST_FAULTS": "0"}).strikes([KEY])
    assert not Faults.from_environment({}).strikes([KEY])


def test_a_poison_row_strikes_in_any_batch() -> None:
    faults = Faults.from_environment(ON)
    assert faults.strikes([b"other", KEY])
    assert not faults.strikes([b"other"])


def test_a_poison_row_may_need_company() -> None:
    faults = Faults.from_environment({**ON, "FLEET_TEST_POISON_ABOVE": "2"})
    assert not faults.strikes([KEY, b"b"])
    assert faults.strikes([KEY, b"b", b"c"])
