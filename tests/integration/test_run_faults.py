"""Whatever is killed, no row is lost, none is recorded twice, and the same command ends the job."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis

from coordinator.intake.intake import Intake, IntakeOptions
from coordinator.ledger.ledger import Ledger
from fleet import keys
from fleet.codec import decode
from fleet.job import RequestState, Task
from fleet.messages import Beat
from fleet.model import weights_hash
from tests.fake_engine import answer
from tests.models import tiny_llama
from tests.runner import Fleet, alive, children, read_lines, wait_until, write_prompts

ROWS = 160


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def backlog(tmp_path: Path) -> Path:
    return write_prompts(tmp_path / "in.jsonl", [f"the states were told {n}" for n in range(ROWS)])


def keys_of(backlog: Path, model: Path, max_tokens: int | None) -> dict[str, str]:
    """custom_id -> row key, as the run will make it."""
    folder = model.resolve()
    options = IntakeOptions(task=Task.GENERATE, model=str(folder), max_tokens=max_tokens)
    intake = Intake([str(backlog)], options, folder, weights_hash(folder, backlog.parent / "hashes.json"))
    return {str(r.custom_id): r.rows[0].key.hex() for chunk in intake.chunks() for r in chunk}


def command(backlog: Path, model: Path, fleet: Fleet, *more: str) -> list[str | Path]:
    return ["run", "generate", backlog, "-m", model, "-o", fleet.out, "--max-tokens", "20", "--batch", "8", *more]


def check_whole(fleet: Fleet) -> None:
    """Each id once, in input order, each with the fake engine's answer; the ledger's invariants hold."""
    lines = read_lines(fleet.out)
    assert [line["id"] for line in lines] == [f"r{n}" for n in range(ROWS)]
    assert all(line["text"].startswith(answer(b"")) for line in lines)
    assert len({line["text"] for line in lines}) == ROWS
    fleet.validate()


def write_unequal(path: Path, rows: int, tokens: tuple[int, int], rng: random.Random) -> Path:
    """OpenAI lines whose answers are unlike in tokens, so that rows end at different times."""
    with path.open("w") as file:
        for n in range(rows):
            body = {"prompt": f"the states were told {n}", "max_tokens": rng.randint(*tokens)}
            line = {"custom_id": f"r{n}", "method": "POST", "url": "/v1/completions", "body": body}
            file.write(json.dumps(line) + "\n")
    return path


def beat_of(fleet: Fleet) -> Beat | None:
    """What the one worker says now, None while there is none."""
    with redis.Redis(unix_socket_path=str(fleet.state.root / "run" / "broker.sock")) as client:
        try:
            leases = [client.get(key) for key in client.scan_iter(match=keys.lease("*"))]
        except redis.RedisError:
            return None
    beats = [decode(lease) for lease in leases if lease is not None]
    return beats[0] if beats and isinstance(beats[0], Beat) else None


def is_shared(beat: Beat | None) -> bool:
    """Whether a nearly full batch has rows of several shards."""
    return beat is not None and len(beat.shards) >= 2 and len(beat.running) > 48


@pytest.mark.parametrize(
    ("fake", "step_s", "rows", "tokens", "shared"),
    [
        pytest.param(True, "0.1", 1800, (4, 40), 10, id="fake engine"),
        # long answers, or a model this small is through with a batch before a beat has told of it
        pytest.param(False, "", 2000, (100, 400), 10, id="MLX", marks=pytest.mark.soak),
    ],
)
@pytest.mark.timeout(600)
def test_killed_at_20_random_moments_nothing_recorded_is_computed_again(
    tmp_path: Path, model: Path, *, fake: bool, step_s: str, rows: int, tokens: tuple[int, int], shared: int
) -> None:
    seed = 20261130
    rng = random.Random(seed)
    fleet = Fleet(tmp_path, fake=fake, env={"FAKE_STEP_S": step_s})
    backlog = write_unequal(tmp_path / "in.jsonl", rows, tokens, rng)
    run = ["run", "generate", backlog, "-m", model, "-o", fleet.out, "--batch", "64"]
    key_of = keys_of(backlog, model, None)
    recorded: set[str] = set()
    shared_batches = 0
    for kill in range(20):
        before = len(fleet.computed())
        process = fleet.start(*run)
        await_rows(fleet, fleet.counts().done + rng.randint(1, 12), story=f"progress before kill {kill}, seed {seed}")
        deadline = time.monotonic() + (0.0 if fake else 6.0)  # two beats of a worker
        while not (has_shared := is_shared(beat_of(fleet))) and time.monotonic() < deadline:
            time.sleep(0.1)
        shared_batches += has_shared
        time.sleep(rng.random() * 0.3)
        process.kill()
        process.communicate()
        again = recorded & set(fleet.computed()[before:])
        assert not again, f"seed {seed}, kill {kill}: {len(again)} recorded rows computed again"
        recorded = done_keys(fleet, key_of)
        assert len(recorded) < rows, f"all was done before kill {kill}"
    before = len(fleet.computed())
    fleet.run(*run, env={"FAKE_STEP_S": "0.005"}).expect(0)
    assert not recorded & set(fleet.computed()[before:])
    assert [line["custom_id"] for line in read_lines(fleet.out)] == [f"r{n}" for n in range(rows)]
    assert shared_batches >= shared, f"only {shared_batches} batches held rows of several shards"
    fleet.validate()


def await_rows(fleet: Fleet, rows: int, story: str) -> None:
    """Waits until so many requests are done."""
    wait_until(lambda: fleet.counts().done >= rows, story=story)


def done_keys(fleet: Fleet, key_of: dict[str, str]) -> set[str]:
    with Ledger.read(fleet.state) as ledger:
        return {key_of[str(a.custom_id)] for a in ledger.answers(1) if a.state is RequestState.DONE}


@pytest.mark.mlx
def test_kill_9_with_a_real_engine_goes_on_and_ends_well(tmp_path: Path, model: Path, backlog: Path) -> None:
    fleet = Fleet(tmp_path)
    more = ("--max-tokens", "60")
    process = fleet.start(*command(backlog, model, fleet, *more))
    wait_until(lambda: fleet.counts().done >= 20, story="20 rows done")
    process.kill()
    process.communicate()
    recorded = done_keys(fleet, keys_of(backlog, model, 60))
    before = len(fleet.computed())
    fleet.run(*command(backlog, model, fleet, *more)).expect(0)
    assert not recorded & set(fleet.computed()[before:])
    assert [line["id"] for line in read_lines(fleet.out)] == [f"r{n}" for n in range(ROWS)]
    fleet.validate()


def test_kill_9_of_the_command_leaves_no_process_behind(tmp_path: Path, model: Path, backlog: Path) -> None:
    fleet = Fleet(tmp_path, fake=True, env={"FAKE_STEP_S": "0.05"})
    process = fleet.start(*command(backlog, model, fleet))
    wait_until(lambda: fleet.counts().done >= 1, story="a first row")
    family = children(process.pid)
    assert len(family) >= 4
    process.kill()
    process.communicate()
    wait_until(lambda: not alive(family), story="the end of broker, worker and engine")


def test_ctrl_c_once_finishes_the_batch_and_says_how_to_go_on(tmp_path: Path, model: Path, backlog: Path) -> None:
    fleet = Fleet(tmp_path, fake=True, env={"FAKE_STEP_S": "0.05"})
    process = fleet.start(*command(backlog, model, fleet))
    wait_until(lambda: fleet.counts().done >= 1, story="a first row")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Ctrl-C again ends at once" in err
    assert "rows of the batch left" in err
    assert "the same command goes on from there" in err
    assert "fleet results 1" in err
    assert 8 <= fleet.counts().done < ROWS
    assert set(fleet.computed()) == done_keys(fleet, keys_of(backlog, model, 20)), "a finished row was not recorded"
    assert fleet.pids() == []
    ended = fleet.run(*command(backlog, model, fleet), env={"FAKE_STEP_S": "0.002"}).expect(0)
    assert "resuming job 1" in ended.err
    check_whole(fleet)
    assert len(fleet.computed()) == ROWS


def test_ctrl_c_twice_stops_at_once(tmp_path: Path, model: Path, backlog: Path) -> None:
    fleet = Fleet(tmp_path, fake=True, env={"FAKE_STEP_S": "5"})
    process = fleet.start(*command(backlog, model, fleet))
    wait_until(lambda: fleet.pids("worker") and fleet.counts().requests == ROWS, story="the start")
    time.sleep(1.5)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=80)
    assert process.returncode == 130
    assert time.monotonic() - began < 50, "the rows of the batch would take 100"
    wait_until(lambda: not fleet.pids(), story="the end of all processes")


def test_a_broker_killed_in_the_middle_costs_no_row_and_no_model_reload(
    tmp_path: Path, model: Path, backlog: Path
) -> None:
    fleet = Fleet(tmp_path, fake=True, env={"FAKE_STEP_S": "0.02"})
    process = fleet.start(*command(backlog, model, fleet))
    wait_until(lambda: fleet.counts().done >= 10, story="ten rows")
    server = fleet.pids("broker")
    os.kill(server[-1], signal.SIGKILL)
    _, err = process.communicate(timeout=90)
    assert process.returncode == 0, err
    check_whole(fleet)
    log = (fleet.state.logs / "worker.log").read_text()
    assert log.count("started") == 1, log


def test_a_killed_engine_is_replaced_and_its_rows_return(tmp_path: Path, model: Path, backlog: Path) -> None:
    fleet = Fleet(tmp_path, fake=True, env={"FAKE_STEP_S": "0.02"})
    process = fleet.start(*command(backlog, model, fleet))
    wait_until(lambda: fleet.counts().done >= 10, story="ten rows")
    (worker,) = fleet.pids("worker")
    (engine,) = children(worker)
    os.kill(engine, signal.SIGKILL)
    out, err = process.communicate(timeout=90)
    assert process.returncode == 0, err
    assert "1 engine crash" in out
    check_whole(fleet)


def test_a_killed_worker_is_replaced_and_its_rows_return(tmp_path: Path, model: Path, backlog: Path) -> None:
    fleet = Fleet(tmp_path, fake=True, env={"FAKE_STEP_S": "0.02"})
    process = fleet.start(*command(backlog, model, fleet))
    wait_until(lambda: fleet.counts().done >= 10, story="ten rows")
    (worker,) = fleet.pids("worker")
    os.kill(worker, signal.SIGKILL)
    _, err = process.communicate(timeout=90)
    assert process.returncode == 0, err
    check_whole(fleet)


@pytest.mark.mlx
def test_a_prompt_that_kills_the_engine_is_quarantined_and_the_rest_finishes(
    tmp_path: Path, model: Path, backlog: Path
) -> None:
    poison = keys_of(backlog, model, 20)["r77"]
    env = {"FLEET_TEST_FAULTS": "1", "FLEET_TEST_POISON_KEYS": poison}
    fleet = Fleet(tmp_path, env=env)
    ended = fleet.run(*command(backlog, model, fleet)).expect(3)
    lines = {line["id"]: line for line in read_lines(fleet.out)}
    assert [id for id, line in lines.items() if line["error"]] == ["r77"]
    assert "crashed the engine alone 2 times" in lines["r77"]["error"]
    assert len(lines) == ROWS
    assert "1 x crashed the engine" in ended.out
    fleet.validate()


def test_a_batch_too_large_to_survive_is_halved_and_quarantines_nobody(
    tmp_path: Path, model: Path, backlog: Path
) -> None:
    all_keys = ",".join(keys_of(backlog, model, 20).values())
    fleet = Fleet(
        tmp_path, fake=True, env={"FAKE_CRASH_KEYS": all_keys, "FAKE_CRASH_ABOVE": "5", "FAKE_STEP_S": "0.02"}
    )
    ended = fleet.run(*command(backlog, model, fleet, "--json")).expect(0)
    assert 3 <= json.loads(ended.out)["crashes"] <= 12
    assert "batch halved to 4" in (fleet.state.logs / "coordinator.log").read_text()
    check_whole(fleet)


def test_an_engine_that_crashes_on_everything_ends_the_run_with_a_sentence(
    tmp_path: Path, model: Path, backlog: Path
) -> None:
    poison = ",".join(keys_of(backlog, model, 20).values())
    fleet = Fleet(tmp_path, fake=True, env={"FAKE_CRASH_KEYS": poison})
    ended = fleet.run(*command(backlog, model, fleet, "--batch", "2"), timeout_s=250).expect(1)
    assert "the model or MLX on this machine is broken" in ended.err
    assert fleet.pids() == []


def test_a_model_the_engine_refuses_ends_the_run_with_its_reason(tmp_path: Path, model: Path, backlog: Path) -> None:
    fleet = Fleet(tmp_path, fake=True, env={"FAKE_REFUSE": "no such architecture here"})
    ended = fleet.run(*command(backlog, model, fleet)).expect(1)
    assert "no such architecture here" in ended.err
    assert fleet.pids() == []


def test_cancel_from_another_terminal_stops_the_run_and_keeps_what_it_has(
    tmp_path: Path, model: Path, backlog: Path
) -> None:
    fleet = Fleet(tmp_path, fake=True, env={"FAKE_STEP_S": "0.05"})
    process = fleet.start(*command(backlog, model, fleet))
    wait_until(lambda: fleet.counts().done >= 4, story="four rows")
    fleet.run("cancel", "1").expect(0)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "left open" in out
    assert "the same command takes it up again" in err
    assert 4 <= len(read_lines(fleet.out)) < ROWS
    assert "cancelled" in fleet.run("jobs").out


@pytest.mark.parametrize(
    ("url", "says"), [("foo", "is no address of a Redis"), ("redis://127.0.0.1:1", "does not answer")]
)
def test_a_redis_that_is_none_is_one_sentence(tmp_path: Path, model: Path, backlog: Path, url: str, says: str) -> None:
    fleet = Fleet(tmp_path, fake=True)
    ended = fleet.run(*command(backlog, model, fleet), env={"FLEET_REDIS_URL": url}).expect(1)
    assert says in ended.err
    assert "Traceback" not in ended.err


def test_a_reader_of_stderr_that_goes_away_does_not_end_the_run(tmp_path: Path, model: Path, backlog: Path) -> None:
    fleet = Fleet(tmp_path, fake=True, env={"FAKE_STEP_S": "0.02"})
    process = fleet.start(*command(backlog, model, fleet))
    assert process.stderr is not None
    assert process.stdout is not None
    process.stderr.close()
    with process.stdout as stdout:
        out = stdout.read()
    assert process.wait(60) == 0
    assert f"{ROWS} of {ROWS} done" in out
    check_whole(fleet)


def test_lines_added_while_the_input_is_read_are_run_by_the_next_run(tmp_path: Path, model: Path) -> None:
    """The signature was once taken after reading, so that a line added meanwhile was never seen."""
    fleet = Fleet(tmp_path, fake=True)
    backlog = write_prompts(tmp_path / "in.jsonl", [f"told {n}" for n in range(9_000)])
    run = ["run", "generate", backlog, "-m", model, "-o", fleet.out, "--max-tokens", "1", "--batch", "256"]
    process = fleet.start(*run)
    wait_until(lambda: fleet.counts().requests >= 64, story="the first chunk")
    with backlog.open("a") as file:
        file.write(json.dumps({"id": "late", "prompt": "told late"}) + "\n")
    process.communicate(timeout=100)
    fleet.run(*run).expect(0)
    assert read_lines(fleet.out)[-1]["id"] == "late"
    fleet.validate()


def test_standard_input_is_read_whole_with_fresh_too(tmp_path: Path, model: Path) -> None:
    """The first line was lost when the job's salt had intake begin anew on a stream already begun."""
    fleet = Fleet(tmp_path, fake=True)
    backlog = write_prompts(tmp_path / "in.jsonl", ["told a", "told b", "told c"])
    command = [sys.executable, "-m", "fleet", "run", "generate", "-", "-m", str(model), "-o", str(fleet.out), "--fresh"]
    with backlog.open("rb") as stdin:
        subprocess.run([*command, "--state-dir", str(fleet.state.root)], stdin=stdin, env=fleet.env, check=True)
    assert [line["id"] for line in read_lines(fleet.out)] == ["r0", "r1", "r2"]


