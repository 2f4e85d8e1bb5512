"""Ends the fleet of this Mac: every worker finishes the rows in its batch, then the coordinator stops.

  fleet down

Jobs that are not done go on when `fleet up` is said again; the Macs that joined wait for it.
"""

from __future__ import annotations

import argparse
import json

from coordinator.client.whereabouts import add_place_flags, find_place, state_dir
from fleet.errors import Exit, NoCoordinatorError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `fleet down`."""
    parser.add_argument("--json", action="store_true", help="print what became of it as JSON")
    add_place_flags(parser)


def main(args: argparse.Namespace) -> int:
    """Ends it and waits; 0."""
    from coordinator.client.ending import ask, await_end
    from coordinator.control.running import Running

    state = state_dir(args)
    place, running = find_place(args), Running.of(state)
    if place is None:
        raise NoCoordinatorError(f"no fleet runs on {state.root}: there is nothing to end")
    here = running if place.plain else None
    ask(place, here)
    ended = await_end(here) if here is not None else False
    if args.json:
        print(json.dumps({"state": "ended" if ended else "draining"}))
    else:
        print("the fleet is down" if ended else "the fleet finishes its batches, then it ends")
    return int(Exit.OK)
