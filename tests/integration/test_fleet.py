"""Several workers and several jobs: real `fleet up`, real `fleet join`, fake engines, all on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fake_engine import answer
from tests.models import tiny_llama
from tests.runner import wait_until
from tests.yard import Yard

ROWS = 120
#: Enough that a job still runs when the next command has started.
MANY = 600
#: Of a job that is cancelled before its end, which would come after a minute; a command may take ten seconds to start.
ENDLESS = 4 * MANY
SHORT = ("--max-tokens", "20")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("models")
    return tiny_llama(folder / "one"), tiny_llama(folder / "two", seed=1)


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    """Two workers whose engines take 0.4 s for a batch of eight rows."""
    with Yard(tmp_path_factory.mktemp("yard"), FAKE_STEP_S="0.02") as yard:
        yard.up()
        for name in ("air", "mini"):
            yard.join(name)
        for name in ("air", "mini"):
            yard.await_event(f"{name} is here", within_s=60)
        yield yard


def whole(yard: Yard, job: int, rows: int = ROWS) -> bool:
    """Every row has the fake engine's answer, and no two the same."""
    texts = yard.answers(job)
    return len({text for text in texts if text and text.startswith(answer(b""))}) == rows == len(texts)


def test_a_job_runs_on_all_workers_and_ends_whole(yard: Yard, models: tuple[Path, Path]) -> None:
    job = yard.submit("all", models[0], ROWS, *SHORT)
    yard.await_state(job, "finished")
    assert whole(yard, job)
    assert all(yard.mac(name)["rows_done"] >= 8 for name in ("air", "mini"))
    line = yard.job(job)
    assert (line["done"], line["failed"], line["intake_complete"]) == (ROWS, 0, True)


def test_jobs_of_two_models_end_whole_and_no_model_is_loaded_for_every_shard(
    yard: Yard, models: tuple[Path, Path]
) -> None:
    before = engines(yard)
    jobs = [yard.submit(f"side{n}", models[n], ROWS, *SHORT) for n in range(2)]
    for job in jobs:
        yard.await_state(job, "finished")
        assert whole(yard, job)
    assert {mac["model"] for mac in yard.snapshot()["macs"]} <= set(map(str, models))
    assert 1 <= engines(yard) - before <= 4, (
        "each worker changes its model once, or twice when it began with the second"
    )


def engines(yard: Yard) -> int:
    """Engines started by all workers so far."""
    logs = [path.read_text() for path in yard.folder.glob("*/worker/log/worker.log")]
    return sum(text.count(" started") for text in logs)


def test_a_job_of_higher_priority_goes_first(yard: Yard, models: tuple[Path, Path]) -> None:
    low = yard.submit("low", models[0], ENDLESS, *SHORT)
    yard.await_done(low, 8)
    high = yard.submit("high", models[0], ROWS, *SHORT, "--priority", "5")
    yard.await_state(high, "finished")
    assert yard.fleet.counts(low).open > 0
    assert (whole(yard, high), yard.job(high)["priority"]) == (True, 5)
    yard.fleet.run("cancel", str(low)).expect(0)
    yard.await_state(low, "cancelled")


def test_one_of_two_jobs_is_cancelled_and_the_rows_both_need_are_computed_once(
    yard: Yard, models: tuple[Path, Path]
) -> None:
    one = yard.submit("one", models[0], ENDLESS, *SHORT, said="shared")
    yard.await_done(one, 8)
    two = yard.submit("two", models[0], MANY, *SHORT, said="shared")
    wait_until(lambda: yard.job(two).get("intake_complete"), story="the second job read")
    yard.fleet.run("cancel", str(one)).expect(0)
    yard.await_state(one, "cancelled")
    yard.await_state(two, "finished")
    assert whole(yard, two, MANY)
    assert all(mac["assigned"] == 0 for mac in yard.snapshot()["macs"])


def test_a_job_whose_model_or_input_is_unusable_fails_with_the_sentence_and_others_go_on(
    yard: Yard, models: tuple[Path, Path], tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{}")
    good = yard.submit("good", models[0], 40, *SHORT)
    bad = yard.submit("bad", broken, 40, *SHORT)
    yard.await_state(bad, "failed")
    assert "has no *.safetensors" in yard.job(bad)["error"]
    yard.await_state(good, "finished")


def test_one_that_joins_in_the_middle_has_rows_soon_and_one_without_the_model_says_so(
    yard: Yard, models: tuple[Path, Path]
) -> None:
    job = yard.submit("late", models[0], 2 * MANY, *SHORT)
    yard.await_done(job, 8)
    yard.join("late", FAKE_LOAD_S="1")
    yard.join("lacking", FAKE_REFUSE="there is no such folder here")
    wait_until(lambda: yard.mac("late").get("cap"), within_s=60, story="its model loaded")
    wait_until(lambda: yard.mac("late").get("running"), within_s=20, story="its first rows")
    assert yard.mac("late")["share"] > 0
    wait_until(lambda: yard.mac("lacking").get("note"), within_s=30, story="one that lacks the model says so")
    assert yard.mac("lacking")["note"] == "there is no such folder here"
    yard.fleet.run("kick", "late").expect(0)
    yard.await_event("late was removed")
    assert yard.mac("late")["state"] == "kicked"
    wait_until(lambda: yard.workers["late"].process.poll() is not None, story="the removed one ends")
    yard.await_state(job, "finished")
    assert whole(yard, job, 2 * MANY)
    assert yard.mac("lacking")["rows_done"] == 0
    assert sum("lacking cannot work" in event for event in yard.events()) == 1, "it was not asked again"
