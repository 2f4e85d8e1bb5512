"""`fleet jobs`, `results`, `cancel` and `clean`, called as the command line does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.commands.clean import text
from coordinator.control.running import Running
from coordinator.ledger.ledger import Ledger
from coordinator.records import Cleaned
from coordinator.screens.wording import age
from fleet.cli import main
from fleet.config import StateDir
from fleet.job import JobState
from tests.ledgers import done, request, spec


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    """Job 1 has finished with an error, job 2 is open with one of two requests done."""
    state = StateDir(tmp_path / "state")
    with Ledger.open(state) as ledger:
        first = ledger.begin_job(spec("/first.jsonl"))[0].id
        ledger.add_requests(first, [request("a", 1), request("b", error="no prompt", line=2)])
        second = ledger.begin_job(spec("/second.jsonl"))[0].id
        ledger.add_requests(second, [request("c", 2), request("d", 3)])
        ledger.commit("w", [done(1, "eins"), done(2, "zwei")])
        ledger.finish_intake(first, "")
        ledger.end_job(first, JobState.FINISHED)
    return state


#: Looks who holds a folder again and again, until its standard input ends.
_LOOK = """
import select, sys
from pathlib import Path
from coordinator.ledger.lock import StateLock
from fleet.config import StateDir
state = StateDir(Path(sys.argv[1]))
print("looking", flush=True)
while not select.select([sys.stdin], [], [], 0.001)[0]:
    StateLock.holder(state)
