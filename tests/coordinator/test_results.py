"""Output files: their lines, their order, and that an old file is never half a new one."""

from __future__ import annotations

import io
import json
import os
import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coordinator.ledger.ledger import Ledger
from coordinator.outputs.results import ResultCounts, errors_file, write_results
from coordinator.records import JobRecord, Source
from fleet.config import StateDir
from fleet.errors import StorageError, UsageError
from fleet.job import Finish, Task
from tests.ledgers import done, failed, request, spec

CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(StateDir(tmp_path / "state"), clock=lambda: 1700.9) as ledger:
        yield ledger


@pytest.fixture
def job(ledger: Ledger) -> JobRecord:
    return ledger.begin_job(spec())[0]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def beside(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.parent.iterdir() if entry.is_file())


@pytest.mark.parametrize("openai", [True, False])
def test_failures_of_a_submitted_job_name_the_file_as_it_was_sent(ledger: Ledger, out: Path, *, openai: bool) -> None:
    """They named the folder on the coordinator's disk where the upload was kept."""
    upload = "/Users/somebody/.local/state/fleet/uploads/file-0123456789ab/mails.jsonl"
    job = ledger.begin_job(replace(spec(), inputs=(upload,)), submitted=True)[0]
    named = [replace(request("a", 1, url=CHAT), source=Source(file=upload, line=line)) for line in (1, 2)]
    ledger.add_requests(job.id, [*named, replace(named[0], custom_id="b", source=Source(file=upload, line=3))])
    ledger.commit("w", [failed(1)])
    write_results(ledger, job, openai=openai, output=str(out))
    lines = read(errors_file(str(out)))
    assert [line["source"] for line in lines] == ["mails.jsonl:1", "mails.jsonl:2", "mails.jsonl:3"]
    assert "already used at mails.jsonl:1" in json.dumps(lines[1]["error"])
    stream = io.BytesIO()
    write_results(ledger, job, openai=openai, output="-", stdout=stream)
    assert b"somebody" not in out.read_bytes() + stream.getvalue()


# -- flat ------------------------------------------------------------------------------------------


def test_a_flat_output_has_every_request_in_input_order(ledger: Ledger, job: JobRecord, out: Path) -> None:
    ledger.add_requests(job.id, [request("b", 1), request("a", error="no prompt", line=2), request("c", 2)])
    ledger.commit("w", [done(2, "zwei\n"), done(1, "eins", Finish.LENGTH)])
    assert write_results(ledger, job, openai=False, output=str(out)) == ResultCounts(done=2, failed=1)
    assert read(out) == [
        {"id": "b", "text": "eins", "finish_reason": "length", "input_tokens": 3, "output_tokens": 2, "error": None},
        {
            "id": "a",
            "text": None,
            "finish_reason": "error",
            "input_tokens": 0,
            "output_tokens": 0,
            "error": "no prompt",
        },
        {"id": "c", "text": "zwei\n", "finish_reason": "stop", "input_tokens": 3, "output_tokens": 2, "error": None},
    ]
    assert read(errors_file(str(out))) == [{"id": "a", "source": "/in.jsonl:2", "error": "no prompt"}]


THOUGHT = replace(done(1, "yes", Finish.THINKING), reasoning="Hm.")


def test_thinking_stands_beside_the_text_where_there_was_some(ledger: Ledger, job: JobRecord, out: Path) -> None:
    extra = json.dumps({"reasoning": "theirs"})
    ledger.add_requests(job.id, [request("a", 1, extra=extra), request("b", 2), request("c", 1, 2)])
    ledger.commit("w", [THOUGHT, done(2, "no")])
    write_results(ledger, job, openai=False, output=str(out))
    first, second, third = read(out)
    assert (first["text"], first["reasoning"], first["input_reasoning"]) == ("yes", "Hm.", "theirs")
    assert first["finish_reason"] == "length_in_thinking"
    assert "reasoning" not in second
    assert (third["texts"], third["reasonings"]) == (["yes", "no"], ["Hm.", ""])


