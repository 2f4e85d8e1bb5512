"""`fleet up` as a process of its own that outlives the command: `python -m coordinator.control.detached FLAGS...`."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from coordinator.commands import up
from coordinator.control.running import Running
from fleet.config import StateDir
from fleet.errors import FleetError
from fleet.flags import FlagParser

#: A coordinator that is not up by then will not be, seconds; a large ledger takes a few.
START_S = 120.0
POLL_S = 0.05


class StartError(FleetError):
    """Raised when the coordinator ended before it was up."""


def start(state: StateDir, flags: Sequence[str]) -> str:
    """Starts it and waits until Macs can join; the token with its address. StartError with its own last words."""
    state.make()
    log = state.logs / "up.log"
    begins = log.stat().st_size if log.exists() else 0
    command = [sys.executable, "-m", "coordinator.control.detached", *flags, "--state-dir", str(state.root)]
    with log.open("ab") as file:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True)
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        running = Running.of(state)
        if running is not None and running.pid == child.pid:
            return running.token
        if child.poll() is not None:
            raise StartError(_last_words(log, begins))
        time.sleep(POLL_S)
    child.terminate()
    raise StartError(f"the coordinator did not come up within {START_S:.0f} s: see {log}")


def _last_words(log: Path, begins: int) -> str:
    lines = log.read_bytes()[begins:].decode(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("fleet: ") if lines else f"the coordinator ended without a word: see {log}"


def main(argv: Sequence[str]) -> int:
    """Runs the coordinator; what it says goes to a file, so never the token."""
    parser = FlagParser("fleet up", up.__doc__)
    up.add_arguments(parser)
    args = parser.parse(list(argv))
    state = StateDir(args.state_dir.absolute())
    try:
        up.run(args, state, up.Teller(as_json=False, secret=True))
    except FleetError as error:
        print(f"fleet: {error}", file=sys.stderr, flush=True)
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
