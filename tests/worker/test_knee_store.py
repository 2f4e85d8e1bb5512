"""Curves on disk: kept for what they were measured on, and worth no error."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from worker.knee import Curve, Prefill, PrefillSample, Sample
from worker.knee_store import KneeStore, Subject

SUBJECT = Subject(machine="a Mac, 8 cores", model_hash="ab" * 32, mlx="0.32.4")
CURVE = Curve(
    bucket_tokens=256,
    samples=(Sample(rows=1, tps=25.0, peak_bytes=100), Sample(rows=8, tps=130.0)),
    ended=True,
    prefill=(PrefillSample(setting=Prefill(rows=1, tokens=128), tps=500.0),),
    scale=0.9,
)
LONG = replace(CURVE, bucket_tokens=1024)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "knees.json"


def test_what_was_saved_is_loaded_again(path: Path) -> None:
    KneeStore(path, SUBJECT).save({256: CURVE})
    assert KneeStore(path, SUBJECT).load() == {256: CURVE}


def test_buckets_are_kept_beside_each_other(path: Path) -> None:
    store = KneeStore(path, SUBJECT)
    store.save({256: CURVE})
    store.save({1024: LONG})
    store.save({256: replace(CURVE, scale=0.5)})
    assert store.load() == {256: replace(CURVE, scale=0.5), 1024: LONG}


@pytest.mark.parametrize("change", [{"machine": "another"}, {"model_hash": "cd" * 32}, {"mlx": "0.33.0"}])
def test_what_was_measured_on_something_else_is_not_used(path: Path, change: dict[str, str]) -> None:
    KneeStore(path, SUBJECT).save({256: CURVE})
    assert KneeStore(path, replace(SUBJECT, **change)).load() == {}


def test_a_newer_mlx_replaces_what_the_older_measured_and_leaves_other_models(path: Path) -> None:
    other = replace(SUBJECT, model_hash="cd" * 32)
    KneeStore(path, other).save({256: CURVE})
    KneeStore(path, SUBJECT).save({256: CURVE})
    KneeStore(path, replace(SUBJECT, mlx="0.33.0")).save({1024: LONG})
    assert KneeStore(path, SUBJECT).load() == {}
    assert KneeStore(path, replace(SUBJECT, mlx="0.33.0")).load() == {1024: LONG}
    assert KneeStore(path, other).load() == {256: CURVE}


def test_forgetting_takes_one_models_curves(path: Path) -> None:
    other = replace(SUBJECT, model_hash="cd" * 32)
    KneeStore(path, SUBJECT).save({256: CURVE})
    KneeStore(path, other).save({256: CURVE})
    KneeStore(path, SUBJECT).forget()
    assert KneeStore(path, SUBJECT).load() == {}
    assert KneeStore(path, other).load() == {256: CURVE}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 0, "entries": {}}', '{"format": 1, "entries": []}', "\0"])
def test_a_broken_file_is_an_empty_store_that_can_be_written(path: Path, text: str) -> None:
    path.parent.mkdir()
    path.write_text(text)
    store = KneeStore(path, SUBJECT)
    assert store.load() == {}
    store.save({256: CURVE})
    assert store.load() == {256: CURVE}


@pytest.mark.parametrize(
    "damage",
    [
        {"samples": None},
        {"samples": [{"rows": 1}]},
        {"samples": [{"rows": 0, "tps": 1.0, "peak_bytes": 0}]},
        {"samples": [{"rows": "a", "tps": 1.0, "peak_bytes": 0}]},
        {"samples": [{"rows": 8, "tps": 1.0}, {"rows": 1, "tps": 1.0}]},
        {"prefill": [{"setting": {"rows": 1}, "tps": 1.0}]},
        {"prefill": [{"setting": {"rows": 0, "tokens": 1}, "tps": 1.0}]},
        {"scale": 0},
        {"more": 1},
    ],
    ids=str,
)
def test_a_damaged_curve_is_left_out_and_the_sound_ones_are_used(path: Path, damage: dict[str, Any]) -> None:
    KneeStore(path, SUBJECT).save({256: CURVE, 1024: LONG})
    stored = json.loads(path.read_text())
    (entry,) = stored["entries"].values()
    entry["curves"][0].update(damage)
    path.write_text(json.dumps(stored))
    assert KneeStore(path, SUBJECT).load() == {1024: LONG}


def test_a_store_without_a_place_keeps_nothing() -> None:
    store = KneeStore(None, SUBJECT)
    store.save({256: CURVE})
    store.forget()
    assert store.load() == {}


def test_a_place_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = KneeStore(tmp_path / "file" / "knees.json", SUBJECT)
    store.save({256: CURVE})
    assert store.load() == {}


def test_no_draft_is_left_behind(path: Path) -> None:
    KneeStore(path, SUBJECT).save({256: CURVE})
    assert [found.name for found in path.parent.iterdir()] == ["knees.json"]
