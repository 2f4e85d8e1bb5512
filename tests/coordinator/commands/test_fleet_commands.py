"""`fleet submit`, `watch`, `jobs`, `results`, `cancel`, `kick` and `token` on a Mac that has joined, over TLS."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.client import following
from coordinator.client.fleet_client import FleetClient
from coordinator.client.parcels import Parcel
from coordinator.screens.snapshot import MacState
from fleet import token
from fleet.address import Address
from fleet.cli import main
from fleet.config import StateDir
from fleet.credentials import Credentials
from tests.api_fleet import ApiFleet
from tests.models import tiny_llama
from tests.runner import read_lines, wait_until, write_prompts

WID = "0123456789ab"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def fleet(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiFleet]:
    monkeypatch.delenv("FLEET_COORDINATOR", raising=False)
    monkeypatch.delenv("FLEET_TOKEN", raising=False)
    monkeypatch.setattr(following, "ASK_S", 0.05)
    with ApiFleet(tmp_path, model, tls=True) as running:
        yield running


@pytest.fixture
def home(fleet: ApiFleet, tmp_path: Path) -> Path:
    """The state folder of a Mac that holds the token."""
    state = StateDir(tmp_path / "mac")
    Credentials(
        token=fleet.service.key.format(),
        certificate=fleet.certificate.path.read_text(),
        addresses=("127.0.0.1:1",),
        api_port=fleet.server.port,
        coordinator="test",
    ).keep(state)
    return state.root


def run(home: Path, *args: str | Path) -> int:
    return main([*map(str, args), "--state-dir", str(home)])


def test_a_backlog_is_submitted_waited_for_and_written(
    fleet: ApiFleet, home: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backlog, out = write_prompts(tmp_path / "in.jsonl", ["one", "two", "three"], tag="kept"), tmp_path / "out.jsonl"
    assert run(home, "submit", "generate", backlog, "-m", model, "--wait", "-o", out, "--max-tokens", "7") == 0
    lines = read_lines(out)
    assert [(line["id"], line["tag"], line["error"]) for line in lines] == [
        ("r0", "kept", None),
        ("r1", "kept", None),
        ("r2", "kept", None),
    ]
    assert fleet.service.orders[1].options.max_tokens == 7
    assert "job 1: 3 of 3 done, 0 failed" in capsys.readouterr().out


def fail_once_there(fleet: ApiFleet, why: str) -> None:
    """Fails job 1 when it has come."""
    jobs: list[object] = []
    wait_until(lambda: fleet.ask(lambda service: jobs.extend(service.ledger.jobs())) or jobs, story="a job")
    fleet.ask(lambda service: service.fail(1, why))


def test_a_job_that_failed_before_its_first_request_leaves_out_as_it_was(
    fleet: ApiFleet, home: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.service.working.clear()
    backlog, out = write_prompts(tmp_path / "in.jsonl", ["one"]), tmp_path / "out.jsonl"
    out.write_text("of an earlier run")
    failing = threading.Thread(target=fail_once_there, args=(fleet, "no worker can load it"))
    failing.start()
    assert run(home, "submit", "generate", backlog, "-m", model, "--wait", "-o", out) == 1
    failing.join()
    captured = capsys.readouterr()
    assert out.read_text() == "of an earlier run"
    assert captured.out == ""
    assert "job 1 failed: no worker can load it" in captured.err
    assert run(home, "results", "1", "-o", out) == 1
    assert "job 1 failed: no worker can load it" in capsys.readouterr().err
    assert out.read_text() == "of an earlier run"
    assert run(home, "watch", "1") == 1
    assert "job 1 failed: no worker can load it" in capsys.readouterr().err


def test_an_input_with_nothing_in_it_is_named(
    home: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.jsonl").touch()
    assert run(home, "submit", "generate", tmp_path / "in.jsonl", "-m", model) == 2
    assert f"{tmp_path / 'in.jsonl'} is empty: there is nothing to submit" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert run(home, "submit", "generate", "-", "-m", model) == 2
    assert "standard input is empty: there is nothing to submit" in capsys.readouterr().err


def test_submitting_prints_the_id_alone_and_the_job_can_be_followed(
    fleet: ApiFleet,
    home: Path,
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet.service.working.clear()
    backlog = write_prompts(tmp_path / "in.jsonl", ["one"])
    assert run(home, "submit", "generate", backlog, "-m", model, "--priority", "5") == 0
    assert capsys.readouterr().out == "1\n"
    assert fleet.service.orders[1].priority == 5
    get = FleetClient.get

    def work_once_seen(client: FleetClient, path: str) -> object:
        found = get(client, path)
        if path == "/fleet/jobs/1":
            fleet.service.working.set()
        return found

    monkeypatch.setattr(FleetClient, "get", work_once_seen)
    assert run(home, "watch", "1", "--json") == 0
    seen = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert seen[0]["state"] == "queued"
    assert (seen[-1]["state"], seen[-1]["done"], seen[-1]["priority"]) == ("finished", 1, 5)


def test_a_fleet_in_which_nobody_works_says_so_and_what_to_do(
    fleet: ApiFleet, home: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backlog = write_prompts(tmp_path / "in.jsonl", ["one"])
    said = []
    for state in (MacState.KICKED, MacState.LOADING):
        fleet.service.mac = state
        assert run(home, "submit", "generate", backlog, "-m", model) == 0
        said.append("no Mac works for this fleet now: `fleet join` on any" in capsys.readouterr().err)
        assert run(home, "watch", "1") == 0
        said.append("no Mac works for this fleet now: `fleet join` on any" in capsys.readouterr().err)
    assert said == [True, True, False, False]


def test_a_folder_keeps_its_names_and_a_text_that_is_none_fails_alone(
    home: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    papers, out = tmp_path / "papers", tmp_path / "out.jsonl"
    (papers / "deep").mkdir(parents=True)
    (papers / "a.txt").write_text("first")
    (papers / "b.txt").write_bytes(b"caf\xe9")
    (papers / "deep" / "c.md").write_text("third")
    assert run(home, "submit", "summarize", papers, "-m", model, "--wait", "-o", out) == 3
    lines = read_lines(out)
    assert [line["id"] for line in lines] == ["a.txt", "b.txt", "deep/c.md"]
    assert lines[1]["error"].startswith("not UTF-8: found byte 0xE9")
    assert [line["id"] for line in read_lines(Path(f"{out}.errors.jsonl"))] == ["b.txt"]
    assert "1 x not UTF-8: found byte 0xE9" in capsys.readouterr().out


def test_flags_that_name_fields_are_not_for_the_texts_of_a_folder(home: Path, model: Path, tmp_path: Path) -> None:
    # Every text failed: its line had no field `body`, or no field `nr`.
    papers, out = tmp_path / "papers", tmp_path / "out.jsonl"
    papers.mkdir()
    (papers / "a.txt").write_text("first")
    (tmp_path / "t.csv").write_text("nr,body,text\n7,zwei,other\n")
    names = ("--text-field", "body", "--id-field", "nr")
    inputs = (papers, tmp_path / "t.csv")
    assert run(home, "submit", "summarize", *inputs, "-m", model, *names, "--wait", "-o", out) == 0
    assert [line["id"] for line in read_lines(out)] == ["a.txt", "7"]


def test_several_inputs_and_standard_input_are_read_one_after_another(
    fleet: ApiFleet, home: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, out = tmp_path / "t.csv", tmp_path / "out.parquet"
    table.write_text("id,text\nx,eins\n")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"id": "y", "text": "zwei"}\n')))
    args = ("submit", "classify", table, "-", "-m", model, "--labels", "yes,no", "--wait", "-o", out)
    assert run(home, *args) == 0
    import pyarrow.parquet as pq

    assert pq.read_table(out).column("id").to_pylist() == ["x", "y"]
    assert fleet.service.orders[1].options.labels == ("yes", "no")


def test_openai_lines_come_back_as_openai_lines(
    home: Path, model: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    backlog = tmp_path / "b.jsonl"
    body = {"prompt": "one", "max_tokens": 3}
    good = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}
    backlog.write_text(json.dumps(good) + "\n" + json.dumps({**good, "custom_id": "b", "method": "GET"}) + "\n")
    assert run(home, "submit", "generate", backlog, "-m", model, "--wait", "-o", "-") == 3
    done, failed = map(json.loads, capfdbinary.readouterr().out.splitlines())
    assert done["response"]["body"]["object"] == "text_completion"
    assert failed["error"]["code"] == "request_failed"


def test_results_replace_a_list_of_failures_that_has_no_cause_any_more(home: Path, model: Path, tmp_path: Path) -> None:
    backlog, out = write_prompts(tmp_path / "in.jsonl", ["one"]), tmp_path / "out.jsonl"
    assert run(home, "submit", "generate", backlog, "-m", model, "--wait") == 0
    listed = Path(f"{out}.errors.jsonl")
    listed.write_text('{"id": "r0", "source": "x:1", "error": "no"}\n')
    assert run(home, "results", "1", "-o", out) == 0
    assert not listed.exists()
    assert [line["id"] for line in read_lines(out)] == ["r0"]


def test_the_fleets_jobs_are_listed_and_this_macs_own_with_local(
    fleet: ApiFleet, home: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(home, "jobs") == 0
    assert capsys.readouterr().out == "the fleet has no jobs\n"
    assert run(home, "submit", "generate", write_prompts(tmp_path / "in.jsonl", ["one"]), "-m", model, "--wait") == 0
    fleet.ask(lambda service: service.fail(1, "no worker can load it"))
    capsys.readouterr()
    assert run(home, "jobs") == 0
    head, line, why = capsys.readouterr().out.splitlines()
    assert head.split()[-1] == "INPUT"
    assert line.split() == ["1", "generate", "1/1", "0", "failed", "0", "s", "tiny", "in.jsonl"]
    assert why == "job 1 failed: no worker can load it"
    assert run(home, "jobs", "--local") == 0
    assert "no job is recorded" in capsys.readouterr().out
    assert run(home, "watch", "1") == 1
    assert "job 1 failed: no worker can load it" in capsys.readouterr().err


def test_a_job_of_the_fleet_is_cancelled(
    fleet: ApiFleet, home: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.service.working.clear()
    assert run(home, "submit", "generate", write_prompts(tmp_path / "in.jsonl", ["one"]), "-m", model) == 0
    capsys.readouterr()
    assert run(home, "cancel", "1", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"job": 1, "state": "cancelled"}
    assert run(home, "cancel", "1") == 0
    assert run(home, "watch", "1") == 130
    assert run(home, "cancel", "9") == 2
    assert "there is no job 9" in capsys.readouterr().err


def test_a_model_folder_that_the_coordinator_lacks_is_told_and_the_upload_taken_back(
    fleet: ApiFleet, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").mkdir()
    backlog = write_prompts(tmp_path / "in.jsonl", ["one"])
    assert run(home, "submit", "generate", backlog, "-m", tmp_path / "mine") == 2
    told = capsys.readouterr().err
    assert f"there is no model folder {tmp_path / 'mine'} on the coordinator's Mac: copy it there" in told
    assert list((fleet.state.root / "uploads").iterdir()) == []


def test_a_template_file_is_sent_as_its_text(fleet: ApiFleet, home: Path, model: Path, tmp_path: Path) -> None:
    template = tmp_path / "template.txt"
    template.write_text("{text}" + "The answer is yes. " * 40)
    args = ("submit", "generate", write_prompts(tmp_path / "in.jsonl", ["one"]), "-m", model, "--wait")
    assert run(home, *args, "--prompt-template", template, "--stop", "[x", "--no-think") == 0
    options = fleet.service.orders[1].options
    assert options.prompt_template == template.read_text()
    assert (options.stop, options.think) == (("[x",), False)


def test_a_worker_is_kicked_by_name(fleet: ApiFleet, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(home, "kick", "mini") == 0
    assert fleet.service.kicked == ["mini"]
    assert run(home, "kick", "a/b") == 2
    assert "there is no worker a/b" in capsys.readouterr().err


@pytest.fixture
def joined(fleet: ApiFleet, home: Path) -> Path:
    """The state folder of a Mac that has joined: it has a key of its own."""
    state = StateDir(home)
    kept = Credentials.kept(state)
    assert kept is not None
    password = fleet.accounts.admit(WID, "air", "proof")
    replace(kept, user=WID, password=password).keep(state)
    return home


def test_a_kicked_mac_can_ask_nothing_any_more_and_is_told_what_to_do(
    fleet: ApiFleet, joined: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It kept the token, whose key was every Mac's."""
    assert run(joined, "jobs") == 0
    fleet.accounts.kick(WID)
    for command in (["jobs"], ["cancel", "1"], ["results", "1"], ["token"], ["kick", "mini"]):
        assert run(joined, *command) == 4
        assert "this Mac was removed from the fleet" in (told := capsys.readouterr().err)
        assert "`fleet token --rotate` on the coordinator" in told
    assert fleet.service.kicked == []


