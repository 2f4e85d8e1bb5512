"""Uploads over plain HTTP: what is refused, what breaks off, and that nothing is left of either."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from coordinator.api import uploads as uploads_module
from coordinator.api.replies import BODY_BYTES
from coordinator.api.uploads import Uploads, safe_name
from fleet.config import StateDir
from fleet.errors import StorageError
from tests.api_fleet import ApiFleet
from tests.runner import wait_until

BOUNDARY = "b0undary"


def form(*parts: tuple[str, str | None, bytes], end: bool = True) -> bytes:
    """A multipart form of (name, filename, content)."""
    made = b""
    for name, filename, content in parts:
        named = f'; filename="{filename}"' if filename is not None else ""
        head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{named}\r\n\r\n'
        made += head.encode() + content + b"\r\n"
    return made + (f"--{BOUNDARY}--\r\n".encode() if end else b"")


PURPOSE = ("purpose", None, b"batch")
FILE = ("file", "b.jsonl", b"{}\n")


class Asker:
    """Raw requests with the key."""

    def __init__(self, fleet: ApiFleet) -> None:
        self._fleet = fleet

    def __call__(
        self, method: str, path: str, body: bytes | Iterator[bytes] | None = None, **headers: str
    ) -> tuple[int, Any]:
        kept = {"Authorization": f"Bearer {self._fleet.key}", **{k.replace("_", "-"): v for k, v in headers.items()}}
        line = http.client.HTTPConnection("127.0.0.1", self._fleet.server.port, timeout=20)
        try:
            line.request(method, path, body, kept)
            answer = line.getresponse()
            return answer.status, json.loads(answer.read() or b"null")
        finally:
            line.close()

    def upload(self, body: bytes) -> tuple[int, Any]:
        return self("POST", "/v1/files", body, Content_Type=f"multipart/form-data; boundary={BOUNDARY}")


@pytest.fixture
def ask(fleet: ApiFleet) -> Asker:
    return Asker(fleet)


def left(fleet: ApiFleet) -> list[Path]:
    """Everything in the folder of uploads."""
    # os.walk passes over a folder that goes while it looks
    tree = os.walk(fleet.state.root / "uploads")
    return [Path(at) / name for at, folders, files in tree for name in (*folders, *files)]


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (form(FILE), 400, "purpose: found None"),
        (form(("purpose", None, b"fine-tune"), FILE), 400, "purpose: found 'fine-tune'"),
        (form(FILE, ("purpose", None, b"x")), 400, "purpose: found 'x'"),
        (form(PURPOSE), 400, "file: the form has none"),
        (form(PURPOSE, ("file", "b.jsonl", b"")), 400, "file: it is empty"),
        (form(PURPOSE, FILE, FILE), 400, "several files"),
        (form(("purpose", None, b"b" * 5000), FILE), 400, "expected a short field"),
        (form(*[(f"f{n}", None, b"") for n in range(20)]), 400, "over 16 fields"),
        (form(PURPOSE, FILE, end=False), 400, "the multipart form is broken"),
        (b"not a form at all", 400, "the multipart form is broken"),
    ],
)
def test_a_form_that_cannot_be_is_refused_and_leaves_nothing(
    ask: Asker, fleet: ApiFleet, body: bytes, status: int, message: str
) -> None:
    got, answer = ask.upload(body)
    assert (got, answer["error"]["type"]) == (status, "invalid_request_error")
    assert message in answer["error"]["message"]
    assert left(fleet) == []


def test_an_upload_in_another_form_is_415(ask: Asker) -> None:
    got, answer = ask("POST", "/v1/files", b"{}", Content_Type="application/json")
    assert (got, answer["error"]["code"]) == (415, "unsupported_media_type")


def test_fields_may_stand_in_any_order_and_an_expiry_is_ignored(ask: Asker) -> None:
    got, answer = ask.upload(form(("expires_after[seconds]", None, b"60"), FILE, PURPOSE))
    assert (got, answer["filename"], answer["bytes"], answer["expires_at"]) == (200, "b.jsonl", 3, None)


def test_an_upload_that_breaks_off_leaves_nothing(fleet: ApiFleet) -> None:
    head = (
        f"POST /v1/files HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {fleet.key}\r\nContent-Length: 1000000\r\n"
        f"Content-Type: multipart/form-data; boundary={BOUNDARY}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", fleet.server.port)) as line:
        line.sendall(head.encode() + form(PURPOSE, ("file", "b.jsonl", b"x" * 300_000), end=False))
        wait_until(lambda: any(path.name == "b.jsonl" for path in left(fleet)), story="the file")
    wait_until(lambda: not left(fleet), story="clearing up")


def test_what_a_killed_process_left_is_cleared_at_the_next_start(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    uploads = Uploads(state)
    with uploads.receive("whole.jsonl") as arrival:
        arrival.write(b"{}\n")
        kept = arrival.keep()
    broken = tmp_path / "uploads" / f"file-{'a' * 24}"
    broken.mkdir()
    (broken / "half.jsonl").write_text("{")
    uploads.clear_broken()
    assert not broken.exists()
    assert uploads.all() == [kept]
    assert uploads.path(kept).read_bytes() == b"{}\n"


def test_an_upload_for_which_there_is_no_room_is_413(
    ask: Asker, fleet: ApiFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")._replace(free=(64 << 20) + 200)
    monkeypatch.setattr(uploads_module, "shutil", SimpleNamespace(disk_usage=lambda _: usage, rmtree=shutil.rmtree))
    got, answer = ask.upload(form(PURPOSE, FILE))
    assert (got, answer["error"]["code"]) == (413, "no_room")
    chunks = iter([form(PURPOSE, FILE)])
    got, _ = ask("POST", "/v1/files", chunks, Content_Type=f"multipart/form-data; boundary={BOUNDARY}")
    assert got == 413
    assert left(fleet) == []


def test_a_folder_that_cannot_be_written_is_not_told(ask: Asker, fleet: ApiFleet) -> None:
    blocked = fleet.state.root / "uploads"
    shutil.rmtree(blocked, ignore_errors=True)
    blocked.write_text("")
    got, answer = ask.upload(form(PURPOSE, FILE))
    blocked.unlink()
    assert (got, answer["error"]["code"]) == (507, "storage")
    assert "cannot be written on the coordinator's Mac" in answer["error"]["message"]


def test_an_error_of_the_record_names_no_folder(ask: Asker, fleet: ApiFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    error = StorageError(f"{fleet.state.root / 'ledger.sqlite'} cannot be read")
    monkeypatch.setattr(fleet.service, "queues", Mock(side_effect=error))
    got, answer = ask("GET", "/fleet/queues")
    assert (got, answer["error"]["message"]) == (507, "the coordinator's state folder/ledger.sqlite cannot be read")


@pytest.mark.parametrize("path", ["/v1/files", "/fleet/status", "/nowhere"])
def test_without_the_key_there_is_nothing_not_even_a_404(fleet: ApiFleet, path: str) -> None:
    for said in (None, "", "Bearer", "Bearer wrong", f"Basic {fleet.key}", f"Bearer {fleet.key}x", "Bearer é"):
        line = http.client.HTTPConnection("127.0.0.1", fleet.server.port, timeout=20)
        line.request("GET", path, headers={} if said is None else {"Authorization": said.encode()})  # type: ignore[dict-item]
        answer = line.getresponse()
        assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert json.loads(answer.read())["error"]["code"] == "invalid_api_key"
        line.close()


@pytest.mark.parametrize(
    ("method", "path", "body", "kind", "status"),
    [
        ("GET", "/nowhere", None, "application/json", 404),
        ("GET", "/docs", None, "application/json", 404),
        ("PUT", "/v1/files", None, "application/json", 405),
        ("GET", "/v1/files/..%2f..%2fledger.sqlite", None, "application/json", 404),
        ("GET", "/v1/files/file-..%2fx/content", None, "application/json", 404),
        ("GET", "/v1/batches/batch_99", None, "application/json", 404),
        ("GET", "/v1/batches/99", None, "application/json", 404),
        ("POST", "/v1/batches", b"{", "application/json", 400),
        ("POST", "/v1/batches", b"[]", "application/json", 400),
        ("POST", "/v1/batches", b"[" * 100_000, "application/json", 400),
        ("POST", "/v1/batches", b"{}", "text/plain", 415),
        ("POST", "/v1/batches", b" " * (BODY_BYTES + 1), "application/json", 413),
        ("GET", "/fleet/jobs/7", None, "application/json", 404),
        ("GET", "/fleet/jobs/7/answers?form=exe", None, "application/json", 400),
        ("POST", "/fleet/token", b"{}", "application/json", 400),
    ],
)
def test_what_cannot_be_answered_has_openais_error_body(
    ask: Asker, method: str, path: str, body: bytes | None, kind: str, status: int
) -> None:
    got, answer = ask(method, path, body, Content_Type=kind)
    assert got == status
    assert answer.keys() == {"error"}
    assert answer["error"].keys() == {"message", "type", "param", "code"}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/embeddings"])
def test_a_single_question_is_told_that_only_batches_are_answered(ask: Asker, path: str) -> None:
    got, answer = ask("POST", path, b"{}")
    assert (got, answer["error"]["code"]) == (404, "not_found")
    assert answer["error"]["message"] == f"{path} is answered in batches only: send a file, then POST /v1/batches"


def test_status_is_the_snapshot_and_down_asks_for_an_end(ask: Asker, fleet: ApiFleet) -> None:
    got, status = ask("GET", "/fleet/status")
    assert (got, status["schema"], status["macs"][0]["state"]) == (200, 1, "working")
    assert ask("POST", "/fleet/down") == (200, {"state": "draining"})
    assert fleet.service.drained


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("mails.csv", "mails.csv"),
        ("../../etc/passwd", "passwd"),
        ("C:\\Users\\me\\in.jsonl", "in.jsonl"),
        ("..", "upload"),
        ("", "upload"),
        (".hidden.txt", "hidden.txt"),
        ("a\nb\0.txt", "a_b_.txt"),
        ("é" * 200 + ".jsonl", "é" * 97 + ".jsonl"),
        ("." + "x" * 300, "x" * 200),
        ("half \udc80.txt", "half _.txt"),
    ],
)
def test_a_name_becomes_that_of_a_file_in_one_folder(name: str, kept: str) -> None:
    assert safe_name(name) == kept
