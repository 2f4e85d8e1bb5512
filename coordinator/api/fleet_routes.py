"""/fleet: what our own commands ask beyond OpenAI's API: the fleet's status, its jobs with what they have so far."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from coordinator.api.access import Access
from coordinator.api.replies import ApiError, body_of, missing, wrong
from coordinator.client import job_form
from coordinator.control.front_desk import FrontDesk
from coordinator.control.jobs_seen import OVER, JobSeen, JobsSeen
from coordinator.control.running import Running
from coordinator.ledger.ledger import Ledger
from coordinator.outputs import bundle
from coordinator.outputs.bundle import DRAFTS, STREAM
from coordinator.outputs.results import STDOUT, ResultCounts, write_results
from coordinator.records import JobRecord
from fleet import token
from fleet.config import StateDir

#: Endings of the outputs that answers can be had as.
FORMS = (*job_form.FORMS, STREAM)


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
            Route("/fleet/queues", self.queues, methods=["GET"]),
            Route("/fleet/jobs", self.jobs, methods=["GET"]),
            Route("/fleet/jobs/{job:int}", self.job, methods=["GET"]),
            Route("/fleet/jobs/{job:int}/cancel", self.cancel, methods=["POST"]),
            Route("/fleet/jobs/{job:int}/answers", self.answers, methods=["GET"]),
            Route("/fleet/workers/{name:path}/kick", self.kick, methods=["POST"]),
            Route("/fleet/down", self.down, methods=["POST"]),
            Route("/fleet/token", self.token, methods=["GET"]),
            Route("/fleet/token", self.rotate, methods=["POST"]),
        ]

    def status(self, _: Request) -> Response:
        """The snapshot that `fleet status` draws."""
        return JSONResponse(asdict(self._desk.ask(lambda service: service.snapshot())))

    def queues(self, _: Request) -> Response:
        """The broker's queues."""
        return JSONResponse([asdict(queue) for queue in self._desk.ask(lambda service: service.queues())])

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
        if job.state not in OVER:
            self._desk.ask(lambda service: service.cancel(job.id))
        return JSONResponse(self._find(request).as_dict())

    def answers(self, request: Request) -> Response:
        """What a job has answered so far: every file that `fleet results` writes, one behind the other."""
        form = request.query_params.get("form", FORMS[0])
        if form not in FORMS:
            raise wrong("form", f"found {form[:20]!r}, expected {' or '.join(FORMS)}")
        record = self._find(request).status.record
        folder = tempfile.TemporaryDirectory(prefix=DRAFTS, dir=self._state.root)
        try:
            counts = _write(self._state, record, Path(folder.name), form)
        except BaseException:
            folder.cleanup()
            raise
        told = {f"fleet-{name}": str(count) for name, count in asdict(counts).items()}
        return StreamingResponse(bundle.packed(folder), media_type="application/x-tar", headers=told)

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


def _write(state: StateDir, job: JobRecord, folder: Path, form: str) -> ResultCounts:
    output = folder / f"{bundle.NAME}.{form}"
    with Ledger.read(state) as ledger:
        openai = ledger.is_openai(job.id)
        if form != STREAM:
            return write_results(ledger, job, openai=openai, output=str(output))
        with output.open("xb") as stream:
            return write_results(ledger, job, openai=openai, output=STDOUT, stdout=stream)