def test_a_fresh_run_that_could_not_write_goes_on_and_computes_nothing_again(
    tmp_path: Path, model: Path, backlog: Path
) -> None:
    fleet = Fleet(tmp_path, fake=True, env={"FAKE_STEP_S": "0.02"})
    process = fleet.start(*command(backlog, model, fleet, "--fresh"))
    wait_until(lambda: fleet.counts().done >= 8, story="eight rows")
    fleet.out.mkdir()
    process.communicate(timeout=60)
    assert process.returncode == 1
    fleet.out.rmdir()
    fleet.run(*command(backlog, model, fleet, "--fresh")).expect(0)
    assert len(fleet.computed()) == ROWS
    check_whole(fleet)


def test_three_quarantined_rows_that_alone_are_left_are_quarantined_again(
    tmp_path: Path, model: Path, backlog: Path
) -> None:
    """A rerun that has nothing left but such rows once blamed the model and wrote no output."""
    keys = keys_of(backlog, model, 20)
    fleet = Fleet(tmp_path, fake=True, env={"FAKE_CRASH_KEYS": ",".join(keys[f"r{n}"] for n in (3, 50, 90))})
    fleet.run(*command(backlog, model, fleet, "--batch", "4")).expect(3)
    fleet.out.unlink()
    fleet.run(*command(backlog, model, fleet, "--batch", "4")).expect(3)
    assert sum(line["error"] is not None for line in read_lines(fleet.out)) == 3
    fleet.validate()


