"""Shows the fleet that this Mac belongs to: jobs, Macs, and what happened lately; else the `fleet run` at work here.

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
from contextlib import closing
from dataclasses import asdict
from typing import Any

from coordinator.broker.broker_socket import find_broker
from coordinator.broker.dispatch import Dispatch
from coordinator.client.whereabouts import WAYS, add_place_flags, place_or_record, state_dir
from coordinator.planning.tariff import add_tariff_flags, tariff
from coordinator.screens.local_status import LocalStatus, running_job
from coordinator.screens.status_views import Source
from fleet.errors import BrokerError, Exit, NoCoordinatorError, UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `fleet status`."""
    parser.add_argument("--watch", action="store_true", help="go on until Ctrl-C, also where nobody draws")
    parser.add_argument("--json", action="store_true", help="print the snapshot as JSON; with --watch, one a line")
    parser.add_argument("--rq", action="store_true", help="show the queues in the broker instead, as RQ has them")
    add_tariff_flags(parser)
    add_place_flags(parser, record=True)


def main(args: argparse.Namespace) -> int:
    """Shows the fleet; 0, also after Ctrl-C."""
    from coordinator.screens import status_views as views

    if args.price is not None and args.watts is None:
        raise UsageError("--price needs --watts: what the Macs draw while they work")
    if args.rq:
        return _show_queues(args)
    source, costs = _source(args), tariff(args)

    def show() -> None:
        (views.print_json if args.json else views.print_once)(source, sys.stdout, costs)
        if args.watch and not args.json:
            print()

    if not args.json and views.can_draw(sys.stdout):
        views.draw(source, sys.stdout, costs)
    elif args.watch:
        views.repeat(show, views.LIVE_S if args.json else views.PRINT_S)
    else:
        show()
    return int(Exit.OK)


def _source(args: argparse.Namespace) -> Source:
    """Where snapshots come from; NoCoordinatorError when there is nothing to show."""
    from coordinator.screens.fleet_status import FleetStatus

    place, state = place_or_record(args), state_dir(args)
    if place is not None:
        return FleetStatus(place)
    if running_job(state) is None:
        raise NoCoordinatorError(f"no `fleet run` works on {state.root} and no fleet is known here: {WAYS}")
    return LocalStatus(state)


def _show_queues(args: argparse.Namespace) -> int:
    """Prints the broker's queues; it changes nothing there, which `rq info` would."""
    queues = _queues(args)
    if args.json:
        print(json.dumps(queues))
        return int(Exit.OK)
    if not queues:
        print("no queues")
    for queue in queues:
        held = "".join(f", {count:,} {name}" for name, count in queue["registries"].items() if count)
        print(f"{queue['queue']}: {queue['waiting']:,} waiting, {queue['taking']:,} being taken{held}")
    return int(Exit.OK)


def _queues(args: argparse.Namespace) -> list[dict[str, Any]]:
    from coordinator.client.fleet_client import FleetClient

    place, state = place_or_record(args), state_dir(args)
    if place is not None:
        with FleetClient.reach(place) as client:
            told: list[dict[str, Any]] = client.get("/fleet/queues")
        return told
    url = find_broker(state)
    if url is None:
        raise BrokerError(f"no broker of {state.root} runs on this machine")
    with closing(Dispatch(url)) as dispatch:
        return [asdict(queue) for queue in dispatch.queues()]
