"""The application: every route behind the one door."""

from __future__ import annotations

import shutil
from collections.abc import Callable

from starlette.applications import Starlette
from starlette.middleware import Middleware

from coordinator.api.access import Access, Door
from coordinator.api.batch_routes import BatchRoutes
from coordinator.api.batches import Batches
from coordinator.api.files import Files
from coordinator.api.fleet_routes import FleetRoutes
from coordinator.api.replies import HANDLERS
from coordinator.api.uploads import Uploads
from coordinator.control.front_desk import FrontDesk
from coordinator.control.jobs_seen import JobsSeen
from coordinator.joining.accounts import Account
from coordinator.outputs.bundle import DRAFTS
from fleet.config import StateDir


def build_app(
    desk: FrontDesk, state: StateDir, key: str, account: Callable[[str], Account | None] = lambda _: None
) -> Starlette:
    """The API of the coordinator behind `desk`, whose record is in `state`; `key` opens it until the token is
    rotated, and so does that of each worker whose `account` is found."""
    access = Access(key, account)
    uploads, batches, jobs = Uploads(state), Batches(state), JobsSeen(desk, state)
    uploads.clear_broken()
    for folder in state.root.glob(f"{DRAFTS}*/"):  # being sent when a kill -9 came
        shutil.rmtree(folder, ignore_errors=True)
    app = Starlette(
        routes=[
            *Files(uploads, batches, jobs).routes(),
            *BatchRoutes(desk, state, uploads, batches, jobs).routes(),
            *FleetRoutes(desk, state, jobs, access).routes(),
        ],
        middleware=[Middleware(Door, access)],
        exception_handlers=HANDLERS,
    )
    app.state.folder = str(state.root)
    return app
