"""The `fleet` command: what it prints and which exit code it gives."""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from fleet import __version__, errors
from fleet.cli import COMMANDS, Command, main


def install(monkeypatch: pytest.MonkeyPatch, outcome: int | BaseException) -> None:
    """A command `probe` that returns or raises `outcome`."""
    module = ModuleType("probe_command", "Does what the test says.\n\n  fleet probe --loud")

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--loud", action="store_true")

    def run(args: argparse.Namespace) -> int:
        print("loud" if args.loud else "quiet")
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    module.__dict__.update(add_arguments=add_arguments, main=run)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(COMMANDS, "probe", Command(module.__name__, "a test's command"))


@pytest.mark.parametrize("status", [0, 1, 3])
def test_a_commands_status_is_the_exit_code(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    install(monkeypatch, status)
    assert main(["probe"]) == status


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.FleetError("x"), 1),
        (errors.UsageError("x"), 2),
        (errors.ModelError("x"), 1),
        (errors.StateLockedError("x"), 1),
        (errors.StorageError("x"), 1),
        (errors.BrokerError("x"), 1),
        (errors.EngineError("x"), 1),
        (errors.NoWorkersError("x"), 6),
        (errors.InterruptedRunError("x"), 130),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_is_one_sentence_and_its_own_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: errors.FleetError, code: int
) -> None:
    install(monkeypatch, error)
    assert main(["probe"]) == code
    assert capsys.readouterr().err == "fleet: x\n"


def test_ctrl_c_gives_130_and_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    install(monkeypatch, KeyboardInterrupt())
    assert main(["probe"]) == 130
    assert capsys.readouterr().err == "fleet: interrupted\n"


def test_an_error_nobody_meant_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, ZeroDivisionError("our bug"))
    with pytest.raises(ZeroDivisionError):
        main(["probe"])


def test_a_commands_flags_reach_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    install(monkeypatch, 0)
    main(["probe", "--loud"])
    assert capsys.readouterr().out == "loud\n"


@pytest.mark.parametrize("argv", [["no-such-command"], ["--no-such-flag"], ["probe", "--no-such-flag"]])
def test_wrong_usage_gives_2_and_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], argv: list[str]
) -> None:
    install(monkeypatch, 0)
    assert main(argv) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert said.err.startswith(f"fleet: there is no {'command ' if argv[0][0] == 'n' else ''}{argv[-1]}; `fleet ")


def test_the_command_that_was_meant_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rnu"]) == 2
    assert capsys.readouterr().err == "fleet: there is no command rnu, did you mean run? `fleet --help` lists them\n"


def test_help_tells_every_exit_code_that_a_command_gives(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    told = {int(code) for code in re.findall(r"\b(\d+) [a-z]", capsys.readouterr().out.partition("exit codes:")[2])}
    assert told == set(errors.Exit)


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"]])
def test_help_lists_every_command(capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(argv)
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert all(f"  {name} " in text and command.help in text for name, command in COMMANDS.items())


def test_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"mlx-fleet {__version__}\n"


def test_a_commands_help_is_its_modules_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch, 0)
    with pytest.raises(SystemExit) as stop:
        main(["probe", "--help"])
    assert stop.value.code == 0
    assert "fleet probe --loud" in capsys.readouterr().out


def test_a_reader_that_goes_away_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "fleet", "--help"]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    answer = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, env=buffered)
    os.close(writer)
    assert (answer.returncode, answer.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a full device")
def test_output_that_a_full_disk_does_not_take_is_told_in_a_sentence() -> None:
    command = [sys.executable, "-m", "fleet", "--help"]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with Path("/dev/full").open("w") as full:
        answer = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, env=buffered)
    assert (answer.returncode, answer.stderr) == (1, "fleet: the output cannot be written: the disk is full\n")


def test_python_m_fleet_is_fleet() -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "fleet", "--version"], capture_output=True, text=True, check=True, timeout=60
    )
    assert answer.stdout == f"mlx-fleet {__version__}\n"
