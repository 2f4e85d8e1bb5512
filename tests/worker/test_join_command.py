"""The command around joining: where its token comes from, and that a command line does not keep it."""

import argparse
import os
import sys

import pytest

from fleet.address import Address
from fleet.errors import UsageError
from fleet.flags import FlagParser
from worker.commands import join


def parsed(*words):
    parser = FlagParser("fleet join")
    join.add_arguments(parser)
    return parser.parse(list(words))


@pytest.fixture(autouse=True)
def bare(monkeypatch):
    for name in (join.TOKEN_VARIABLE, join.COORDINATOR_VARIABLE):
        monkeypatch.delenv(name, raising=False)


def test_a_token_comes_from_the_command_line_before_the_environment(monkeypatch):
    monkeypatch.setenv(join.TOKEN_VARIABLE, "fl1-environment")
    assert join._token(parsed("fl1-argument")) == "fl1-argument"
    assert join.TOKEN_VARIABLE not in os.environ, "no child of ours needs it"


def test_a_token_comes_from_a_file_or_from_what_is_kept(monkeypatch, tmp_path):
    file = tmp_path / "token"
    file.write_text("fl1-file\n")
    monkeypatch.setenv(join.TOKEN_VARIABLE, "fl1-environment")
    assert join._token(parsed("--token-file", str(file))) == "fl1-file\n"
    assert join._token(parsed()) is None


def test_two_tokens_are_one_too_many(tmp_path):
    file = tmp_path / "token"
    file.write_text("fl1-file")
    with pytest.raises(UsageError, match="given twice"):
        join._token(parsed("fl1-argument", "--token-file", str(file)))


def test_a_token_file_of_other_bytes_is_told(tmp_path):
    file = tmp_path / "token"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot be read"):
        join._token(parsed("--token-file", str(file)))


def test_the_flag_says_where_before_the_environment(monkeypatch):
    assert join._given(parsed()) is None
    monkeypatch.setenv(join.COORDINATOR_VARIABLE, "studio:1")
    assert join._given(parsed()) == Address("studio", 1)
    assert join._given(parsed("--coordinator", "[::1]:2")) == Address("::1", 2)
    monkeypatch.setenv(join.COORDINATOR_VARIABLE, "no such place")
    with pytest.raises(UsageError, match="FLEET_COORDINATOR: expected"):
        join._given(parsed())


def test_the_command_begins_again_with_the_token_in_its_environment(monkeypatch):
    calls = []
    monkeypatch.setenv(join.TOKEN_VARIABLE, "")  # as it was comes back after the test
    monkeypatch.setattr(os, "execv", lambda program, words: calls.append((program, words)))
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "fleet", "join", "fl1-abc", "--name", "air"])
    join._hide("fl1-abc")
    assert calls == [(sys.executable, ["python", "-m", "fleet", "join", "--name", "air"])]
    assert os.environ[join.TOKEN_VARIABLE] == "fl1-abc"
    join._hide("fl1-other")
    join._hide(None)
    assert len(calls) == 1


@pytest.mark.parametrize("words", [["--batch", "0"], ["--memory", "many"], ["--coordinator", ":1"], ["a", "b"]])
def test_flags_that_are_wrong_are_told(words):
    with pytest.raises(UsageError):
        parsed(*words)


def test_an_address_error_is_one_of_the_parser():
    with pytest.raises(argparse.ArgumentTypeError, match="HOST:PORT"):
        join._address("a b")
