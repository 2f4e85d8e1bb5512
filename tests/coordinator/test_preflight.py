"""What is wrong with outputs and disks is found before any work."""

import os
from pathlib import Path

import pytest

from coordinator.outputs.draft import draft
from coordinator.outputs.preflight import check_output, check_space, input_bytes
from coordinator.outputs.results import errors_file
from fleet.errors import StorageError, UsageError


def test_an_output_that_is_an_input_is_refused_through_a_link_too(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("{}\n")
    link = tmp_path / "link.jsonl"
    link.symlink_to(source)
    with pytest.raises(UsageError, match="also an input"):
        check_output(str(link), [str(source)])


def test_an_output_inside_an_input_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="lies in the input folder"):
        check_output(str(tmp_path / "out.jsonl"), [str(tmp_path)])


def test_a_missing_output_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere"):
        check_output(str(tmp_path / "nowhere" / "out.jsonl"), [])


def test_an_output_that_is_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder"):
        check_output(str(tmp_path), [])


@pytest.mark.parametrize("name", ["o.csv", "o.TSV"])
def test_a_table_of_text_is_no_output(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name}: answers are written as JSONL or Parquet"):
        check_output(name, [])


def test_standard_output_is_always_fine() -> None:
    assert check_output("-", ["-"]) is None


def test_a_full_disk_is_found_with_both_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 5 << 20

    monkeypatch.setattr("coordinator.outputs.preflight.shutil.disk_usage", lambda _: Usage)
    source = tmp_path / "in.jsonl"
    source.write_bytes(b"x" * (1 << 20))
    with pytest.raises(StorageError, match="5 MB free and this job may need 67 MB"):
        check_space([tmp_path], [str(source)])


def test_the_list_of_failed_requests_is_checked_like_the_output(tmp_path: Path) -> None:
    # An input of that name was deleted or overwritten.
    source = tmp_path / "o.jsonl.errors.jsonl"
    source.write_text("{}\n")
    with pytest.raises(UsageError, match=r"o\.jsonl\.errors\.jsonl is also an input"):
        check_output(str(tmp_path / "o.jsonl"), [str(source)])
    (tmp_path / "p.jsonl.errors.jsonl").mkdir()
    with pytest.raises(UsageError, match=r"p\.jsonl\.errors\.jsonl is a folder"):
        check_output(str(tmp_path / "p.jsonl"), [])


def test_an_output_is_refused_where_the_list_of_failed_requests_has_no_room_for_its_name(tmp_path: Path) -> None:
    # 244 characters passed, and failed when every answer was there: the draft of the file had a longer name.
    with pytest.raises(UsageError, match="too long"):
        check_output(str(tmp_path / ("o" * 244)), [])
    longest = tmp_path / ("o" * 242)
    check_output(str(longest), [])
    for place in (longest, errors_file(str(longest))):
        with draft(place) as paper:
            paper.keep()
        assert place.exists()


def test_links_to_nothing_and_pipes_have_no_size(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"12345")
    (tmp_path / "b.txt").symlink_to("nothing")
    os.mkfifo(tmp_path / "c.txt")
    assert input_bytes(tmp_path) == 5
    assert input_bytes(tmp_path / "gone") == 0


def test_what_is_written_beside_a_matrix_must_not_be_an_input(tmp_path: Path) -> None:
    source = tmp_path / "out.npy.ids.jsonl"
    source.touch()
    with pytest.raises(UsageError, match="is also an input"):
        check_output(str(tmp_path / "out.npy"), [str(source)])
