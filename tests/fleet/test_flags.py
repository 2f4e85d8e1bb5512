"""Wrong flags are told in one sentence."""

import argparse

import pytest

from fleet.errors import UsageError
from fleet.flags import FlagParser, integer, positive


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
