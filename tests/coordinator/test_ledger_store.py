"""What a ledger's file can meet: locks, other versions, damage, a full disk, a kill."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from coordinator.control.running import Running
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.lock import StateLock
from coordinator.ledger.store import Store
from coordinator.records import Counts, Shape
from fleet.config import StateDir
from fleet.errors import StateLockedError, StorageError, UsageError
from tests.ledgers import done, request, row, spec


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    return StateDir(tmp_path / "deep" / "state")


def test_the_folder_is_made_private(state: StateDir) -> None:
    Ledger.open(state).close()
    assert state.root.stat().st_mode & 0o777 == 0o700


def test_the_ledger_is_private_in_a_folder_that_is_not(state: StateDir) -> None:
    state.root.mkdir(parents=True, mode=0o755)
    with Ledger.open(state):
        assert {path.name: path.stat().st_mode & 0o077 for path in state.root.glob("ledger*")} == {
            "ledger.sqlite": 0,
            "ledger.sqlite-wal": 0,
            "ledger.sqlite-shm": 0,
        }


def test_a_second_writer_is_refused_and_told_who_holds_the_folder(state: StateDir) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom coordinator.ledger.lock import StateLock\n"
        "from fleet.config import StateDir\nStateLock.take(StateDir(Path(sys.argv[1])))\n"
        "print('held', flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(state.root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(StateLockedError, match=f"pid {other.pid}\\)"):
            Ledger.open(state)
        other.kill()
        other.wait()
    Ledger.open(state).close()


def test_who_is_refused_is_told_which_command_has_the_folder_and_what_to_do(state: StateDir) -> None:
    with Ledger.open(state) as ledger:
        job = ledger.begin_job(spec())[0].id
        with pytest.raises(StateLockedError) as run:
            Ledger.open(state)
        Running.here(port=1, plain_port=2, token="t").keep(state)
        with pytest.raises(StateLockedError) as up:
            Ledger.open(state)
        Running.forget(state)
    where = f"works on {state.root}:"
    either = "or give another folder with --state-dir"
    end = f"wait for it, end it with `fleet cancel {job}`, {either}"
    assert str(run.value) == f"`fleet run` (pid {os.getpid()}, job {job}) {where} {end}"
    assert str(up.value) == (
        f"`fleet up` (pid {os.getpid()}) {where} `fleet submit` gives it work, `fleet down` ends it, {either}"
    )


def test_a_lock_is_free_after_release(state: StateDir) -> None:
    lock = StateLock.take(state)
    lock.release()
    lock.release()
    StateLock.take(state).release()


def test_a_ledger_that_does_not_open_leaves_the_folder_free(state: StateDir) -> None:
    state.make()
    state.ledger.write_bytes(b"no database, but long enough to be looked at" * 100)
    for _ in range(2):
        with pytest.raises(StorageError, match="damaged or no ledger"):
            Ledger.open(state)


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="cannot be made"):
        Ledger.open(StateDir(tmp_path / "file" / "state"))


def test_reading_where_there_is_no_ledger_says_how_to_begin(state: StateDir) -> None:
    with pytest.raises(UsageError, match="no job is recorded"):
        Ledger.read(state)
    assert not state.root.exists()


def test_a_ledger_of_another_version_is_left_alone(state: StateDir) -> None:
    Ledger.open(state).close()
    connection = sqlite3.connect(state.ledger)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    for opening in (Ledger.open, Ledger.read):
        with pytest.raises(StorageError, match="schema is 99"):
            opening(state)


def test_a_database_of_something_else_is_left_alone(state: StateDir) -> None:
    state.make()
    connection = sqlite3.connect(state.ledger)
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    with pytest.raises(StorageError, match="another version"):
        Ledger.open(state)


def test_commits_are_synced_to_disk(state: StateDir) -> None:
    with Ledger.open(state) as ledger:
        pragmas = {name: ledger._store.row(f"PRAGMA {name}") for name in ("journal_mode", "synchronous", "fullfsync")}
    assert pragmas == {"journal_mode": ("wal",), "synchronous": (2,), "fullfsync": (1,)}


def full(ledger: Ledger) -> int:
    """Leaves the file no page to grow; the limit before."""
    pages = ledger._store.number("PRAGMA page_count")
    before = ledger._store.number("PRAGMA max_page_count")
    ledger._store.row(f"PRAGMA max_page_count = {pages}")
    return before


def test_a_full_disk_at_a_commit_loses_nothing_and_room_makes_it_go_on(state: StateDir) -> None:
    with Ledger.open(state) as ledger:
        job = ledger.begin_job(spec())[0].id
        ledger.add_requests(job, [request(f"r{n}", n) for n in range(20)])
        ledger.commit("w", [done(1)])
        limit = full(ledger)
        results = [done(number, "long " * 2_000) for number in range(2, 21)]
        with pytest.raises(StorageError, match="the disk is full"):
            ledger.commit("w", results)
        ledger.validate()
        assert ledger.counts(job).done == 1
        ledger._store.row(f"PRAGMA max_page_count = {limit}")
        ledger.commit("w", results)
        assert ledger.counts(job).done == 20
        ledger.validate()


def test_a_full_disk_at_intake_takes_the_chunk_in_again_later(state: StateDir) -> None:
    with Ledger.open(state) as ledger:
        job = ledger.begin_job(spec())[0].id
        limit = full(ledger)
        chunk = [request(f"r{n}", n) for n in range(500)]
        with pytest.raises(StorageError, match="the disk is full"):
            ledger.add_requests(job, chunk)
        assert ledger.counts(job) == Counts()
        ledger._store.row(f"PRAGMA max_page_count = {limit}")
        opened = ledger.add_requests(job, chunk)
        assert len(opened) == 500
        # the sampling group was recorded in the transaction that failed
        assert ledger.sampling(opened[0].sampling) == row(1).sampling
        ledger.validate()


def test_a_result_cannot_be_changed_even_by_a_statement_that_tries(state: StateDir) -> None:
    with Ledger.open(state) as ledger:
        job = ledger.begin_job(spec())[0].id
        ledger.add_requests(job, [request("a", 1)])
        ledger.commit("w", [done(1)])
        with pytest.raises(sqlite3.IntegrityError, match="never changes"):
            ledger._store.run("UPDATE result SET text = 'other'")
        with pytest.raises(sqlite3.IntegrityError, match="stays done"):
            ledger._store.run("UPDATE row SET state = 0")


def test_a_kill_in_the_middle_of_intake_leaves_whole_chunks(state: StateDir) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom coordinator.ledger.ledger import Ledger\n"
        "from fleet.config import StateDir\nfrom tests.ledgers import request, spec\n"
        "ledger = Ledger.open(StateDir(Path(sys.argv[1])))\njob = ledger.begin_job(spec())[0].id\n"
        "for chunk in range(100_000):\n"
        "    ledger.add_requests(job, [request(f'{chunk}-{n}', chunk * 50 + n) for n in range(50)])\n"
        "    print(chunk, flush=True)\n"
    )
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", code, str(state.root)], stdout=subprocess.PIPE, text=True, cwd=root
    ) as writer:
        assert writer.stdout is not None
        told = [int(writer.stdout.readline()) for _ in range(20)]
        writer.kill()
        writer.wait()
    with Ledger.open(state) as ledger:
        counts = ledger.counts(1)
        assert counts.requests >= 50 * len(told)
        assert counts.requests % 50 == 0
        ledger.validate()


def test_a_cancel_waits_for_the_transaction_of_the_run(state: StateDir) -> None:
    with Ledger.open(state) as ledger:
        job = ledger.begin_job(spec())[0].id
        store = ledger._store
        with store.transaction():
            store.run("UPDATE job SET signature = 'x'")
            cancel = threading.Thread(target=Ledger.cancel, args=(state, job))
            cancel.start()
            cancel.join(0.2)
            assert cancel.is_alive()
        cancel.join(5)
        assert ledger.cancel_requested(job)


def test_a_writer_in_the_way_for_too_long_is_said(state: StateDir) -> None:
    with Ledger.open(state) as ledger:
        other = Store(state.ledger, write=True, busy_s=0.05)
        with ledger._store.transaction(), pytest.raises(StorageError, match="in use by another command"):
            other.run("BEGIN IMMEDIATE")
        other.close()


def test_what_runs_at_every_commit_never_scans_a_table_of_the_jobs_size(state: StateDir) -> None:
    """A join written the other way round once scanned ten million requests for the two hundred that had ended."""
    plans: list[str] = []
    with Ledger.open(state) as ledger:
        job = ledger.begin_job(spec())[0].id
        store, run, rows = ledger._store, ledger._store.run, ledger._store.rows

        def explain(sql: str, values: Sequence[Any] = ()) -> None:
            if sql.lstrip().startswith(("INSERT", "UPDATE", "SELECT")):
                plans.extend(
                    f"{step[3]}: {' '.join(sql.split())}" for step in rows(f"EXPLAIN QUERY PLAN {sql}", values)
                )

        def explained_run(sql: str, values: Sequence[Any] = ()) -> int:
            explain(sql, values)
            return run(sql, values)

        def explained_rows(sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
            explain(sql, values)
            return rows(sql, values)

        store.run, store.rows = explained_run, explained_rows  # type: ignore[method-assign]
        opened = ledger.add_requests(job, [request("a", 1, 2), request("doc", 3, 4, shape=Shape.REDUCE)])
        ledger.add_requests(job, [request("b", 1)])
        ledger.rows([r.id for r in opened])
        ledger.crashed([opened[0].id], alone=False)
        (asked,) = ledger.commit("w", [done(r.id) for r in opened])
        ledger.part_texts(asked)
        ledger.add_parts(asked, [row(9)])
        ledger.ready_to_reduce(job)
    assert len(plans) > 30
    assert [plan for plan in plans if re.match(r"SCAN (request|part|row|result|[qprx])\b", plan)] == []


def test_the_number_of_a_forgotten_job_is_not_given_again(state: StateDir) -> None:
    with Ledger.open(state) as ledger:
        first, second, third = (ledger.begin_job(spec(f"/{name}.jsonl"))[0].id for name in "abc")
        ledger.clean([third])
        ledger.clean([first])
    with Ledger.open(state) as ledger:
        fourth = ledger.begin_job(spec("/d.jsonl"))[0].id
        ledger.clean([second, fourth])
        assert ledger.jobs() == []
    with Ledger.open(state) as ledger:
        fifth = ledger.begin_job(spec("/a.jsonl"))[0].id
        assert (first, second, third, fourth, fifth) == (1, 2, 3, 4, 5)