"""


def fleet(state: StateDir, *args: str) -> int:
    return main([*args, "--state-dir", str(state.root)])


def test_jobs_are_listed_with_how_far_they_are(state: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert fleet(state, "jobs") == 0
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["ID", "TASK", "DONE", "FAILED", "STATE", "AGE", "MODEL", "OUTPUT"]
    assert first.split() == ["1", "generate", "1/2", "1", "finished", "0", "s", "tiny", "/first.jsonl"]
    assert second.split() == ["2", "generate", "1/2+", "0", "interrupted", "0", "s", "tiny", "/second.jsonl"]


def test_jobs_as_json(state: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert fleet(state, "jobs", "--json") == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["state"], first["done"], first["failed"], first["open"]) == ("finished", 1, 1, 0)
    assert (second["id"], second["model"], second["intake_complete"]) == (2, "/models/tiny", False)
    assert second["state"] == "interrupted"


def test_a_job_runs_while_a_process_holds_its_folder_for_it(
    state: StateDir, capsys: pytest.CaptureFixture[str]
) -> None:
    with Ledger.open(state) as ledger:
        third = ledger.begin_job(spec("/third.jsonl"))[0].id
        fleet(state, "jobs", "--json")
        assert [job["state"] for job in json.loads(capsys.readouterr().out)] == ["finished", "interrupted", "running"]
        ledger.begin_job(spec("/second.jsonl"))
        fleet(state, "jobs", "--json")
        assert [job["state"] for job in json.loads(capsys.readouterr().out)] == ["finished", "running", "interrupted"]
    fleet(state, "jobs")
    assert capsys.readouterr().out.count("interrupted") == 2
    assert third == 3


def test_looking_at_jobs_keeps_no_run_from_its_folder(state: StateDir) -> None:
    looking = subprocess.Popen(
        [sys.executable, "-c", _LOOK, str(state.root)], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )
    assert looking.stdout is not None
    looking.stdout.readline()
    try:
        for _ in range(20):
            Ledger.open(state).close()
    finally:
        looking.communicate("", timeout=20)
    assert looking.returncode == 0


def test_no_jobs_is_an_answer_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs", "--state-dir", str(tmp_path / "none")]) == 0
    assert "no job is recorded" in capsys.readouterr().out
    assert main(["jobs", "--json", "--state-dir", str(tmp_path / "none")]) == 0
    assert capsys.readouterr().out == "[]\n"
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("seconds", "words"), [(-3, "0 s"), (59.9, "59 s"), (60, "1 min"), (7300, "2 h"), (1e6, "11 d")]
)
def test_an_age_is_told_in_its_largest_unit(seconds: float, words: str) -> None:
    assert age(seconds) == words


def test_jobs_and_help_load_nothing_heavy() -> None:
    code = (
        "import sys\nfrom fleet.cli import main\nmain(['jobs', '--state-dir', sys.argv[1]])\n"
        "heavy = ('numpy', 'transformers', 'tokenizers', 'redis', 'rich', 'mlx', 'pyarrow')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code, "/nowhere/at/all"], capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines()[-1] == "[]"


def test_results_of_a_finished_job_go_to_a_file(state: StateDir, tmp_path: Path) -> None:
    out = tmp_path / "again.jsonl"
    assert fleet(state, "results", "1", "-o", str(out)) == 3
    assert [json.loads(line)["text"] for line in out.read_text().splitlines()] == ["eins", None]
    assert json.loads((tmp_path / "again.jsonl.errors.jsonl").read_text())["id"] == "b"


@pytest.mark.parametrize("name", ["missing/o.jsonl", "o.csv", ""])
def test_results_refuse_an_output_that_cannot_be(
    state: StateDir, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert fleet(state, "results", "1", "-o", str(tmp_path / name)) == 2
    told = {"missing/o.jsonl": "does not exist: make it", "o.csv": "JSONL or Parquet", "": "is a folder"}
    assert told[name] in capsys.readouterr().err


def test_results_part_way_go_to_stdout_and_tell_what_is_open(
    state: StateDir, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert fleet(state, "results", "2") == 0
    written = capfdbinary.readouterr()
    assert [json.loads(line)["id"] for line in written.out.splitlines()] == ["c"]
    assert b"1 done, 0 failed, 1 still open" in written.err


def test_results_as_json_tell_what_was_written(
    state: StateDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "o.jsonl")
    fleet(state, "results", "2", "-o", out, "--json")
    assert json.loads(capsys.readouterr().out) == {"job": 2, "output": out, "done": 1, "failed": 0, "open": 1}


def test_results_of_a_job_that_failed_say_why_and_keep_an_output_that_they_have_nothing_for(
    state: StateDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "o.jsonl"
    out.write_text("of an earlier run")
    with Ledger.open(state) as ledger:
        ledger.end_job(2, JobState.FAILED, "no worker can load it")
        third = ledger.begin_job(spec("/third.jsonl"))[0].id
        ledger.end_job(third, JobState.FAILED, "there is no such model")
    assert fleet(state, "results", str(third), "-o", str(out)) == 1
    assert "job 3 failed: there is no such model" in capsys.readouterr().err
    assert out.read_text() == "of an earlier run"
    assert fleet(state, "results", "2", "-o", str(out)) == 1
    assert "1 done, 0 failed, 1 still open" in (told := capsys.readouterr().err)
    assert "job 2 failed: no worker can load it" in told
    assert [json.loads(line)["id"] for line in out.read_text().splitlines()] == ["c"]


def test_results_of_an_unknown_job_list_the_known(state: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert fleet(state, "results", "9") == 2
    assert "no job 9: known are 2, 1" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["results", "cancel", "clean"])
def test_what_is_no_job_number_is_told_as_such(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "abc"]) == 2
    assert "expected a job's number as `fleet jobs` shows it, found 'abc'" in capsys.readouterr().err


def test_results_work_while_another_process_holds_the_folder(state: StateDir, tmp_path: Path) -> None:
    with Ledger.open(state):
        assert fleet(state, "results", "2", "-o", str(tmp_path / "o.jsonl")) == 0
        assert fleet(state, "jobs") == 0


def test_a_running_job_can_be_cancelled_while_its_folder_is_held(
    state: StateDir, capsys: pytest.CaptureFixture[str]
) -> None:
    with Ledger.open(state) as ledger:
        assert fleet(state, "cancel", "2", "--json") == 0
        assert json.loads(capsys.readouterr().out) == {"job": 2, "state": "cancelled"}
        assert ledger.cancel_requested(2)


def test_of_a_job_that_runs_it_is_said_that_its_run_goes_on_for_a_moment(
    state: StateDir, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = "the run of job 2 was asked to stop: it finishes the rows in its batch, then writes what it has\n"
    over = "job 2 is cancelled; `fleet results 2` writes what it has\n"
    with Ledger.open(state) as ledger:
        ledger.begin_job(spec("/second.jsonl"))
        assert fleet(state, "cancel", "2") == 0
        assert capsys.readouterr().out == asked
        Running.here(port=1, plain_port=2, token="t").keep(state)
        assert fleet(state, "cancel", "2", "--local") == 0
        assert capsys.readouterr().out == over, "a fleet calls rows off"
        Running.forget(state)
    assert fleet(state, "cancel", "2") == 0
    assert capsys.readouterr().out == over


def test_a_finished_job_is_not_cancelled(state: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert fleet(state, "cancel", "1") == 2
    assert "has finished" in capsys.readouterr().err


def test_cleaning_takes_ended_jobs_only(state: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert fleet(state, "clean", "--json") == 0
    cleaned = json.loads(capsys.readouterr().out)
    assert (cleaned["jobs"], cleaned["requests"], cleaned["rows"]) == (1, 2, 1)
    with Ledger.read(state) as ledger:
        assert [job.record.id for job in ledger.jobs()] == [2]


def test_an_interrupted_job_is_kept_unless_it_is_named(state: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    fleet(state, "clean")
    kept = "1 interrupted job kept: name it to forget it too"
    assert capsys.readouterr().out == f"1 job, 2 requests and 1 row forgotten; {kept}\n"
    fleet(state, "clean")
    assert capsys.readouterr().out == f"nothing to forget; {kept}\n"
    assert fleet(state, "clean", "2") == 0
    assert capsys.readouterr().out == "1 job, 2 requests and 2 rows forgotten\n"


def test_several_that_are_kept_are_told_of_as_several() -> None:
    # "2 interrupted jobs kept: name it to forget it too"
    assert text(Cleaned(), 2) == "nothing to forget; 2 interrupted jobs kept: name them to forget them too"


def test_answers_that_an_interrupted_job_may_need_are_kept_and_that_is_said(
    state: StateDir, capsys: pytest.CaptureFixture[str]
) -> None:
    with Ledger.open(state) as ledger:
        ledger.reset_intake(2)
    assert fleet(state, "clean", "1") == 0
    said = "answers kept: job 2 was interrupted while it read its input again"
    assert capsys.readouterr().out == f"1 job, 2 requests and 0 rows forgotten; {said}\n"
    assert fleet(state, "clean", "2") == 0
    assert capsys.readouterr().out == "1 job, 0 requests and 3 rows forgotten\n"


@pytest.mark.parametrize("named", [[], ["2"]])
def test_a_job_that_runs_is_not_cleaned_and_its_process_is_named(
    state: StateDir, capsys: pytest.CaptureFixture[str], named: list[str]
) -> None:
    with Ledger.open(state) as ledger:
        ledger.begin_job(spec("/second.jsonl"))
        assert fleet(state, "clean", *named) == 1
    assert f"`fleet run` (pid {os.getpid()}, job 2) works on" in capsys.readouterr().err


def test_cleaning_is_refused_while_another_works_on_the_folder(
    state: StateDir, capsys: pytest.CaptureFixture[str]
) -> None:
    with Ledger.open(state):
        assert fleet(state, "clean") == 1
    assert "another `fleet` command (pid" in capsys.readouterr().err


def test_cleaning_nothing_is_fine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["clean", "--state-dir", str(tmp_path / "none")]) == 0
    assert capsys.readouterr().out == "nothing to forget\n"
    assert not (tmp_path / "none").exists()
