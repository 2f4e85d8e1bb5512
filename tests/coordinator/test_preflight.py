"""What is wrong with outputs and disks is found before any work."""

from pathlib import Path

import pytest

from coordinator.preflight import check_output, check_space
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

    monkeypatch.setattr("coordinator.preflight.shutil.disk_usage", lambda _: Usage)
    source = tmp_path / "in.jsonl"
    source.write_bytes(b"x" * (1 << 20))
    with pytest.raises(StorageError, match="5 MB free and this job may need 67 MB"):
        check_space([tmp_path], [str(source)])
