"""Makes this Mac work for a fleet, until Ctrl-C or `fleet leave`.

  fleet join fl1-...@192.168.1.20:7633      the line that `fleet up` printed
  fleet join fl1-...                        looks for the coordinator on the local network
  fleet join                                again, later: what was needed is kept in the state folder
  FLEET_TOKEN=fl1-... fleet join            the token is on no command line
  fleet join --token-file token.txt --coordinator studio.local:7633

The coordinator is looked for where --coordinator says, else where FLEET_COORDINATOR says, else behind the @ of the
token, where it was last time, and on the local network for 3 seconds. It proves itself by its certificate before
anything is sent to it, and everything to and from it is encrypted.

A line is printed for each change. Ctrl-C once finishes the rows in the batch, gives the others back and leaves; Ctrl-C
twice leaves at once. When the coordinator goes away, this Mac waits for it. On battery, in heat, short of memory, and
while a file `paused` is in the state folder it takes no work. macOS does not go to sleep meanwhile.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from fleet.address import Address
from fleet.config import StateDir
from fleet.errors import UsageError
from fleet.flags import byte_size, folder, place, positive

TOKEN_VARIABLE = "FLEET_TOKEN"
COORDINATOR_VARIABLE = "FLEET_COORDINATOR"
_BATCH_HELP = "rows decoding together at most (the engine measures which batch is worth it)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `fleet join`."""
    parser.add_argument("token", nargs="?", metavar="TOKEN", help=f"as `fleet up` prints it; or in {TOKEN_VARIABLE}")
    parser.add_argument("--token-file", type=place, metavar="FILE", help="a file that holds the token")
    parser.add_argument(
        "--coordinator", type=_address, metavar="HOST:PORT", help="where the coordinator is (found by itself)"
    )
    parser.add_argument("--name", metavar="NAME", help="what to call this Mac (as its owner named it)")
    parser.add_argument("--batch", type=positive, default=0, metavar="N", help=_BATCH_HELP)
    parser.add_argument(
        "--memory",
        type=byte_size,
        default=0,
        metavar="SIZE",
        help="memory the engine may use, weights included, like 12G (what MLX says the machine allows)",
    )
    parser.add_argument("--on-battery", action="store_true", help="work on battery too")
    parser.add_argument("--state-dir", type=folder, metavar="DIR", help="what is kept here (~/.local/state/fleet)")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each change, on standard output")


def _address(text: str) -> Address:
    try:
        return Address.parse(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def main(args: argparse.Namespace) -> int:
    """Joins, then works until told to stop: 0 then, 4 when this Mac may not join or not any more."""
    _hide(args.token)
    from worker.herald import Herald
    from worker.joining import Joining, Options

    state = StateDir(args.state_dir) if args.state_dir else StateDir.default()
    state.make()
    options = Options(
        name=args.name or "", cap=args.batch, memory_bytes=args.memory, on_battery=args.on_battery, given=_given(args)
    )
    herald = Herald(_stdout if args.json else _stderr, as_json=args.json)
    try:
        return Joining(state, options, herald).go(_token(args))
    finally:
        herald.close()


def _given(args: argparse.Namespace) -> Address | None:
    """Where a person says that the coordinator is."""
    if args.coordinator is not None:
        return Address.parse(str(args.coordinator))
    told = os.environ.get(COORDINATOR_VARIABLE)
    try:
        return Address.parse(told) if told else None
    except UsageError as error:
        raise UsageError(f"{COORDINATOR_VARIABLE}: {error}") from error


def _token(args: argparse.Namespace) -> str | None:
    """The token as a person gives it, None for the kept one; the environment keeps it no longer."""
    told = os.environ.pop(TOKEN_VARIABLE, None)
    if args.token and args.token_file:
        raise UsageError("a token is given twice: as an argument and with --token-file")
    if args.token_file:
        try:
            return Path(args.token_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{args.token_file} cannot be read ({type(error).__name__})") from error
    return args.token or told


def _hide(token: str | None) -> None:
    """Starts this command anew with the token in its environment: a command line is there for all to read."""
    if token and token in sys.orig_argv:
        os.environ[TOKEN_VARIABLE] = token
        os.execv(sys.executable, [word for word in sys.orig_argv if word != token])


def _stdout(line: str) -> None:
    print(line, flush=True)


def _stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
