"""Checks what would otherwise be found out late: MLX, broker, disk, network, power. A line each.

  fleet doctor
  fleet doctor --json

A warning is worth knowing; what failed keeps the fleet from working, and its line says what to do.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from fleet.config import StateDir
from fleet.errors import Exit
from fleet.flags import folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `fleet doctor`."""
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    parser.add_argument("--state-dir", type=folder, metavar="DIR", help="the state folder (~/.local/state/fleet)")


def main(args: argparse.Namespace) -> int:
    """Prints the findings; 1 when something failed."""
    from coordinator.screens.checkup import Level, findings

    state = StateDir(args.state_dir.absolute()) if args.state_dir else StateDir.default()
    found = []
    for finding in findings(state):
        found.append(finding)
        if not args.json:
            print(f"{finding.level:<8} {finding.name:<10} {finding.said}", flush=True)
    if args.json:
        print(json.dumps([asdict(finding) for finding in found]))
    failed = any(finding.level is Level.FAILED for finding in found)
    return int(Exit.ERROR if failed else Exit.OK)
