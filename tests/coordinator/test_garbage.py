"""The collector looks seldom while a coordinator works."""

import argparse
import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.commands import up
from coordinator.control import backlog_run
from coordinator.control.garbage import NEW_OBJECTS, collect_seldom
from fleet.config import StateDir
from fleet.errors import FleetError


@pytest.fixture(autouse=True)
def threshold() -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    yield before
    gc.set_threshold(*before)


def test_only_the_first_look_is_put_off(threshold: tuple[int, int, int]) -> None:
    collect_seldom()
    assert gc.get_threshold() == (NEW_OBJECTS, *threshold[1:])


def test_a_run_and_a_fleet_put_it_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = argparse.Namespace(json=True, inputs=["gone"], output="-", task="generate", state_dir=tmp_path, model="m")
    with pytest.raises(FleetError):
        backlog_run.run_backlog(asked)
    assert gc.get_threshold()[0] == NEW_OBJECTS
    collected = []
    monkeypatch.setattr("coordinator.control.garbage.collect_seldom", lambda: collected.append(True))
    with StateLocked(tmp_path), pytest.raises(FleetError):
        up.run(argparse.Namespace(), StateDir(tmp_path), up.Teller(as_json=True))
    assert collected


class StateLocked:
    """Another process works on the folder, so that a fleet does not come up."""

    def __init__(self, folder: Path) -> None:
        from coordinator.ledger.lock import StateLock

        self._lock = StateLock.take(StateDir(folder))

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        self._lock.release()
