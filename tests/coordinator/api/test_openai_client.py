"""The official OpenAI client, changed only in base_url, api_key and trust."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx2
import openai
import pytest

from coordinator.client.fleet_client import FleetClient
from fleet import pin
from tests.api_fleet import ApiFleet
from tests.runner import wait_until


def batch_line(number: int, model: str, **body: object) -> str:
    messages = [{"role": "user", "content": f"question {number}"}]
    line = {"custom_id": f"q{number}", "method": "POST", "url": "/v1/chat/completions"}
    return json.dumps({**line, "body": {"model": model, "messages": messages, "max_tokens": 4, **body}})


@pytest.fixture
def secured(tmp_path: Path, model: Path) -> Iterator[ApiFleet]:
    with ApiFleet(tmp_path, model, tls=True) as running:
        yield running


@pytest.fixture
def client(secured: ApiFleet) -> Iterator[openai.OpenAI]:
    trust = pin.context(secured.certificate.path.read_text())
    with openai.OpenAI(
        base_url=f"{secured.url}/v1", api_key=secured.key, http_client=httpx2.Client(verify=trust), max_retries=0
    ) as made:
        yield made


def finished(client: openai.OpenAI, id: str) -> openai.types.Batch:
    wait_until(lambda: client.batches.retrieve(id).status in ("completed", "failed", "cancelled"), within_s=30)
    return client.batches.retrieve(id)


def test_fifty_lines_go_in_and_come_back_in_order(client: openai.OpenAI, model: Path, tmp_path: Path) -> None:
    backlog = tmp_path / "batch.jsonl"
    backlog.write_text("\n".join(batch_line(number, str(model)) for number in range(50)) + "\n")
    with backlog.open("rb") as stream:
        uploaded = client.files.create(file=stream, purpose="batch")
    assert (uploaded.filename, uploaded.bytes, uploaded.purpose) == (
        "batch.jsonl",
        backlog.stat().st_size,
        "batch",
    )
    made = client.batches.create(
        input_file_id=uploaded.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"note": "mine"},
    )
    assert made.status in ("validating", "in_progress", "finalizing", "completed")
    batch = finished(client, made.id)
    assert batch.status == "completed"
    assert batch.metadata == {"note": "mine"}
    assert batch.request_counts is not None
    assert batch.request_counts.model_dump() == {"total": 50, "completed": 50, "failed": 0}
    assert batch.created_at <= (batch.completed_at or 0)
    assert batch.error_file_id is None
    assert batch.output_file_id is not None
    lines = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    assert [line["custom_id"] for line in lines] == [f"q{number}" for number in range(50)]
    assert {line["response"]["status_code"] for line in lines} == {200}
    assert all(line["response"]["body"]["choices"][0]["message"]["content"].startswith("row ") for line in lines)


def test_what_failed_is_in_the_error_file(client: openai.OpenAI, secured: ApiFleet, model: Path) -> None:
    lines = [batch_line(0, str(model)), batch_line(1, str(model), tools=[{"type": "function"}]), "not json"]
    uploaded = client.files.create(file=("b.jsonl", "\n".join(lines).encode()), purpose="batch")
    made = client.batches.create(input_file_id=uploaded.id, endpoint="/v1/chat/completions", completion_window="24h")
    batch = finished(client, made.id)
    assert batch.request_counts is not None
    assert batch.request_counts.model_dump() == {"total": 3, "completed": 1, "failed": 2}
    assert batch.error_file_id is not None
    errors = [json.loads(line) for line in client.files.content(batch.error_file_id).text.splitlines()]
    assert [line["custom_id"] for line in errors] == ["q1", None]
    assert "tools" in errors[0]["error"]["message"]
    assert [line["source"] for line in errors] == ["b.jsonl:2", "b.jsonl:3"]
    with FleetClient(secured.url, secured.key, secured.certificate.path.read_text()) as ours:
        (job,) = ours.get("/fleet/jobs")
    assert job["inputs"] == ["b.jsonl"]
    assert str(secured.state.root) not in json.dumps(job), "folders of the coordinator are its own"
    about = client.files.retrieve(batch.error_file_id)
    assert about.purpose == "batch_output"


def test_a_batch_can_be_cancelled(client: openai.OpenAI, secured: ApiFleet, model: Path) -> None:
    secured.service.working.clear()
    uploaded = client.files.create(file=("b.jsonl", batch_line(0, str(model)).encode()), purpose="batch")
    made = client.batches.create(input_file_id=uploaded.id, endpoint="/v1/chat/completions", completion_window="24h")
    assert client.batches.retrieve(made.id).status == "validating"
    cancelled = client.batches.cancel(made.id)
    assert cancelled.status in ("cancelling", "cancelled")
    assert cancelled.cancelling_at is not None
    assert finished(client, made.id).status == "cancelled"
    with pytest.raises(openai.ConflictError, match="is over: cancelled"):
        client.batches.cancel(made.id)


def test_batches_are_walked_in_pages(client: openai.OpenAI, model: Path) -> None:
    uploaded = client.files.create(file=("b.jsonl", batch_line(0, str(model)).encode()), purpose="batch")
    made = [
        client.batches.create(input_file_id=uploaded.id, endpoint="/v1/chat/completions", completion_window="24h").id
        for _ in range(5)
    ]
    first = client.batches.list(limit=2)
    assert [batch.id for batch in first.data] == made[:2:-1]
    assert first.has_more is True
    assert [batch.id for batch in client.batches.list(limit=2)] == made[::-1]
    with pytest.raises(openai.BadRequestError, match="limit"):
        client.batches.list(limit=0)
    with pytest.raises(openai.BadRequestError, match="there is no batch_99 in this list"):
        client.batches.list(after="batch_99")


def test_files_are_listed_shown_and_deleted(client: openai.OpenAI) -> None:
    ids = [client.files.create(file=(f"{n}.jsonl", b"{}\n"), purpose="batch").id for n in range(3)]
    assert [file.id for file in client.files.list()] == ids[::-1]
    assert [file.id for file in client.files.list(order="asc", limit=1)] == ids
    assert client.files.content(ids[0]).content == b"{}\n"
    assert client.files.delete(ids[0]).deleted is True
    with pytest.raises(openai.NotFoundError, match=f"there is no file {ids[0]}"):
        client.files.retrieve(ids[0])


def test_an_input_is_kept_while_a_batch_reads_it(client: openai.OpenAI, secured: ApiFleet, model: Path) -> None:
    secured.service.working.clear()
    uploaded = client.files.create(file=("b.jsonl", batch_line(0, str(model)).encode()), purpose="batch")
    made = client.batches.create(input_file_id=uploaded.id, endpoint="/v1/chat/completions", completion_window="24h")
    with pytest.raises(openai.ConflictError, match=f"{made.id} still reads {uploaded.id}"):
        client.files.delete(uploaded.id)
    secured.service.working.set()
    batch = finished(client, made.id)
    assert client.files.delete(uploaded.id).deleted
    assert batch.output_file_id is not None
    assert client.files.delete(batch.output_file_id).deleted
    assert client.batches.retrieve(made.id).output_file_id is None


def test_a_job_that_failed_says_why(client: openai.OpenAI, secured: ApiFleet, model: Path) -> None:
    secured.service.working.clear()
    uploaded = client.files.create(file=("b.jsonl", batch_line(0, str(model)).encode()), purpose="batch")
    made = client.batches.create(input_file_id=uploaded.id, endpoint="/v1/chat/completions", completion_window="24h")
    secured.ask(lambda service: service.fail(1, "no worker can load it"))
    batch = client.batches.retrieve(made.id)
    assert batch.status == "failed"
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert [error.message for error in batch.errors.data] == ["no worker can load it"]


def test_models_are_those_of_jobs_and_workers(client: openai.OpenAI, model: Path) -> None:
    uploaded = client.files.create(file=("b.jsonl", batch_line(0, str(model)).encode()), purpose="batch")
    client.batches.create(input_file_id=uploaded.id, endpoint="/v1/chat/completions", completion_window="24h")
    assert {line.id for line in client.models.list()} == {str(model), "org/held"}


def test_a_wrong_key_is_an_authentication_error(client: openai.OpenAI) -> None:
    with pytest.raises(openai.AuthenticationError, match="send the fleet's key") as caught:
        client.with_options(api_key="wrong").files.list()
    assert caught.value.code == "invalid_api_key"