def test_an_openai_message_has_its_thinking_in_reasoning_content(ledger: Ledger, job: JobRecord, out: Path) -> None:
    ledger.add_requests(job.id, [request("a", 1, url=CHAT), request("b", 2, url=CHAT), request("c", 1, url=PLAIN)])
    ledger.commit("w", [THOUGHT, done(2, "no")])
    write_results(ledger, job, openai=True, output=str(out))
    first, second, third = [line["response"]["body"]["choices"][0] for line in read(out)]
    assert first["message"] == {"role": "assistant", "content": "yes", "reasoning_content": "Hm."}
    assert first["finish_reason"] == "length"
    assert second["message"] == {"role": "assistant", "content": "no"}
    assert (third["text"], third["reasoning_content"]) == ("yes", "Hm.")


def test_thinking_is_a_column_of_a_parquet_output(ledger: Ledger, job: JobRecord, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    ledger.add_requests(job.id, [request("a", 1), request("b", 2)])
    ledger.commit("w", [THOUGHT, done(2, "no")])
    out = tmp_path / "out.parquet"
    write_results(ledger, job, openai=False, output=str(out))
    table = parquet.read_table(out)
    assert table.column_names[:3] == ["id", "text", "reasoning"]
    assert table["reasoning"].to_pylist() == ["Hm.", None]


def test_input_fields_are_carried_and_never_take_the_place_of_ours(ledger: Ledger, job: JobRecord, out: Path) -> None:
    extra = json.dumps({"year": 1999, "text": "theirs", "error": 5, "input_error": 6, "tags": ["é"]})
    ledger.add_requests(job.id, [request("a", 1, extra=extra)])
    ledger.commit("w", [done(1, "ours")])
    write_results(ledger, job, openai=False, output=str(out))
    (line,) = read(out)
    assert (line["text"], line["error"], line["year"], line["tags"]) == ("ours", None, 1999, ["é"])
    assert (line["input_text"], line["input_error"], line["input_input_error"]) == ("theirs", 5, 6)


def test_classify_gives_a_label(ledger: Ledger, out: Path) -> None:
    job = ledger.begin_job(spec(task=Task.CLASSIFY))[0]
    ledger.add_requests(job.id, [request("a", 1, extra='{"text": "the mail"}')])
    ledger.commit("w", [done(1, "spam")])
    write_results(ledger, job, openai=False, output=str(out))
    (line,) = read(out)
    assert (line["label"], line["text"]) == ("spam", "the mail")


def test_several_prompts_give_a_list_of_texts(ledger: Ledger, job: JobRecord, out: Path) -> None:
    ledger.add_requests(job.id, [request("a", 1, 2)])
    ledger.commit("w", [done(1, "x"), done(2, "y", Finish.LENGTH)])
    write_results(ledger, job, openai=False, output=str(out))
    (line,) = read(out)
    assert (line["texts"], line["finish_reason"], line["output_tokens"]) == (["x", "y"], "length", 4)
    assert "text" not in line


def test_an_empty_answer_is_told_from_an_ordinary_one(ledger: Ledger, job: JobRecord, out: Path) -> None:
    ledger.add_requests(job.id, [request("a", 1, url=CHAT)])
    ledger.commit("w", [done(1, "", Finish.EMPTY)])
    write_results(ledger, job, openai=False, output=str(out))
    assert read(out)[0]["finish_reason"] == "empty"
    write_results(ledger, job, openai=True, output=str(out))
    assert read(out)[0]["response"]["body"]["choices"][0]["finish_reason"] == "stop"


def test_open_requests_are_left_out_and_counted(ledger: Ledger, job: JobRecord, out: Path) -> None:
    ledger.add_requests(job.id, [request("a", 1), request("b", 2), request("c", 3)])
    ledger.commit("w", [done(2)])
    assert write_results(ledger, job, openai=False, output=str(out)) == ResultCounts(done=1, open=2)
    assert [line["id"] for line in read(out)] == ["b"]


def test_text_that_no_utf8_has_is_escaped(ledger: Ledger, job: JobRecord, out: Path) -> None:
    ledger.add_requests(job.id, [request("a", 1, extra='{"odd": "\\ud800"}')])
    ledger.commit("w", [done(1, "\u2028\U0001f600")])
    write_results(ledger, job, openai=False, output=str(out))
    (line,) = read(out)
    assert (line["odd"], line["text"]) == ("\ud800", "\u2028\U0001f600")


# -- OpenAI ----------------------------------------------------------------------------------------


def test_an_openai_output_has_the_batch_form(ledger: Ledger, job: JobRecord, out: Path) -> None:
    ledger.add_requests(job.id, [request("a", 1, url=CHAT), request("b", 2, 3, url=PLAIN)])
    ledger.commit("w", [done(1, "hi"), done(2, "x", Finish.LENGTH), done(3, "y")])
    write_results(ledger, job, openai=True, output=str(out))
    chat, plain = read(out)
    assert chat == {
        "id": "batch_req_1_0",
        "custom_id": "a",
        "response": {
            "status_code": 200,
            "request_id": "req_1_0",
            "body": {
                "id": "chatcmpl-1_0",
                "object": "chat.completion",
                "created": 1700,
                "model": "/models/tiny",
                "choices": [
                    {
                        "index": 0,
                        "message": {"role": "assistant", "content": "hi"},
                        "logprobs": None,
                        "finish_reason": "stop",
                    }
                ],
                "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
            },
        },
        "error": None,
    }
    body = plain["response"]["body"]
    assert body["object"] == "text_completion"
    assert [(choice["index"], choice["text"], choice["finish_reason"]) for choice in body["choices"]] == [
        (0, "x", "length"),
        (1, "y", "stop"),
    ]
    assert body["usage"]["total_tokens"] == 10


def test_failed_openai_requests_stand_in_the_errors_file_alone(ledger: Ledger, job: JobRecord, out: Path) -> None:
    ledger.add_requests(job.id, [request("a", 1, url=CHAT), request("b", 2, url=CHAT)])
    ledger.crashed([2], alone=True)
    ledger.crashed([2], alone=True)
    ledger.quarantine(2, "kills the engine")
    ledger.commit("w", [failed(1, "no room")])
    write_results(ledger, job, openai=True, output=str(out))
    assert read(out) == []
    assert read(errors_file(str(out))) == [
        {
            "id": "batch_req_1_0",
            "custom_id": "a",
            "response": None,
            "error": {"code": "request_failed", "message": "no room"},
            "source": "/in.jsonl:1",
        },
        {
            "id": "batch_req_1_1",
            "custom_id": "b",
            "response": None,
            "error": {"code": "quarantined", "message": "kills the engine"},
            "source": "/in.jsonl:1",
        },
    ]


def test_standard_output_has_the_failed_requests_too(ledger: Ledger, job: JobRecord) -> None:
    ledger.add_requests(job.id, [request("a", 1, url=CHAT), request("b", error="bad", url=CHAT)])
    ledger.commit("w", [done(1)])
    stream = io.BytesIO()
    assert write_results(ledger, job, openai=True, output="-", stdout=stream) == ResultCounts(done=1, failed=1)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["custom_id"], line["response"] is None) for line in lines] == [("a", False), ("b", True)]


