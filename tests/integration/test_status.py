"""`fleet status` and `fleet plan` beside and around a real run: broker, agent, ledger; the engine is a fake."""

import json
import signal
import time
from pathlib import Path

import pytest

from coordinator.screens.snapshot import MacState, snapshot_from_json
from fleet.model import weights_hash
from tests.models import tiny_llama
from tests.runner import Fleet, read_lines, wait_until, write_prompts


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


def run(fleet: Fleet, model: Path, rows: int) -> list[str | Path]:
    backlog = write_prompts(fleet.state.root.parent / "in.jsonl", [f"number {n}" for n in range(rows)])
    return ["run", "generate", backlog, "-m", model, "-o", fleet.out, "--max-tokens", "8"]


def keep_knee(fleet: Fleet, model: Path) -> None:
    """As if `fleet bench` had measured 1,000 tok/s at 4 rows, and prompts at 5,000."""
    curve = {
        "bucket_tokens": 256,
        "samples": [{"rows": 1, "tps": 300.0, "peak_bytes": 0}, {"rows": 4, "tps": 1000.0, "peak_bytes": 0}],
        "ended": True,
        "prefill": [{"setting": {"rows": 1, "tokens": 512}, "tps": 5000.0}],
        "prefill_ended": True,
        "scale": 1.0,
    }
    name = f"{weights_hash(model, fleet.state.root / 'hashes.json')} on the fastest machine"
    fleet.state.knees.write_text(json.dumps({"format": 1, "entries": {name: {"mlx": "0", "curves": [curve]}}}))


def test_without_a_fleet_or_a_run_the_status_says_what_to_do(tmp_path: Path) -> None:
    ended = Fleet(tmp_path, fake=True).run("status").expect(5)
    assert (ended.out, "`fleet up`" in ended.err) == ("", True)


def test_a_run_is_shown_from_its_ledger_and_its_lease_while_it_works(tmp_path: Path, model: Path) -> None:
    fleet = Fleet(tmp_path, fake=True, env={"FAKE_STEP_S": "0.1"})
    working = fleet.start(*run(fleet, model, 400))
    try:
        wait_until(lambda: fleet.counts().done > 10, story="some rows done")
        text = fleet.run("status").expect(0).out
        assert "\x1b" not in text
        assert "generate" in text
        assert "/400" in text

        def at_work() -> dict:
            told = json.loads(fleet.run("status", "--json").expect(0).out)
            return told if told["macs"] and told["macs"][0]["running"] else {}

        snapshot = snapshot_from_json(wait_until(at_work, story="a beat with rows"))
        (job,), (mac,) = snapshot.jobs, snapshot.macs
        assert (job.state, job.requests) == ("running", 400)
        assert 10 < job.done < 400
        assert (mac.state, mac.cap) == (MacState.WORKING, 8)
        (queue,) = json.loads(fleet.run("status", "--rq", "--json").expect(0).out)
        assert queue["queue"] == mac.id
        assert queue["registries"]["failed"] == 0
        assert queue["waiting"] + queue["registries"]["wip"] > 0
    finally:
        working.send_signal(signal.SIGINT)
        working.communicate(timeout=60)
    fleet.validate()
    fleet.run("status").expect(5)


def test_watched_json_is_a_line_a_second_and_ctrl_c_ends_it_well(tmp_path: Path, model: Path) -> None:
    fleet = Fleet(tmp_path, fake=True, env={"FAKE_STEP_S": "0.1"})
    working = fleet.start(*run(fleet, model, 400))
    try:
        wait_until(lambda: fleet.counts().done > 0, story="a row done")
        watching = fleet.start("status", "--watch", "--json")
        assert watching.stdout is not None
        seen = [snapshot_from_json(json.loads(watching.stdout.readline())) for _ in range(3)]
        while not seen[-1].jobs[0].output_tps:  # a rate is told once two beats were seen
            assert len(seen) < 15
            seen.append(snapshot_from_json(json.loads(watching.stdout.readline())))
        watching.send_signal(signal.SIGINT)
        _, err = watching.communicate(timeout=20)
        assert (watching.returncode, err) == (0, "")
        assert [snapshot.now for snapshot in seen] == sorted({snapshot.now for snapshot in seen})
        assert seen[2].now - seen[0].now < 10
        assert 20 < seen[-1].jobs[0].output_tps < 100  # 8 rows, a token each 0.1 s
    finally:
        working.send_signal(signal.SIGINT)
        working.communicate(timeout=60)


def test_a_run_says_how_far_its_plan_was_off_once_speeds_are_known(tmp_path: Path, model: Path) -> None:
    fleet = Fleet(tmp_path, fake=True)
    fleet.state.make()
    keep_knee(fleet, model)
    command = run(fleet, model, 100)
    report = json.loads(fleet.run(*command, "--json").expect(0).out)
    # 100 rows of up to 8 new tokens, half of them expected
    assert report["planned_s"] == pytest.approx((400 / 1000 + report["input_tokens"] / 5000) / 0.95)
    again = json.loads(fleet.run(*command, "--json").expect(0).out)
    assert again["planned_s"] is None


def test_a_plan_tells_time_energy_and_cost_and_learns_from_jobs(tmp_path: Path, model: Path) -> None:
    fleet = Fleet(tmp_path, fake=True)
    fleet.state.make()
    keep_knee(fleet, model)
    command = run(fleet, model, 100)
    asked = ["plan", command[2], "-m", model, "--max-tokens", "8"]
    before = json.loads(fleet.run(*asked, "--watts", "60", "--price", "0.3", "--json").expect(0).out)
    assert (before["rows"], before["bad_lines"], before["output_tokens"]) == (100, 0, [200, 400, 800])
    assert before["seconds"] == sorted(before["seconds"])
    assert before["kwh"] == pytest.approx(60 * before["seconds"][1] / 3.6e6)
    assert before["cost"] == pytest.approx(0.3 * before["kwh"])
    fleet.run(*command).expect(0)
    after = json.loads(fleet.run(*asked, "--json").expect(0).out)
    used = sum(line["output_tokens"] for line in read_lines(fleet.out))
    assert after["output_tokens"][1] == used
    assert after["kwh"] is None
    assert "as in 1 earlier job" in fleet.run(*asked).expect(0).out


def test_without_a_measured_speed_the_backlog_is_told_and_what_to_do(tmp_path: Path, model: Path) -> None:
    fleet = Fleet(tmp_path, fake=True)
    (tmp_path / "in.jsonl").write_text('{"prompt": "yes"}\n{"bad\n')
    ended = fleet.run("plan", tmp_path / "in.jsonl", "-m", model).expect(2)
    assert "2 requests, 1 row" in ended.out
    assert "1 bad line" in ended.out
    assert f"`fleet bench {model}` does, in a few minutes. Short runs measure none" in ended.err
    told = fleet.run("plan", tmp_path / "in.jsonl", "-m", model, "--json").expect(2)
    assert json.loads(told.out)["bad_lines"] == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["summarise", "in.jsonl"], "did you mean summarize?"),
        (["in.jsonl", "--price", "0.3"], "--price needs --watts"),
        (["classify", "in.jsonl"], "classify needs --labels"),
        (["embed", "in.jsonl"], "no plans for embed"),
    ],
)
def test_what_cannot_be_planned_is_refused_at_once(tmp_path: Path, words: list[str], said: str) -> None:
    began = time.monotonic()
    ended = Fleet(tmp_path, fake=True).run("plan", *words, "-m", tmp_path).expect(2)
    assert said in ended.err
    assert time.monotonic() - began < 20
