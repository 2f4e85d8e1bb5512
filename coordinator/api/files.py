"""/v1/files: uploads, and the outputs of batches that have ended."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from coordinator.api import multipart
from coordinator.api.batches import Batches, BatchRecord, written
from coordinator.api.pages import page
from coordinator.api.replies import ApiError, missing, wrong
from coordinator.api.uploads import Upload, Uploads
from coordinator.control.jobs_seen import OVER, JobSeen, JobsSeen

PURPOSE = "batch"
OUTPUT_PURPOSE = "batch_output"
_OUTPUT_ID = re.compile(r"file-(\d{1,18})-(output|errors)")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLine:
    """A file as the API tells of it."""

    id: str
    filename: str
    size_bytes: int
    #: unix seconds
    created: float
    purpose: str
    path: Path

    def as_dict(self) -> dict[str, Any]:
        """As OpenAI's file object."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.size_bytes,
            "created_at": int(self.created),
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "expires_at": None,
        }


class Files:
    """The handlers of /v1/files."""

    def __init__(self, uploads: Uploads, batches: Batches, jobs: JobsSeen) -> None:
        self._uploads = uploads
        self._batches = batches
        self._jobs = jobs

    def routes(self) -> list[Route]:
        """What this answers."""
        return [
            Route("/v1/files", self.create, methods=["POST"]),
            Route("/v1/files", self.list, methods=["GET"]),
            Route("/v1/files/{id}", self.show, methods=["GET"]),
            Route("/v1/files/{id}", self.delete, methods=["DELETE"]),
            Route("/v1/files/{id}/content", self.content, methods=["GET"]),
        ]

    async def create(self, request: Request) -> Response:
        """Takes an upload in; nothing is left of one that is refused or breaks off."""
        announced = request.headers.get("content-length", "")
        if announced.isdigit():
            await run_in_threadpool(self._uploads.check_room, int(announced))
        with multipart.open_form(request, self._uploads) as form:
            await multipart.receive(request, form)
            purpose = form.fields.get("purpose")
            if purpose != PURPOSE:
                raise wrong("purpose", f'found {purpose!r}, expected "{PURPOSE}"')
            if form.arrival is None:
                raise wrong("file", "the form has none")
            if not form.arrival.size_bytes:
                raise wrong("file", "it is empty", "empty_file")
            upload = await run_in_threadpool(form.arrival.keep)
        return JSONResponse(self._uploaded(upload).as_dict())

    def list(self, request: Request) -> Response:
        """Uploads and outputs, newest first."""
        lines = [self._uploaded(upload) for upload in self._uploads.all()]
        records = self._batches.all()
        jobs = self._jobs.look() if records else {}
        lines += [line for record in records for line in _outputs(record, jobs)]
        purpose = request.query_params.get("purpose")
        lines = [line for line in lines if purpose in (None, line.purpose)]
        newest_first = request.query_params.get("order", "desc") != "asc"
        lines.sort(key=lambda line: (line.created, line.id), reverse=newest_first)
        return page([line.as_dict() for line in lines], request.query_params, most=10_000, usual=10_000)

    def show(self, request: Request) -> Response:
        """What is known of a file."""
        return JSONResponse(self._find(request).as_dict())

    def content(self, request: Request) -> Response:
        """A file's bytes."""
        line = self._find(request)
        return FileResponse(line.path, media_type="application/octet-stream", filename=line.filename)

    def delete(self, request: Request) -> Response:
        """Removes a file that no batch still reads."""
        line = self._find(request)
        readers = [record for record in self._batches.all() if line.id in record.inputs]
        jobs = self._jobs.look() if readers else {}
        for record in readers:
            job = jobs.get(record.job)
            if job is not None and job.state not in OVER:
                raise ApiError(409, f"batch_{record.job} still reads {line.id}: cancel it first", code="in_use")
        if not self._uploads.delete(line.id):
            line.path.unlink(missing_ok=True)
        return JSONResponse({"id": line.id, "object": "file", "deleted": True})

    def _find(self, request: Request) -> FileLine:
        id = request.path_params["id"]
        upload = self._uploads.get(id)
        if upload is not None:
            return self._uploaded(upload)
        named = _OUTPUT_ID.fullmatch(id)
        record = self._batches.get(int(named[1])) if named else None
        for line in _outputs(record, self._jobs.look()) if record else ():
            if line.id == id:
                return line
        raise missing("file", id)

    def _uploaded(self, upload: Upload) -> FileLine:
        return FileLine(
            id=upload.id,
            filename=upload.filename,
            size_bytes=upload.size_bytes,
            created=upload.created,
            purpose=PURPOSE,
            path=self._uploads.path(upload),
        )


def _outputs(record: BatchRecord, jobs: Mapping[int, JobSeen]) -> list[FileLine]:
    """The files that a batch has written, once it is over."""
    job = jobs.get(record.job)
    if job is None or job.state not in OVER:
        return []
    found = [
        (output_id(record.job), record.output, f"output{Path(record.output).suffix}"),
        (errors_id(record.job), record.errors, "errors.jsonl"),
    ]
    return [
        FileLine(
            id=id,
            filename=f"batch_{record.job}_{name}",
            size_bytes=about.st_size,
            created=about.st_mtime,
            purpose=OUTPUT_PURPOSE,
            path=Path(path),
        )
        for id, path, name in found
        if (about := written(path))
    ]


def output_id(job: int) -> str:
    """Id of the file with a batch's answers."""
    return f"file-{job}-output"


def errors_id(job: int) -> str:
    """Id of the file with a batch's failed requests."""
    return f"file-{job}-errors"