# -- files -----------------------------------------------------------------------------------------


def some(ledger: Ledger, job: JobRecord, text: str = "fine") -> None:
    ledger.add_requests(job.id, [request("a", 1)])
    ledger.commit("w", [done(1, text)])


def test_nothing_but_the_output_is_left_behind(ledger: Ledger, job: JobRecord, out: Path) -> None:
    some(ledger, job)
    write_results(ledger, job, openai=False, output=str(out))
    assert beside(out) == ["out.jsonl"]


def test_an_errors_file_of_ours_goes_when_there_are_none(ledger: Ledger, job: JobRecord, out: Path) -> None:
    ledger.add_requests(job.id, [request("a", 1)])
    ledger.commit("w", [failed(1)])
    write_results(ledger, job, openai=False, output=str(out))
    assert beside(out) == ["out.jsonl", "out.jsonl.errors.jsonl"]
    ledger.begin_job(spec())
    ledger.commit("w", [done(1)])
    write_results(ledger, job, openai=False, output=str(out))
    assert beside(out) == ["out.jsonl"]


def test_a_file_of_somebody_else_with_that_name_stays(ledger: Ledger, job: JobRecord, out: Path) -> None:
    errors_file(str(out)).write_text("my notes\n")
    some(ledger, job)
    write_results(ledger, job, openai=False, output=str(out))
    assert errors_file(str(out)).read_text() == "my notes\n"


@pytest.mark.parametrize("name", ["out.jsonl", "out.parquet"])
def test_a_full_disk_leaves_the_old_output_whole(ledger: Ledger, job: JobRecord, tmp_path: Path, name: str) -> None:
    out = tmp_path / name
    out.write_text("the old one")
    ledger.add_requests(job.id, [request(f"r{n}", n) for n in range(40)])
    ledger.commit("w", [done(number, os.urandom(50_000).hex()) for number in range(1, 41)])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(StorageError, match="cannot be written"):
            write_results(ledger, job, openai=False, output=str(out))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert out.read_text() == "the old one"
    assert beside(out) == [name]


