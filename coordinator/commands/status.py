"""Shows the fleet: jobs, Macs, and what happened lately.

  fleet status                     drawn again every second on a terminal, printed once elsewhere; Ctrl-C leaves
  fleet status --json | jq .macs
  fleet status --watch --json      a line of JSON every second
  fleet status --watts studio=270,air=30 --price 0.32      with what a million new tokens cost

A figure like 1,180/1,300 is the new tokens per second now, and what was measured or planned. A Mac is joining, loading
model, measuring knee, working, idle, paused, throttled, leaving, stale (gives no sign of life), lost (its rows are back
in the pool), kicked, or present: on the network and not joined.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from coordinator.broker_socket import find_broker
from coordinator.dispatch import Dispatch
from coordinator.local_status import LocalStatus, running_job
from coordinator.status_views import Source
from coordinator.tariff import add_tariff_flags, tariff
from fleet.config import StateDir
from fleet.errors import BrokerError, Exit, NoCoordinatorError, UsageError
from fleet.flags import folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `fleet status`."""
    parser.add_argument("--watch", action="store_true", help="go on until Ctrl-C, also where nobody draws")
    parser.add_argument("--json", action="store_true", help="print the snapshot as JSON; with --watch, one a line")
    parser.add_argument("--rq", action="store_true", help="show the queues in the broker instead, as RQ has them")
    add_tariff_flags(parser)
    parser.add_argument("--state-dir", type=folder, metavar="DIR", help="the record's folder (~/.local/state/fleet)")


def main(args: argparse.Namespace) -> int:
    """Shows the fleet; 0, also after Ctrl-C."""
    from coordinator import status_views as views

    if args.price is not None and args.watts is None:
        raise UsageError("--price needs --watts: what the Macs draw while they work")
    state = StateDir(args.state_dir.absolute()) if args.state_dir else StateDir.default()
    if args.rq:
        return _show_queues(state, as_json=args.json)
    source, costs = _source(state), tariff(args)

    def show() -> None:
        (views.print_json if args.json else views.print_once)(source, sys.stdout, costs)

    if not args.json and views.can_draw(sys.stdout):
        views.draw(source, sys.stdout, costs)
    elif args.watch:
        views.repeat(show, views.LIVE_S if args.json else views.PRINT_S)
    else:
        show()
    return int(Exit.OK)


def _source(state: StateDir) -> Source:
    """Where snapshots come from; NoCoordinatorError when there is nothing to show."""
    if running_job(state) is None:
        raise NoCoordinatorError(
            f"no fleet is known, and no `fleet run` works on {state.root}: start one with `fleet up` or `fleet run`"
        )
    return LocalStatus(state)


def _show_queues(state: StateDir, *, as_json: bool) -> int:
    """Prints the queues of this machine's broker; it changes nothing there, which `rq info` would."""
    url = find_broker(state)
    if url is None:
        raise BrokerError(f"no broker of {state.root} runs on this machine")
    dispatch = Dispatch(url)
    try:
        queues = dispatch.queues()
    finally:
        dispatch.close()
    if as_json:
        print(json.dumps([asdict(queue) for queue in queues]))
        return int(Exit.OK)
    if not queues:
        print("no queues")
    for queue in queues:
        held = ", ".join(f"{count:,} {name}" for name, count in queue.registries.items() if count)
        print(f"{queue.queue}: {queue.waiting:,} waiting, {queue.taking:,} being taken" + (f", {held}" if held else ""))
    return int(Exit.OK)
