"""Takes this Mac out of its fleet: ends the `fleet join` that runs here, gently.

  fleet leave              finishes the rows in the batch, gives the others back, and waits until that is done
  fleet leave --forget     also forgets token and address: the next `fleet join` needs the token again

Its rows run on other Macs. Ctrl-C stops only the waiting: the Mac leaves all the same.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import time

from fleet.config import StateDir
from fleet.credentials import Credentials
from fleet.flags import folder

_POLL_S = 0.1
#: After so long without an end it is said that the batch is being finished, seconds.
_PATIENCE_S = 2.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `fleet leave`."""
    parser.add_argument("--forget", action="store_true", help="forget the fleet's token and address too")
    parser.add_argument("--state-dir", type=folder, metavar="DIR", help="what is kept here (~/.local/state/fleet)")
    parser.add_argument("--json", action="store_true", help="what was done, as JSON")


def main(args: argparse.Namespace) -> int:
    """Always 0: afterwards this Mac works for nobody."""
    state = StateDir(args.state_dir) if args.state_dir else StateDir.default()
    left = _leave(state)
    forgot = Credentials.forget(state) if args.forget else False
    if args.json:
        print(json.dumps({"left": left, "forgot": forgot}))
    else:
        done = "this Mac has left" if left else "this Mac works for no fleet"
        print(f"{done}{'; its token is forgotten' if forgot else ''}")
    return 0


def _leave(state: StateDir) -> bool:
    """Ends the running `fleet join`; False when there is none."""
    from worker.seat import Seat, home, runs

    holder = Seat.holder(home(state))
    if holder is None:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(holder.pid, signal.SIGTERM)
    began, told = time.monotonic(), False
    while runs(holder):
        if not told and time.monotonic() - began > _PATIENCE_S:
            print("finishing the rows in the batch", file=sys.stderr, flush=True)
            told = True
        time.sleep(_POLL_S)
    return True
