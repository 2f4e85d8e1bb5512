"""A fleet of real processes that can be broken anywhere, and what must be true of it afterwards."""

from __future__ import annotations

import json
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import redis

from coordinator.intake.intake import Intake
from coordinator.intake.preparation import options_of
from coordinator.ledger.ledger import Ledger
from coordinator.outputs.results import write_results
from coordinator.records import JobRecord
from fleet.config import StateDir
from fleet.errors import Exit
from fleet.job import Finish
from fleet.messages import RowResult
from fleet.model import find_model, weights_hash
from tests.fake_engine import answer
from tests.runner import children, wait_until
from tests.yard import Process, Yard

#: A row may be sent so often in one of these short jobs: once for each fault that its workers met, and some.
MOST_ENGINES = 8


def write_unequal(path: Path, rows: int, seed: int, said: str = "told") -> Path:
    """Prompts whose answers have 4 to 40 tokens, so that rows end at different times."""
    rng = random.Random(seed)
    lines = [{"id": f"r{n}", "prompt": f"{said} {n}", "max_tokens": rng.randint(4, 40)} for n in range(rows)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def undisturbed(job: JobRecord, folder: Path) -> bytes:
    """The output of the job where nothing happens: its input taken in anew, each row answered as the fake engine does,
    and written, without broker, worker or fault."""
    model = find_model(job.spec.model)
    made_by = weights_hash(model, folder / "hashes.json")
    intake = Intake(job.spec.inputs, options_of(job.spec), model, made_by)
    state = StateDir(folder / "undisturbed")
    state.make()
    with Ledger.open(state) as ledger:
        again, _ = ledger.begin_job(job.spec)
        for chunk in intake.chunks():
            rows = {row.id: row for row in ledger.rows([row.id for row in ledger.add_requests(again.id, chunk)])}
            ledger.commit("nobody", [_answered(row.id, row.key, row.tokens, row.max_tokens) for row in rows.values()])
        ledger.finish_intake(again.id, "")
        output = folder / "undisturbed.jsonl"
        write_results(ledger, again, openai=ledger.is_openai(again.id), output=str(output))
    return output.read_bytes()


def _answered(row: int, key: bytes, tokens: bytes, max_tokens: int) -> RowResult:
    text, length = answer(key), len(tokens) // 4
    return RowResult(id=row, text=text, finish=Finish.LENGTH, input_tokens=length, output_tokens=max_tokens)


class FaultYard(Yard):
    """A yard whose commands are `tests.fault_points`."""

    module = "tests.fault_points"

    def __init__(self, folder: Path, **env: str) -> None:
        super().__init__(folder, FAULT_BROKER=str(folder / "broker.url"), **env)

    # -- coming and going ----------------------------------------------------------------------------

    def begin(self, names: str, **env: str) -> FaultYard:
        """A fleet of workers with one-letter names, all of them here; `env` is for the coordinator."""
        with self._also(env):
            self.up()
        for name in names:
            self.join(name)
        for name in names:
            self.await_event(f"{name} is here", within_s=90)
        return self

    def up_again(self, **env: str) -> None:
        """Starts the coordinator where it was, after the one before has ended."""
        assert self.up_ is not None
        self.up_.process.wait(60)
        with self._also(env):
            self.up()

    @contextmanager
    def _also(self, env: dict[str, str]) -> Iterator[None]:
        before = self.fleet.env
        self.fleet.env = {**before, **env}
        try:
            yield
        finally:
            self.fleet.env = before

    def join_at(self, name: str, port: int) -> None:
        """A worker that reaches the coordinator by another port of this machine."""
        token = f"{self.running.token.rpartition('@')[0]}@127.0.0.1:{port}"
        args = ["join", token, "--name", name, "--state-dir", str(self.folder / name)]
        self.workers[name] = Process(args, self.fleet.env, self.module)

    def kill(self, word: str) -> None:
        """kill -9 of the coordinator's children whose command has `word`."""
        for pid in wait_until(lambda: self._children(word), story=f"a {word} to kill"):
            os.kill(pid, signal.SIGKILL)

    def child(self, word: str) -> int:
        """The coordinator's child whose command begins with a path that ends in `word`."""
        return next(pid for pid in self._children(word) if command_of(pid).split()[0].endswith(word))

    def _children(self, word: str) -> list[int]:
        return [pid for pid in children(self.running.pid) if word in command_of(pid)]

    @contextmanager
    def asleep(self, pid: int) -> Iterator[None]:
        """Stops a process meanwhile."""
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def kill_engine(self, name: str) -> None:
        """kill -9 of a worker's engine, where it has one."""
        for pid in children(self.workers[name].process.pid):
            os.kill(pid, signal.SIGKILL)

    # -- the broker ----------------------------------------------------------------------------------

    def broker(self) -> redis.Redis:
        """A client with the coordinator's own user."""
        return redis.Redis.from_url((self.folder / "broker.url").read_text())

    def fill_broker(self) -> None:
        """Leaves the broker not a byte."""
        with self.broker() as client:
            for size in (1 << 20, 1 << 12, 1 << 4):
                with suppress(redis.exceptions.OutOfMemoryError):
                    while True:
                        client.rpush("filler", bytes(size))

    def empty_broker(self) -> None:
        """Gives the room back."""
        with self.broker() as client:
            client.delete("filler")

    def worker_id(self, name: str) -> str:
        """The id of a worker."""
        return str(self.mac(name)["id"])

    # -- jobs ----------------------------------------------------------------------------------------

    def order(self, model: Path, rows: int, seed: int, *flags: str, said: str = "told") -> int:
        """A job of unequal rows; its id."""
        backlog = write_unequal(self.folder / f"in-{said}.jsonl", rows, seed, said)
        args = ["submit", "generate", backlog, "-m", model, "--json", *flags]
        ended = self.fleet.run(*args)
        if ended.status == Exit.NO_COORDINATOR:  # it was killed with the job in its ledger and the answer unsent
            with self.ledger() as ledger:
                return ledger.jobs()[-1].record.id
        return int(json.loads(ended.expect(0).out)["id"])

    def ledger(self) -> Ledger:
        """For looking, to be closed."""
        return Ledger.read(self.state)

    def record(self, job: int) -> JobRecord:
        """A job as the ledger has it."""
        with self.ledger() as ledger:
            return ledger.job(job).record

    def keys_of(self, job: int) -> dict[str, str]:
        """custom_id -> row key in hex, of the requests of one row."""
        record = self.record(job)
        model = find_model(record.spec.model)
        intake = Intake(record.spec.inputs, options_of(record.spec), model, weights_hash(model, self.folder / "hashes"))
        return {str(r.custom_id): r.rows[0].key.hex() for chunk in intake.chunks() for r in chunk}

    def grows(self, job: int, rows: int = 8, within_s: float = 60.0) -> None:
        """More rows are recorded than now."""
        before = self.fleet.counts(job)
        enough = min(before.done + rows, before.requests) if before.requests else rows
        self.await_done(job, enough, within_s=within_s)

    def await_over(self, job: int, within_s: float = 100.0) -> None:
        """Waits until a job is finished."""
        self.await_state(job, "finished", within_s=within_s)

    def check(self, job: int, story: str, *, lost: Sequence[str] = ()) -> Counter[str]:
        """The ledger is whole and the output is that of a job which nothing befell, but for the requests `lost`. How
        often each row was computed, by key."""
        with self.ledger() as ledger:
            ledger.validate()
            record, counts = ledger.job(job).record, ledger.counts(job)
        assert (counts.open, counts.failed) == (0, len(lost)), f"{story}: {counts}"
        found = Path(record.spec.output).read_bytes().splitlines()
        expected = undisturbed(record, self.folder).splitlines()
        assert [_id(line) for line in found] == [_id(line) for line in expected], f"{story}: other requests"
        wrong = [line for line, good in zip(found, expected, strict=True) if line != good and _id(line) not in lost]
        assert not wrong, f"{story}: {wrong[:3]}"
        computed = Counter(self.computed())
        assert max(computed.values()) <= MOST_ENGINES, f"{story}: a row was computed {max(computed.values())} times"
        return computed


def _id(line: bytes) -> str:
    return str(json.loads(line)["id"])


def command_of(pid: int) -> str:
    """A process's command line, empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def away(process: Process, within_s: float = 60.0, story: str = "its end") -> None:
    """Waits until a command has ended."""
    wait_until(lambda: process.process.poll() is not None, within_s=within_s, story=story)


def told(yard: Yard) -> list[dict[str, Any]]:
    """The lines of all Macs."""
    return list(yard.snapshot().get("macs", ()))
