"""Orders that cannot be carried out, and how OpenAI's client hears of it."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import openai
import pytest

from tests.api_fleet import ApiFleet


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_file_id": "file-nowhere"}, "there is no file file-nowhere"),
        ({"endpoint": "/v1/responses"}, "expected /v1/chat/completions"),
        ({"endpoint": "/v1/completions"}, "the file's first line is for '/v1/chat/completions'"),
        ({"completion_window": "1h"}, "expected '24h'"),
        ({"metadata": {"fleet_tempreture": "1"}}, "did you mean fleet_temperature?"),
        ({"metadata": {"fleet_temperature": "hot"}}, "metadata.fleet_temperature: found 'hot', expected a number"),
        ({"metadata": {"fleet_temperature": "3"}}, "temperature: found 3"),
        ({"metadata": {"fleet_task": "translate"}}, "expected generate"),
        ({"metadata": {"fleet_model": "/no/such/folder"}}, "there is no model folder /no/such/folder"),
        ({"metadata": {"fleet_prompt_template": "/etc/passwd"}}, "expected the template itself"),
        ({"metadata": {"fleet_form": "npy"}}, "a .npy file holds vectors"),
        ({"metadata": {"fleet_task": "classify"}}, "classify needs labels"),
        ({"metadata": {"note": "x" * 513}}, "expected at most 512"),
        ({"metadata": {"fleet_more_inputs": "file-gone"}}, "there is no file file-gone"),
        ({"metadata": {"fleet_model": "org/\x1b[31mred"}}, "model: found 'org/\\x1b[31mred'"),
    ],
)
def test_an_order_that_cannot_be_is_refused_in_words(
    fleet: ApiFleet, model: Path, change: dict[str, object], message: str
) -> None:
    body = {"model": str(model), "messages": [{"role": "user", "content": "hello"}]}
    line = {"custom_id": "q", "method": "POST", "url": "/v1/chat/completions", "body": body}
    with openai.OpenAI(base_url=f"{fleet.url}/v1", api_key=fleet.key, max_retries=0) as client:
        uploaded = client.files.create(file=("b.jsonl", json.dumps(line).encode()), purpose="batch")
        order = {
            "input_file_id": uploaded.id,
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
            **change,
        }
        with pytest.raises(openai.BadRequestError) as caught:
            client.batches.create(**order)  # type: ignore[arg-type]
        assert message in caught.value.message
        assert client.batches.list().data == []


def test_half_a_character_in_an_order_is_refused_before_it_is_recorded(fleet: ApiFleet) -> None:
    """JSON can say "\\ud800", which no UTF-8 can: the ledger, asked to keep it, ended the coordinator at each start."""
    line = {"prompt": "hello", "model": "org/\ud800"}
    headers = {"authorization": f"Bearer {fleet.key}"}
    with httpx.Client(base_url=fleet.url, headers=headers) as client:
        uploaded = client.post("/v1/files", files={"file": ("b.jsonl", json.dumps(line))}, data={"purpose": "batch"})
        order = {"input_file_id": uploaded.json()["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        for metadata in ({}, {"note": "\ud800"}, {"fleet_model": "org/\ud800"}, {"fleet_system": "\ud800"}):
            answer = client.post("/v1/batches", content=json.dumps(order | {"metadata": metadata}))
            assert answer.status_code == 400, answer.text
        assert client.get("/v1/batches").json()["data"] == []
