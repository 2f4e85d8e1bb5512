"""Starts a fleet on this Mac: others join it with the line it prints, and jobs are submitted to it.

  fleet up                    prints `fleet join fl1-...@host:port`, then a line for whatever happens
  fleet up --work             this Mac works too
  fleet up --detach           returns once it is up; `fleet status` looks at it, `fleet down` ends it
  fleet up --local --work     for this Mac alone: nothing is opened to the network

Ctrl-C lets every worker finish the rows in its batch, then ends; Ctrl-C twice ends at once. Jobs that are not done go
on when `fleet up` is said again, and the Macs that joined come back by themselves.
"""

from __future__ import annotations

import argparse
import json
import logging
import socket
import sys
import time
from contextlib import suppress
from dataclasses import asdict

from coordinator.screens.snapshot import Event
from fleet.address import PORT
from fleet.config import StateDir
from fleet.errors import Exit
from fleet.flags import folder, port

#: Twice the requests that the two APIs take at once, each with a connection and a file, and room for strangers.
FILES = 2_000
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `fleet up`."""
    parser.add_argument("--work", action="store_true", help="this Mac works too")
    parser.add_argument("--detach", action="store_true", help="return once it is up")
    parser.add_argument("--local", action="store_true", help="stay on this Mac: no network, not advertised")
    parser.add_argument(
        "--port", type=port, default=PORT, metavar="P", help=f"where Macs join ({PORT}); the API is on the next one"
    )
    parser.add_argument("--name", metavar="NAME", help="the coordinator's name (this Mac's)")
    parser.add_argument("--state-dir", type=folder, metavar="DIR", help="the record's folder (~/.local/state/fleet)")
    parser.add_argument("--json", action="store_true", help="print what happens as JSON, an object a line")


def main(args: argparse.Namespace) -> int:
    """Runs the coordinator until it is ended; 0."""
    state = StateDir(args.state_dir.absolute()) if args.state_dir else StateDir.default()
    teller = Teller(as_json=args.json)
    if args.detach:
        from coordinator.control.detached import start

        teller.up(start(state, flags(args)))
    else:
        run(args, state, teller)
    return int(Exit.OK)


def flags(args: argparse.Namespace) -> list[str]:
    """The flags that another process is to be given."""
    given = [*(["--work"] if args.work else []), *(["--local"] if args.local else []), "--port", str(args.port)]
    return [*given, *(["--name", args.name] if args.name else [])]


def run(args: argparse.Namespace, state: StateDir, teller: Teller) -> None:
    """The coordinator itself."""
    from coordinator.control.fleet_run import FleetRun
    from coordinator.control.garbage import collect_seldom
    from coordinator.control.premises import FleetOptions, Premises
    from coordinator.control.processes import Processes
    from coordinator.ledger.ledger import Ledger
    from fleet import open_files

    state.make()
    open_files.allow(FILES)
    collect_seldom()
    with Ledger.open(state) as ledger:
        logging.basicConfig(filename=state.logs / "coordinator.log", level=logging.INFO, format=LOG_FORMAT)
        processes = Processes(state)
        processes.clear()
        name = args.name or socket.gethostname().partition(".")[0] or "coordinator"
        options = FleetOptions(name=name, port=args.port, work=args.work, local=args.local)
        with Premises(state, processes, options) as premises:
            FleetRun(premises, ledger, state, processes, on_event=teller.event).go(teller.up)


class Teller:
    """Says what happens: the join line on stdout, events on stderr; as JSON all on stdout."""

    def __init__(self, *, as_json: bool, secret: bool = False) -> None:
        """`secret`: what is said goes to a file, so the token is left out."""
        self._as_json = as_json
        self._secret = secret

    def up(self, token: str) -> None:
        """Macs can join with this token."""
        if self._secret:
            return
        if self._as_json:
            self._print(json.dumps({"token": token, "join": f"fleet join {token}"}), sys.stdout)
        else:
            self._print(f"fleet join {token}", sys.stdout)

    def event(self, event: Event) -> None:
        """Something happened."""
        if self._as_json:
            self._print(json.dumps(asdict(event)), sys.stdout)
        else:
            self._print(f"{time.strftime('%H:%M:%S', time.localtime(event.at))}  {event.text}", sys.stderr)

    @staticmethod
    def _print(text: str, stream: object) -> None:
        with suppress(OSError):  # a terminal that went away must not end a fleet
            print(text, file=stream, flush=True)  # type: ignore[call-overload]
