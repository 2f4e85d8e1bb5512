"""The `fleet` command: a table of commands; the module of a command is imported when it is called."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import TextIOWrapper

from fleet import __version__
from fleet.errors import Exit, FleetError, UsageError
from fleet.flags import FlagParser, did_you_mean


@dataclass(frozen=True, slots=True)
class Command:
    """One command: the module offers `add_arguments(parser)` and `main(args) -> int`."""

    module: str
    help: str


COMMANDS = {
    "up": Command("coordinator.commands.up", "start a fleet on this Mac, which others join and work for"),
    "down": Command("coordinator.commands.down", "end the fleet once every batch is finished"),
    "run": Command("coordinator.commands.run", "run a backlog on this machine and write every answer to a file"),
    "status": Command("coordinator.commands.status", "show the fleet: jobs, Macs, and what happened lately"),
    "plan": Command("coordinator.commands.plan", "say how long a backlog will take, before anything is computed"),
    "submit": Command("coordinator.commands.submit", "give a backlog to the fleet"),
    "watch": Command("coordinator.commands.watch", "follow a job of the fleet until it is over"),
    "jobs": Command("coordinator.commands.jobs", "list the jobs of the fleet, or of this Mac's own record"),
    "results": Command("coordinator.commands.results", "write the answers a job has so far"),
    "cancel": Command("coordinator.commands.cancel", "stop working on a job; what it has is kept"),
    "clean": Command("coordinator.commands.clean", "forget ended jobs and free the disk they use"),
    "join": Command("worker.commands.join", "make this Mac work for a fleet"),
    "leave": Command("worker.commands.leave", "take this Mac out of its fleet"),
    "kick": Command("coordinator.commands.kick", "remove a worker from the fleet"),
    "token": Command("coordinator.commands.token", "show what lets another Mac into the fleet, or make a new one"),
    "search": Command("coordinator.commands.search", "find the embedded texts that are nearest to a query"),
    "bench": Command("worker.commands.bench", "time a model on this machine and find the batch worth running"),
    "doctor": Command("coordinator.commands.doctor", "check what would otherwise be found out late"),
    "demo": Command("coordinator.commands.demo", "summarize or embed a real corpus with a small model"),
}

EPILOG = """\
start here:  fleet demo
             fleet run generate prompts.jsonl -m MODEL -o answers.jsonl

exit codes:  0 ok, 1 error, 2 usage, 3 finished with failed requests, 4 not let in,
             5 no coordinator, 6 no worker could be kept alive, 130 interrupted (says how to go on)
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Parses `argv`, calls the command, turns a FleetError into one sentence on stderr and its exit code."""
    args_in = list(sys.argv[1:] if argv is None else argv)
    _open_streams()
    try:
        try:
            return _dispatch(args_in)
        finally:
            sys.stdout.flush()  # here, where a reader that went away can still be met
    except FleetError as error:
        _tell(f"fleet: {error}")
        return int(error.exit_code)
    except KeyboardInterrupt:
        _tell("fleet: interrupted")
        return int(Exit.INTERRUPTED)
    except BrokenPipeError:
        _write_nowhere()  # the reader went away: nobody is left to tell
        return int(Exit.OK)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _write_nowhere()
        _tell("fleet: the output cannot be written: the disk is full")
        return int(Exit.ERROR)


def _write_nowhere() -> None:
    """Python's own flush at exit must find a place to write."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open_streams() -> None:
    """Gives a process that was started without stdout or stderr (`2>&-`) somewhere to write, and lets both take any
    text."""
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a file's name can be any bytes


def _tell(text: str) -> None:
    with suppress(OSError):  # the exit code still says it
        print(text, file=sys.stderr, flush=True)


def _dispatch(argv: list[str]) -> int:
    name = argv[0] if argv else ""
    if name and not name.startswith("-") and name not in COMMANDS:
        meant = did_you_mean(name, COMMANDS) or ";"
        raise UsageError(f"there is no command {name}{meant} `fleet --help` lists them")
    if name not in COMMANDS:
        _top_parser().parse(argv or ["--help"])
        raise UsageError("a command comes first; `fleet --help` lists them")
    command = COMMANDS[name]
    module = importlib.import_module(command.module)
    parser = FlagParser(f"fleet {name}", module.__doc__)
    module.add_arguments(parser)
    status: int = module.main(parser.parse(argv[1:]))
    return status


def _top_parser() -> FlagParser:
    width = max(map(len, COMMANDS))
    table = "\n".join(f"  {name:<{width}}  {command.help}" for name, command in COMMANDS.items())
    parser = FlagParser(
        "fleet", f"Runs a backlog of prompts on your Macs with MLX, overnight and without losing one.\n\n{table}"
    )
    parser.usage = "fleet COMMAND ...   (fleet COMMAND --help tells all about one)"
    parser.epilog = EPILOG
    parser.add_argument("--version", action="version", version=f"mlx-fleet {__version__}")
    return parser
