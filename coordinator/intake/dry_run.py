"""`fleet run --dry-run`: reads and checks the whole input as a run would, counts its tokens, computes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable

from coordinator.intake.first_uses import FirstUses
from coordinator.intake.intake import Intake
from coordinator.ledger.requests import already_used
from coordinator.records import NewRequest
from coordinator.screens import failures
from coordinator.screens.failures import Failures
from coordinator.screens.wording import counted
from fleet.errors import Exit


class DryRun:
    """What was found in an input."""

    def __init__(self, *, keep_errors: bool) -> None:
        """`keep_errors` keeps every error beside the kinds."""
        self.requests = self.rows = self.tokens = self.failed = 0
        self.failures = Failures()
        #: sentences with file:line, in input order
        self.errors: list[str] = []
        self._keep = keep_errors
        self._first_uses = FirstUses()

    def add(self, requests: Iterable[NewRequest]) -> None:
        """Counts these requests."""
        for request in requests:
            self.requests += 1
            error = self._repeated(request) or request.error
            if error is None:
                self.rows += len(request.rows)
                self.tokens += sum(row.length for row in request.rows)
                continue
            self.failed += 1
            self.failures.add(error, request.custom_id, request.source)
            if self._keep:
                self.errors.append(f"{request.source}: {error}")

    def _repeated(self, request: NewRequest) -> str | None:
        if request.custom_id is None or request.made_id:  # one that intake made gives way to another
            return None
        first = self._first_uses.before(request.custom_id, request.source)
        return None if first is None else already_used(request.custom_id, str(first))

    def text(self) -> str:
        """What was found, for a person."""
        found = f"{counted(self.requests, 'request')}, {counted(self.rows, 'row')}, "
        found += f"{counted(self.tokens, 'prompt token')}, {counted(self.failed, 'bad line')}; nothing was run"
        return "\n".join([found, *failures.lines(self.failures.kinds())])


def dry_run(intake: Intake, *, as_json: bool) -> Exit:
    """Reads the input and prints what is in it; FAILED_REQUESTS when a line is bad."""
    run = DryRun(keep_errors=as_json)
    for chunk in intake.chunks():
        run.add(chunk)
    if as_json:
        found = {"requests": run.requests, "rows": run.rows, "input_tokens": run.tokens}
        print(json.dumps({**found, "errors": run.errors, "warnings": intake.warnings}))
    else:
        print(run.text())
    return Exit.FAILED_REQUESTS if run.failed else Exit.OK
