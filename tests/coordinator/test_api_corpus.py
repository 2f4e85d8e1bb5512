"""The demo's short texts, from files like those of botocore."""

import gzip
import json
from pathlib import Path

import pytest

from coordinator.demo.api_corpus import MOST_WORDS, read_service, write_texts
from fleet.errors import UsageError


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Two versions of one service."""
    describe(tmp_path, "2006-03-01", {"DeleteDBBucket": {"documentation": "<p>Deletes a <b>bucket</b> &amp; all.</p>"}})
    describe(tmp_path, "2001-01-01", {"Old": {"documentation": "<p>Old.</p>"}})
    return tmp_path


def describe(package: Path, version: str, operations: dict[str, dict[str, str]]) -> None:
    folder = package / "data" / "s3" / version
    folder.mkdir(parents=True, exist_ok=True)
    model = {"metadata": {"serviceId": "S3"}, "operations": operations}
    (folder / "service-2.json.gz").write_bytes(gzip.compress(json.dumps(model).encode()))


def test_a_text_is_the_service_the_operation_in_words_and_what_it_does(package: Path, tmp_path: Path) -> None:
    out = tmp_path / "texts.jsonl"
    assert write_texts(package, out) == 1
    assert json.loads(out.read_text()) == {
        "id": "s3.DeleteDBBucket",
        "text": "S3 Delete DB Bucket: Deletes a bucket & all.",
    }


def test_a_long_description_is_shortened_and_an_empty_one_left_out(package: Path) -> None:
    describe(package, "2010-01-01", {"Talk": {"documentation": "<p>word</p>" * 500}, "Silent": {}})
    ((name, text),) = read_service(package / "data" / "s3")
    assert name == "s3.Talk"
    assert len(text.split()) == 2 + MOST_WORDS


def test_an_equal_file_is_left_alone(package: Path, tmp_path: Path) -> None:
    out = tmp_path / "texts.jsonl"
    write_texts(package, out)
    before = out.stat()
    write_texts(package, out)
    assert out.stat().st_mtime_ns == before.st_mtime_ns
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".tmp"] == []


def test_a_package_without_descriptions_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="install the package botocore again"):
        write_texts(tmp_path, tmp_path / "texts.jsonl")
