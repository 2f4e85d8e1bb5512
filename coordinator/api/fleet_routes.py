"""/fleet: what our own commands ask beyond OpenAI's API: the fleet's status, its jobs with what they have so far."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from coordinator.api.access import Access
from coordinator.api.replies import ApiError, body_of, missing, wrong
from coordinator.front_desk import FrontDesk
from coordinator.jobs_seen import OVER, JobSeen, JobsSeen
from coordinator.ledger import Ledger
from coordinator.results import STDOUT, ResultCounts, errors_file, write_results
from coordinator.running import Running
from fleet import token
from fleet.config import StateDir

#: Forms that answers come in: files, of which a flat one has lines for failed requests, or a stream that always has.
FORMS = ("jsonl", "parquet", "stream")
_READ_BYTES = 1 << 20


class FleetRoutes:
    """The handlers of /fleet."""

    def __init__(self, desk: FrontDesk, state: StateDir, jobs: JobsSeen, access: Access) -> None:
        self._desk = desk
        self._state = state
        self._jobs = jobs
        self._access = access

    def routes(self) -> list[Route]:
        """What this answers."""
        return [
            Route("/fleet/status", self.status, methods=["GET"]),
            Route("/fleet/jobs", self.jobs, methods=["GET"]),
            Route("/fleet/jobs/{job:int}", self.job, methods=["GET"]),
            Route("/fleet/jobs/{job:int}/cancel", self.cancel, methods=["POST"]),
            Route("/fleet/jobs/{job:int}/answers", self.answers, methods=["GET"]),
            Route("/fleet/jobs/{job:int}/errors", self.errors, methods=["GET"]),
            Route("/fleet/workers/{name}/kick", self.kick, methods=["POST"]),
            Route("/fleet/down", self.down, methods=["POST"]),
            Route("/fleet/token", self.token, methods=["GET"]),
            Route("/fleet/token", self.rotate, methods=["POST"]),
        ]

    def status(self, _: Request) -> Response:
        """The snapshot that `fleet status` draws."""
        return JSONResponse(asdict(self._desk.ask(lambda service: service.snapshot())))

    def jobs(self, _: Request) -> Response:
        """Every job, oldest first."""
        return JSONResponse([job.as_dict() for job in self._jobs.look().values()])

    def job(self, request: Request) -> Response:
        """One job."""
        return JSONResponse(self._find(request).as_dict())

    def cancel(self, request: Request) -> Response:
        """Asks for an end of a job; the job as it then is."""
        job = self._find(request)
        if job.state in OVER - {"cancelled"}:
            raise ApiError(409, f"job {job.id} has {job.state}, there is nothing to cancel", code="job_over")
        self._desk.ask(lambda service: service.cancel(job.id))
        return JSONResponse(self._find(request).as_dict())

    def answers(self, request: Request) -> Response:
        """What a job has answered so far."""
        form = request.query_params.get("form", FORMS[0])
        if form not in FORMS:
            raise wrong("form", f"found {form[:20]!r}, expected {' or '.join(FORMS)}")
        with self._written(self._find(request), form) as (output, counts):
            return _stream(output.open("rb"), asdict(counts))

    def errors(self, request: Request) -> Response:
        """The failed requests of a job, a line each."""
        with self._written(self._find(request), FORMS[0]) as (output, counts):
            listed = errors_file(str(output))
            return _stream((listed if listed.exists() else Path("/dev/null")).open("rb"), asdict(counts))

    def kick(self, request: Request) -> Response:
        """Removes a worker."""
        name = request.path_params["name"]
        return JSONResponse({"kicked": self._desk.ask(lambda service: service.kick(name))})

    def down(self, _: Request) -> Response:
        """Ends the coordinator once every worker has finished its batch."""
        self._desk.ask(lambda service: service.drain())
        return JSONResponse({"state": "draining"})

    def token(self, _: Request) -> Response:
        """The join token."""
        return JSONResponse({"token": self._desk.ask(lambda service: service.token(rotate=False))})

    async def rotate(self, request: Request) -> Response:
        """A new join token; from now on the key in it is the one that opens the API."""
        if (await body_of(request)).get("rotate") is not True:
            raise wrong("rotate", "expected true")
        text = await run_in_threadpool(self._desk.ask, lambda service: service.token(rotate=True))
        self._access.key = token.parse(text)[0].key
        running = await run_in_threadpool(Running.of, self._state)
        if running is not None:
            await run_in_threadpool(running.with_token(text).keep, self._state)
        return JSONResponse({"token": text})

    def _find(self, request: Request) -> JobSeen:
        number = request.path_params["job"]
        job = self._jobs.look().get(number)
        if job is None:
            raise missing("job", number)
        return job

    @contextmanager
    def _written(self, job: JobSeen, form: str) -> Iterator[tuple[Path, ResultCounts]]:
        """A job's answers as files that are gone afterwards; one that was opened meanwhile can be read to its end."""
        with (
            tempfile.TemporaryDirectory(prefix="answers-", dir=self._state.root) as folder,
            Ledger.read(self._state) as ledger,
        ):
            output = Path(folder) / f"answers.{form}"
            openai = ledger.is_openai(job.id)
            if form == "stream":
                with output.open("xb") as stream:
                    counts = write_results(ledger, job.status.record, openai=openai, output=STDOUT, stdout=stream)
            else:
                counts = write_results(ledger, job.status.record, openai=openai, output=str(output))
            yield output, counts


def _stream(file: IO[bytes], counts: dict[str, int]) -> Response:
    headers = {f"fleet-{name}": str(count) for name, count in counts.items()}
    return StreamingResponse(_blocks(file), media_type="application/octet-stream", headers=headers)


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while block := file.read(_READ_BYTES):
            yield block
