"""/v1/batches: jobs as OpenAI's clients order, watch and cancel them; and /v1/models."""

from __future__ import annotations

import time
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from coordinator.api.batch_view import batch_id, batch_object, job_of, outputs_of
from coordinator.api.batches import Batches, BatchRecord, written
from coordinator.api.files import errors_id, output_id
from coordinator.api.orders import Wanted, order
from coordinator.api.pages import page
from coordinator.api.replies import ApiError, body_of, missing
from coordinator.api.uploads import Uploads
from coordinator.control.front_desk import FrontDesk
from coordinator.control.jobs_seen import OVER, JobSeen, JobsSeen
from fleet.config import StateDir


class BatchRoutes:
    """The handlers of /v1/batches."""

    def __init__(self, desk: FrontDesk, state: StateDir, uploads: Uploads, batches: Batches, jobs: JobsSeen) -> None:
        self._desk = desk
        self._state = state
        self._uploads = uploads
        self._batches = batches
        self._jobs = jobs

    def routes(self) -> list[Route]:
        """What this answers."""
        return [
            Route("/v1/batches", self.create, methods=["POST"]),
            Route("/v1/batches", self.list, methods=["GET"]),
            Route("/v1/batches/{id}", self.show, methods=["GET"]),
            Route("/v1/batches/{id}/cancel", self.cancel, methods=["POST"]),
            Route("/v1/models", self.models, methods=["GET"]),
        ]

    async def create(self, request: Request) -> Response:
        """Orders a job."""
        wanted = Wanted.read(await body_of(request))
        return JSONResponse(await run_in_threadpool(self._order, wanted))

    def _order(self, wanted: Wanted) -> dict[str, Any]:
        output = self._batches.new_output()
        try:
            ordered = order(wanted, self._uploads, self._state, output)
            job = self._desk.ask(lambda service: service.submit(ordered))
        except BaseException:
            self._batches.drop_output(output)
            raise
        record = BatchRecord(
            job=job,
            input_file_id=wanted.input_file_id,
            endpoint=wanted.endpoint,
            completion_window=wanted.completion_window,
            metadata=wanted.metadata,
            model=ordered.options.model,
            output=ordered.output,
            created=time.time(),
        )
        self._batches.keep(record)
        return self._object(record, self._jobs.look()[job])

    def list(self, request: Request) -> Response:
        """Batches, newest first."""
        jobs = self._jobs.look()
        lines = [self._object(record, jobs[record.job]) for record in self._batches.all() if record.job in jobs]
        return page(lines, request.query_params, most=100, usual=20)

    def show(self, request: Request) -> Response:
        """One batch."""
        return JSONResponse(self._object(*self._find(request)))

    def cancel(self, request: Request) -> Response:
        """Asks for an end; the rows in the workers' batches are finished and kept."""
        record, job = self._find(request)
        if job.state in OVER:
            raise ApiError(409, f"{batch_id(job.id)} is over: {job.state}", code="batch_over")
        self._desk.ask(lambda service: service.cancel(job.id))
        record = self._batches.cancelling(record, time.time())
        return JSONResponse(self._object(record, self._jobs.look().get(job.id, job)))

    def models(self, _: Request) -> Response:
        """The models of the jobs there are and those that workers hold."""
        held = [mac.model for mac in self._desk.ask(lambda service: service.snapshot()).macs if mac.model]
        ordered = {job.status.record.spec.model: job.status.record.created for job in self._jobs.look().values()}
        names = sorted(ordered.keys() | set(held))
        lines = [
            {"id": name, "object": "model", "created": int(ordered.get(name, 0)), "owned_by": "fleet"}
            for name in names
            if name
        ]
        return JSONResponse({"object": "list", "data": lines})

    def _find(self, request: Request) -> tuple[BatchRecord, JobSeen]:
        id = request.path_params["id"]
        number = job_of(id)
        record = self._batches.get(number) if number is not None else None
        job = self._jobs.look().get(record.job) if record else None
        if record is None or job is None:
            raise missing("batch", id)
        return record, job

    def _object(self, record: BatchRecord, job: JobSeen) -> dict[str, Any]:
        answers = output_id(record.job), written(record.output)
        errors = errors_id(record.job), written(record.errors)
        return batch_object(record, job, outputs_of(job, answers, errors))
