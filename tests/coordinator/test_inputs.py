"""Inputs as a whole: checked at once, read in order, named by a signature."""

import io
import os
from pathlib import Path

import pytest

from coordinator.intake.folders import PACKED_SUFFIX, pack
from coordinator.intake.inputs import check_inputs, records, signature
from fleet.errors import UsageError


def test_each_kind_of_input_is_told_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "A"}\n')
    (tmp_path / "b.CSV").write_text("text\nB\n")
    (tmp_path / "c.txt").write_text("C")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "e.md").write_text("D")
    (tmp_path / "d" / ".hidden.txt").write_text("no")
    names = [str(tmp_path / name) for name in ("a.jsonl", "b.CSV", "c.txt", "d")]
    assert [record.value["text"] for record in records(names)] == ["A", "B", "C", "D"]


def test_files_of_a_folder_come_in_the_order_of_their_paths(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.txt", "a.txt", "a/b/c.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    assert [record.name for record in records([str(tmp_path)])] == ["a/b/c.md", "a/z.txt", "a.txt", "b.txt"]


def test_a_packed_folder_is_read_as_the_folder_was(tmp_path: Path) -> None:
    folder, packed = tmp_path / "d", tmp_path / f"d{PACKED_SUFFIX}"
    folder.mkdir()
    (folder / "a.txt").write_text("A")
    (folder / "b.txt").write_bytes(b"caf\xe9")
    packed.write_bytes(b"".join(pack(folder)))

    def told(name: Path) -> list[object]:
        return [(record.name, record.value, record.text_field, record.error) for record in records([str(name)])]

    assert told(packed) == told(folder)
    packed.write_text('{"id": "c", "text": 5}\n')
    assert told(packed) == [("", {"id": "c", "text": 5}, None, None)]


def test_an_input_twice_is_read_twice_but_standard_input_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A")
    assert len(list(records([str(tmp_path / "a.txt")] * 2))) == 2
    with pytest.raises(UsageError, match="only once"):
        check_inputs(["-", "-"])
    with pytest.raises(UsageError, match="no input"):
        check_inputs([])


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_input_without_permission_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A")
    (tmp_path / "a.txt").chmod(0)
    with pytest.raises(UsageError, match="no permission"):
        check_inputs([str(tmp_path / "a.txt")])


def test_a_file_that_vanished_between_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"gone\.jsonl cannot be read"):
        list(records([str(tmp_path / "gone.jsonl")]))


def test_the_signature_follows_every_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A")
    before = signature([str(tmp_path)])
    assert before == signature([str(tmp_path)])
    (tmp_path / "b.txt").write_text("B")
    grown = signature([str(tmp_path)])
    os.utime(tmp_path / "b.txt", ns=(1, 1))
    assert len({before, grown, signature([str(tmp_path)])}) == 3
    assert signature(["-"]) == ""


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("paper.pdf", b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n"),
        ("a.png", b"\x89PNG\r\n\x1a\n\x00\x00"),
        ("backlog.jsonl.gz", b"\x1f\x8b\x08\x00abc"),
        ("run.log", b"2026-01-01 started\n" * 50),
        ("noending", b"Dear all,\n"),
    ],
)
def test_a_file_of_another_kind_is_refused_as_a_whole(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UsageError, match=rf"{name} is not JSONL, CSV, .* known endings are \.jsonl, .*\.csv, .*\.txt"):
        list(records([str(tmp_path / name)]))


@pytest.mark.parametrize("name", ["requests.log", "requests"])
def test_an_unknown_ending_is_read_where_there_are_json_objects(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b'started\n\n{"text": "A"}\nbad\n')
    found = list(records([str(tmp_path / name)]))
    assert [(record.source.line, record.error is None) for record in found] == [(1, False), (3, True), (4, False)]


def test_a_jsonl_file_is_never_refused_for_bad_lines(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"bad\n" * 20)
    assert len(list(records([str(tmp_path / "a.jsonl")]))) == 20


def test_plain_text_on_standard_input_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\nDear all,\nhello\n")))
    with pytest.raises(UsageError, match=r"standard input is not JSONL: .* give its file, with an ending like \.txt"):
        list(records(["-"]))


def test_standard_input_may_begin_with_a_bad_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'bad\n{"text": "A"}\n')))
    assert [record.source.line for record in records(["-"])] == [1, 2]


def test_what_cannot_be_read_in_a_folder_is_an_error_of_its_own(tmp_path: Path) -> None:
    # A link to nothing was a traceback, a pipe was waited for without an end.
    (tmp_path / "a.txt").symlink_to("nothing")
    os.mkfifo(tmp_path / "b.txt")
    (tmp_path / "c.txt").write_text("C")
    (tmp_path / "d.txt").mkdir()
    first, second, third = records([str(tmp_path)])
    assert (first.name, first.error) == ("a.txt", "cannot be read: No such file or directory")
    assert (second.name, second.error) == ("b.txt", "cannot be read: not a regular file")
    assert third.value == {"text": "C"}
    assert signature([str(tmp_path)]) == signature([str(tmp_path)])


def test_a_folder_that_cannot_be_listed_is_an_error_and_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b.txt").write_text("B")
    really = os.scandir

    def scandir(path: str) -> object:
        if Path(path).name == "a":
            raise PermissionError(13, "Permission denied", path)
        return really(path)

    monkeypatch.setattr(os, "scandir", scandir)
    first, second = records([str(tmp_path)])
    assert (first.name, second.name) == ("a", "b.txt")
    assert (first.error or "").startswith("cannot be read")


def test_names_that_are_not_utf8_become_ids_that_differ(tmp_path: Path) -> None:
    # They could not be recorded: a traceback.
    for byte in (b"\xe8", b"\xe9"):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf" + byte + b".txt")).write_text("x")
    found = list(records([str(tmp_path)]))
    assert [record.name for record in found] == [r"caf\xe8.txt", r"caf\xe9.txt"]
    assert str(found[0].source) == rf"{tmp_path}/caf\xe8.txt"