@pytest.mark.soak
def test_a_worker_asleep_for_long_is_replaced_and_no_row_is_blamed(tmp_path: Path, model: Path) -> None:
    fleet = Fleet(tmp_path, fake=True, env={"FAKE_STEP_S": "0.5"})
    backlog = write_prompts(tmp_path / "in.jsonl", ["told alone"])
    process = fleet.start("run", "generate", backlog, "-m", model, "-o", fleet.out, "--max-tokens", "20")
    wait_until(lambda: (beat := beat_of(fleet)) is not None and beat.running, story="the row in the batch")
    (worker,) = fleet.pids("worker")
    os.kill(worker, signal.SIGSTOP)
    _, err = process.communicate(timeout=90)
    assert process.returncode == 0, err
    assert "gives no sign of life" in (fleet.state.logs / "coordinator.log").read_text()
    assert "engine crashed" not in (fleet.state.logs / "coordinator.log").read_text()
    assert read_lines(fleet.out)[0]["error"] is None


@pytest.mark.soak
def test_a_broker_that_hangs_is_replaced_and_the_worker_is_kept(tmp_path: Path, model: Path, backlog: Path) -> None:
    fleet = Fleet(tmp_path, fake=True, env={"FAKE_STEP_S": "0.02"})
    process = fleet.start(*command(backlog, model, fleet))
    wait_until(lambda: fleet.counts().done >= 10, story="ten rows")
    server = max(pid for pid in children(process.pid) if "valkey" in Path(f"/proc/{pid}/comm").read_text())
    os.kill(server, signal.SIGSTOP)
    out, err = process.communicate(timeout=110)
    assert process.returncode == 0, err
    assert "waiting for the broker" in err
    assert "engine crash" not in out
    check_whole(fleet)
    assert (fleet.state.logs / "worker.log").read_text().count("started") == 1