def test_a_folder_that_is_not_there_is_a_storage_error(ledger: Ledger, job: JobRecord, tmp_path: Path) -> None:
    some(ledger, job)
    with pytest.raises(StorageError, match="cannot be written"):
        write_results(ledger, job, openai=False, output=str(tmp_path / "none" / "out.jsonl"))


def test_a_link_is_written_through_and_the_mode_kept(ledger: Ledger, job: JobRecord, tmp_path: Path) -> None:
    real, link = tmp_path / "real.jsonl", tmp_path / "link.jsonl"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    some(ledger, job)
    write_results(ledger, job, openai=False, output=str(link))
    assert link.is_symlink()
    assert read(real)[0]["id"] == "a"
    assert real.stat().st_mode & 0o777 == 0o640


def test_a_pipe_is_written_and_stays_a_pipe(ledger: Ledger, job: JobRecord, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    some(ledger, job)
    write_results(ledger, job, openai=False, output=str(pipe))
    assert json.loads(os.read(reader, 1 << 16))["id"] == "a"
    os.close(reader)
    assert pipe.is_fifo()


def test_writing_twice_gives_the_same_bytes(ledger: Ledger, job: JobRecord, out: Path) -> None:
    ledger.add_requests(job.id, [request("a", 1, url=CHAT), request("b", error="bad", url=CHAT)])
    ledger.commit("w", [done(1)])
    write_results(ledger, job, openai=True, output=str(out))
    first = out.read_bytes(), errors_file(str(out)).read_bytes()
    write_results(ledger, job, openai=True, output=str(out))
    assert (out.read_bytes(), errors_file(str(out)).read_bytes()) == first


# -- Parquet ---------------------------------------------------------------------------------------


def test_a_parquet_output_has_the_flat_columns(ledger: Ledger, job: JobRecord, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    out = tmp_path / "out.parquet"
    extras = [{"year": 1, "score": 1, "mixed": 1}, {"year": None, "score": 2.5, "mixed": "x", "ok": True}, {}]
    ledger.add_requests(job.id, [request(f"r{n}", n, extra=json.dumps(extra)) for n, extra in enumerate(extras)])
    ledger.commit("w", [done(1, "one"), failed(2, "no room")])
    counts = write_results(ledger, job, openai=True, output=str(out))
    assert counts == ResultCounts(done=1, failed=1, open=1)
    table = parquet.read_table(out)
    assert table.column_names == [
        *("id", "text", "finish_reason", "input_tokens", "output_tokens", "error"),
        *("year", "score", "mixed", "ok"),
    ]
    assert table.to_pylist() == [
        {
            **{"id": "r0", "text": "one", "finish_reason": "stop", "input_tokens": 3, "output_tokens": 2},
            **{"error": None, "year": 1, "score": 1.0, "mixed": "1", "ok": None},
        },
        {
            **{"id": "r1", "text": None, "finish_reason": "error", "input_tokens": 0, "output_tokens": 0},
            **{"error": "no room", "year": None, "score": 2.5, "mixed": '"x"', "ok": True},
        },
    ]
    assert [line["id"] for line in read(errors_file(str(out)))] == ["r1"]


def test_a_parquet_output_may_hold_lists_of_texts_and_no_row_at_all(
    ledger: Ledger, job: JobRecord, tmp_path: Path
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    out = tmp_path / "out.parquet"
    write_results(ledger, job, openai=False, output=str(out))
    assert parquet.read_table(out).num_rows == 0
    ledger.add_requests(job.id, [request("a", 1, 2), request("b", 3)])
    ledger.commit("w", [done(1, "x"), done(2, "y"), done(3, "z")])
    write_results(ledger, job, openai=False, output=str(out))
    assert parquet.read_table(out).select(["text", "texts"]).to_pylist() == [
        {"text": None, "texts": ["x", "y"]},
        {"text": "z", "texts": None},
    ]


def test_parquet_without_pyarrow_says_what_to_install(
    ledger: Ledger, job: JobRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"-m pip install 'mlx-fleet\[parquet\]'"):
        write_results(ledger, job, openai=False, output=str(tmp_path / "out.parquet"))
    assert not list(tmp_path.glob("*.parquet*"))
