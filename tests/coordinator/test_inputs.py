"""Inputs as a whole: checked at once, read in order, named by a signature."""

import os
from pathlib import Path

import pytest

from coordinator.inputs import check_inputs, records, signature
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
