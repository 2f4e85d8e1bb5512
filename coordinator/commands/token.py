"""Shows what lets another Mac into the fleet, or makes a new one.

  fleet token
  fleet token --rotate      the old one opens nothing any more; workers that have joined stay

Who has the token may join, and read and submit every job: pass it on as you would a password.
"""

from __future__ import annotations

import argparse
import json
import sys

from coordinator.client.whereabouts import add_place_flags, the_place
from fleet.errors import Exit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `fleet token`."""
    parser.add_argument("--rotate", action="store_true", help="make a new token first")
    parser.add_argument("--json", action="store_true", help="print token and API key as JSON")
    add_place_flags(parser)


def main(args: argparse.Namespace) -> int:
    """Prints the token; 0."""
    from coordinator.client.fleet_client import FleetClient
    from fleet.token import parse

    with FleetClient.reach(the_place(args)) as client:
        text = (
            client.post("/fleet/token", {"rotate": True})["token"]
            if args.rotate
            else client.get("/fleet/token")["token"]
        )
    if args.json:
        print(json.dumps({"token": text, "key": parse(text)[0].key}))
        return int(Exit.OK)
    print(text)
    if args.rotate:
        print("fleet: Macs that have joined stay, with their commands; all others need the new token", file=sys.stderr)
    return int(Exit.OK)
