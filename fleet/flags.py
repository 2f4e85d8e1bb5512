"""Parses a command's flags: what is wrong is one sentence, with the flag or word that was probably meant."""

from __future__ import annotations

import argparse
import errno
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import NoReturn

from fleet.errors import UsageError

#: Ids of SQLite and seeds end below this.
_INT64_END = 1 << 63
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class FlagParser(argparse.ArgumentParser):
    """A parser that raises UsageError where argparse would print its usage and exit; flags are never abbreviated."""

    def __init__(self, name: str, description: str | None = None) -> None:
        super().__init__(
            prog=name,
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """The flags in `argv`; UsageError for what is wrong, a flag that there is not before anything else."""
        unknown = next(_unknown_flags(argv, self._option_string_actions), None)
        if unknown is not None:
            self.error(f"there is no {unknown}{did_you_mean(unknown, self._option_string_actions)}")
        return self.parse_args(argv)

    def error(self, message: str) -> NoReturn:
        """Raises `message` as a UsageError that says where more is told."""
        end = "" if message.endswith("?") else ";"
        raise UsageError(f"{message.removeprefix('argument ')}{end} `{self.prog} --help` tells all")


def _unknown_flags(argv: Sequence[str], known: Collection[str]) -> Iterator[str]:
    """The long flags in `argv` that are not `known`; like argparse, takes a word with a space in it for a value."""
    for word in argv:
        if word == "--":
            return
        name = word.partition("=")[0]
        if word.startswith("--") and " " not in word and name not in known:
            yield name


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A question to put behind "there is no `word`", empty when nothing known begins with it or is like it."""
    known = list(known)
    near = [name for name in known if name.startswith(word)] or get_close_matches(word, known, n=1)
    return f", did you mean {near[0]}?" if near else ""


def one_of(words: Sequence[str]) -> Callable[[str], str]:
    """The type of an argument that is one of `words`."""

    def parse(text: str) -> str:
        if text not in words:
            meant = did_you_mean(text, words)
            raise argparse.ArgumentTypeError(f"found {text!r}, expected {' or '.join(words)}{meant}")
        return text

    return parse


def place(text: str) -> str:
    """The type of a file's or folder's name, there or not, or of a model's hub id."""
    if not text:
        raise argparse.ArgumentTypeError("found an empty name")
    try:
        path = Path(text).absolute()
    except FileNotFoundError as error:
        raise argparse.ArgumentTypeError("the current folder is gone: change to another") from error
    try:
        path.lstat()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            size = len(os.fsencode(text))
            raise argparse.ArgumentTypeError(f"a name of {size:,} bytes is too long for this system") from error
    return text


def folder(text: str) -> Path:
    """The type of a folder's name, there or not."""
    return Path(place(text))


def positive(text: str) -> int:
    """The type of a count."""
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0
    if not 0 < value < _INT64_END:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 up, found {text!r}")
    return value


def integer(text: str) -> int:
    """The type of a whole number of 64 bits."""
    try:
        value = int(text)
    except ValueError:
        value = _INT64_END
    if not -_INT64_END <= value < _INT64_END:
        raise argparse.ArgumentTypeError(f"expected a whole number of 64 bits, found {text!r}")
    return value


def byte_size(text: str) -> int:
    """The type of a size in bytes, or with K, M or G behind."""
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].upper() in _UNITS else (text, "")
    try:
        value = float(number) * _UNITS.get(unit, 1)
    except ValueError:
        value = 0.0
    if not 1 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a size like 12G, 800M or a number of bytes, found {text!r}")
    return int(value)


def port(text: str) -> int:
    """A port, 0 for any; for `type=`."""
    if not text.isdecimal() or int(text) >= 1 << 16:
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, found {text!r}")
    return int(text)


def job_id(text: str) -> int:
    """The type of a job's id."""
    try:
        return positive(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"expected a job's number as `fleet jobs` shows it, found {text!r}") from error