def test_commands_of_macs_that_joined_outlive_a_new_token(
    joined: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(joined, "token") == 0
    old = capsys.readouterr().out.strip().partition("@")[0]
    assert run(joined, "token", "--rotate") == 0
    assert "Macs that have joined stay" in capsys.readouterr().err
    assert run(joined, "jobs") == 0
    monkeypatch.setenv("FLEET_TOKEN", old)
    assert run(joined, "jobs") == 4, "who says a token is asked for that"


def test_kicking_says_when_a_new_token_is_needed(joined: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(joined, "kick", "mini") == 0
    told = capsys.readouterr()
    assert told.out == "mini is out of the fleet; its rows run elsewhere\n"
    assert "may have copied the token" in told.err
    assert "fleet token --rotate" in told.err


def test_the_token_is_shown_and_rotated(
    fleet: ApiFleet, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(home, "token") == 0
    assert token.parse(capsys.readouterr().out)[0] == fleet.service.key
    assert run(home, "token", "--rotate", "--json") == 0
    new = json.loads(capsys.readouterr().out)
    assert new["key"] == fleet.service.key.key
    assert run(home, "token") == 4
    assert "does not accept this Mac's key or token any more" in capsys.readouterr().err
    monkeypatch.setenv("FLEET_TOKEN", new["token"].partition("@")[0])
    assert run(home, "token") == 0


def test_another_coordinator_at_the_address_gets_nothing(
    home: Path, tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ApiFleet(tmp_path / "other", model, tls=True) as impostor:
        gate = Address("127.0.0.1", impostor.server.port - 1)
        assert run(home, "jobs", "--coordinator", str(gate)) == 4
    assert "nothing was sent there" in capsys.readouterr().err


def test_a_fleet_that_is_away_or_unknown_is_exit_code_5(
    fleet: ApiFleet, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.server.stop()
    assert run(home, "jobs") == 5
    assert "or see this Mac's own record with --local" in capsys.readouterr().err
    assert run(tmp_path / "nobody", "watch", "1") == 5
    assert "no fleet is known here: start one here with `fleet up`" in capsys.readouterr().err
    assert run(tmp_path / "nobody", "watch", "1", "--coordinator", "127.0.0.1") == 4
    assert "no token of the fleet at 127.0.0.1:7633 is known" in capsys.readouterr().err


def test_an_output_goes_with_waiting_only(
    fleet: ApiFleet, home: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backlog = write_prompts(tmp_path / "in.jsonl", ["one"])
    assert run(home, "submit", "generate", backlog, "-m", model, "-o", tmp_path / "out.jsonl") == 2
    assert "-o goes with --wait" in capsys.readouterr().err
    wait_until(lambda: not fleet.service.orders)


def test_clean_also_forgets_what_was_sent_for_a_job(fleet: ApiFleet, home: Path, model: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        backlog = write_prompts(tmp_path / f"{name}.jsonl", ["one"])
        assert run(home, "submit", "generate", backlog, "-m", model, "--wait") == 0
    fleet.__exit__()
    assert run(fleet.state.root, "clean", "1") == 0
    assert [path.name for path in (fleet.state.root / "uploads").rglob("*.jsonl")] == ["b.jsonl"]
    assert sorted(path.name for path in (fleet.state.root / "batches").rglob("*.json*")) == ["2.json", "output.jsonl"]


def test_a_submission_broken_off_takes_back_what_it_sent(
    fleet: ApiFleet, home: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (write_prompts(tmp_path / name, ["one"]) for name in ("a.jsonl", "b.jsonl"))
    sent = FleetClient.upload

    def upload(client: FleetClient, parcel: Parcel, on_bytes: Callable[[int], None]) -> str:
        if parcel.name == "b.jsonl":
            raise KeyboardInterrupt
        return sent(client, parcel, on_bytes)

    monkeypatch.setattr(FleetClient, "upload", upload)
    assert run(home, "submit", "generate", first, second, "-m", model) == 130
    assert list((fleet.state.root / "uploads").iterdir()) == []
