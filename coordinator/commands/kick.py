"""Removes a worker from the fleet: its user, its connections; its rows run elsewhere. It cannot come back by itself.

fleet kick air

It may have kept the token, which opens the API and lets in whoever says to be another Mac: `fleet token --rotate` ends
that too.
"""

from __future__ import annotations

import argparse
import json
from urllib.parse import quote

from coordinator.client.whereabouts import add_place_flags, the_place
from fleet.errors import Exit


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
    print(json.dumps(answer) if args.json else f"{answer['kicked']} is out of the fleet; its rows run elsewhere")
    return int(Exit.OK)
