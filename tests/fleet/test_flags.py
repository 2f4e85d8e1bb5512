"""Wrong flags are told in one sentence."""

import argparse
from pathlib import Path

import pytest

from fleet.errors import UsageError
from fleet.flags import FlagParser, folder, integer, place, positive


def parser() -> FlagParser:
    made = FlagParser("fleet probe")
    made.add_argument("--temperature", type=float)
    made.add_argument("--system")
    made.add_argument("--stop", action="append")
    made.add_argument("-o", "--output", required=True)
    made.add_argument("words", nargs="*")
    return made


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--outptu", "x"], "there is no --outptu, did you mean --output? `fleet probe --help` tells all"),
        (["--temp=1"], "there is no --temp, did you mean --temperature? `fleet probe --help` tells all"),
        (["--zzz", "-o", "x"], "there is no --zzz; `fleet probe --help` tells all"),
        ([], "the following arguments are required: -o/--output; `fleet probe --help` tells all"),
    ],
)
def test_a_wrong_flag_comes_before_what_is_missing(argv: list[str], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        parser().parse(argv)
    assert str(caught.value) == sentence


def test_words_that_only_look_like_flags_are_values() -> None:
    found = parser().parse(["-o", "x", "--system", "-- be nice", "--stop=--end", "--", "--zzz"])
    assert (found.system, found.stop, found.words) == ("-- be nice", ["--end"], ["--zzz"])


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "", "many", "٣", str(1 << 63), "9" * 5000])
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="from 1 up"):
        positive(text)


@pytest.mark.parametrize("text", ["", "a", "1.0", str(1 << 63)])
def test_what_is_no_integer_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="64 bits"):
        integer(text)


def test_numbers_come_as_they_are_written() -> None:
    assert (positive("007"), integer("-5")) == (7, -5)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("", "found an empty name"), ("n" * 300, "a name of 300 bytes is too long"), ("/d/" * 9000, "is too long")],
)
def test_what_names_no_file_is_refused(text: str, sentence: str) -> None:
    # An empty input or model was the current folder; a long one was a traceback.
    with pytest.raises(argparse.ArgumentTypeError, match=sentence):
        place(text)


@pytest.mark.parametrize("text", ["-", "org/name", "not/there", "caf\udce9.txt", "a b\nc"])
def test_any_other_name_is_taken_as_it_is(text: str) -> None:
    assert place(text) == text
    assert folder(text) == Path(text)


def test_a_folder_that_was_removed_under_our_feet_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(argparse.ArgumentTypeError, match="the current folder is gone"):
        place("in.jsonl")
    assert place("/in.jsonl") == "/in.jsonl"
