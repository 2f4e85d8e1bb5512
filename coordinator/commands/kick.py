"""Removes a worker from the fleet: its user, its connections; its rows run elsewhere. It cannot come back by itself.

fleet kick air

Its own key of the API ends with that. Who copied the token from it can still use that, also to join as another Mac:
`fleet token --rotate` ends it, and leaves the other Macs as they are.
"""

from __future__ import annotations

import argparse
import json
import sys
from urllib.parse import quote

from coordinator.client.whereabouts import add_place_flags, the_place
from fleet.errors import Exit

_STILL = (
    "its owner may have copied the token, which still opens the API and lets another Mac in: "
    "`fleet token --rotate` makes a new one"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `fleet kick`."""
    parser.add_argument("name", metavar="NAME", help="the worker's name or id, see `fleet status`")
    parser.add_argument("--json", action="store_true", help="print its name as JSON")
    add_place_flags(parser)


def main(args: argparse.Namespace) -> int:
    """Kicks; 0."""
    from coordinator.client.fleet_client import FleetClient

    with FleetClient.reach(the_place(args)) as client:
        answer = client.post(f"/fleet/workers/{quote(args.name, safe='')}/kick")
    if args.json:
        print(json.dumps(answer))
    else:
        print(f"{answer['kicked']} is out of the fleet; its rows run elsewhere")
        print(f"fleet: {_STILL}", file=sys.stderr)
    return int(Exit.OK)
