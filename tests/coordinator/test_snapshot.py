"""The snapshot of a fleet through JSON and back."""

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from coordinator.screens.snapshot import (
    SCHEMA,
    Event,
    FleetSnapshot,
    JobLine,
    MacLine,
    MacState,
    snapshot_from_json,
)
from fleet.errors import DecodeError

SNAPSHOT = FleetSnapshot(
    version="1.2",
    coordinator="studio",
    addresses=("10.0.0.2:7433",),
    started=5,  # whole seconds come back from JSON as integers
    now=10.5,
    jobs=(
        JobLine(id=1, task="generate", model="m", state="running", eta_s=(10.0, 20.5), intake_complete=True),
        JobLine(id=2, task="classify", model="m", state="queued"),
    ),
    macs=(MacLine(id="w1", name="air", state=MacState.MEASURING, share=0.25),),
    events=(Event(at=9.0, text="air joined"),),
)


def plain(**changes: Any) -> dict[str, Any]:
    """SNAPSHOT as JSON gives it, with changes."""
    loaded: dict[str, Any] = json.loads(json.dumps(asdict(SNAPSHOT)))
    return {**loaded, **changes}


def test_a_snapshot_comes_back_from_json_as_it_was() -> None:
    assert snapshot_from_json(plain()) == SNAPSHOT


def test_fields_of_a_newer_coordinator_are_passed_over_and_optional_ones_may_lack() -> None:
    given = plain(moon="full")
    del given["events"]
    given["macs"][0]["colour"] = "grey"
    assert snapshot_from_json(given) == replace(SNAPSHOT, events=())


@pytest.mark.parametrize("given", [None, [], "x", {}, plain(schema=SCHEMA + 1), plain(schema="1")])
def test_another_schema_is_refused_with_what_to_do(given: object) -> None:
    with pytest.raises(DecodeError, match="bring both to one version"):
        snapshot_from_json(given)


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"now": "soon"}, "status.now"),
        ({"now": None}, "status.now"),
        ({"now": True}, "status.now"),
        ({"version": 1}, "status.version"),
        ({"addresses": "10.0.0.2"}, "status.addresses"),
        ({"addresses": [1]}, "status.addresses"),
        ({"macs": [{"id": "w", "name": "air", "state": "dancing"}]}, "status.macs.state"),
        ({"macs": [{"id": "w", "state": "idle"}]}, "status.macs.name"),
        ({"macs": [{"id": "w", "name": "air", "state": "idle", "cap": 1.5}]}, "status.macs.cap"),
        ({"macs": ["air"]}, "status.macs"),
        ({"jobs": [{"id": 1, "task": "t", "model": "m", "state": "s", "eta_s": [1]}]}, "status.jobs.eta_s"),
        ({"jobs": [{"id": True, "task": "t", "model": "m", "state": "s"}]}, "status.jobs.id"),
    ],
)
def test_what_is_no_snapshot_is_refused_and_the_field_is_named(changes: dict[str, Any], where: str) -> None:
    with pytest.raises(DecodeError, match=rf"coordinator's {where} "):
        snapshot_from_json(plain(**changes))
