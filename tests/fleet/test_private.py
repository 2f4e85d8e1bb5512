"""Files for their owner alone."""

import os
import stat

import pytest

from fleet import private
from fleet.errors import StorageError


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_and_its_new_folder_are_for_the_owner_alone_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        private.write(tmp_path / "new" / "secret", "s")
    finally:
        os.umask(before)
    assert mode(tmp_path / "new" / "secret") == 0o600
    assert mode(tmp_path / "new") == 0o700


def test_a_file_that_was_open_to_all_is_not_any_more(tmp_path):
    path = tmp_path / "secret"
    path.write_text("old")
    path.chmod(0o644)
    private.write(path, "new")
    assert (private.read(path), mode(path)) == ("new", 0o600)
    assert [entry.name for entry in tmp_path.iterdir()] == ["secret"]


def test_what_cannot_be_written_is_told_and_leaves_no_draft(tmp_path):
    folder = tmp_path / "secret"
    folder.mkdir()
    with pytest.raises(StorageError, match="cannot be written"):
        private.write(folder, "s")
    assert [entry.name for entry in tmp_path.iterdir()] == ["secret"]


def test_what_is_not_there_reads_as_none_and_what_is_no_text_is_an_error(tmp_path):
    assert private.read(tmp_path / "none") is None
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(StorageError, match="cannot be read"):
        private.read(tmp_path / "bytes")
