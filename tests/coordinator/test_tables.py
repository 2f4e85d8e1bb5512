"""CSV and Parquet rows to records."""

import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coordinator.intake.formats import Record
from coordinator.intake.tables import read_csv, read_parquet, text_column
from fleet.errors import UsageError


def csv_records(tmp_path: Path, data: bytes, name: str = "t.csv", column: str | None = None) -> list[Record]:
    (tmp_path / name).write_bytes(data)
    return list(read_csv(tmp_path / name, column))


def test_rows_carry_the_line_they_start_on(tmp_path: Path) -> None:
    found = csv_records(tmp_path, b'id,text\n1,"two\nlines"\n\n2,one\n')
    assert [(record.source.line, record.value["text"]) for record in found] == [(2, "two\nlines"), (5, "one")]
    assert all(record.text_field == "text" for record in found)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.csv", b"\xef\xbb\xbfid,text\r\n1,x\r\n"),
        ("a.csv", b"id;text\n1;x\n"),
        ("a.tsv", b"id\ttext\n1\tx\n"),
        ("a.csv", b"id\ttext\n1\tx\n"),
    ],
)
def test_separators_line_ends_and_a_byte_order_mark_are_understood(tmp_path: Path, name: str, data: bytes) -> None:
    assert [record.value for record in csv_records(tmp_path, data, name)] == [{"id": "1", "text": "x"}]


def test_a_bad_row_is_an_error_of_its_own(tmp_path: Path) -> None:
    found = csv_records(tmp_path, b'id,text\n1\n2,caf\xe9\n3,"a"b\n4,x\n')
    assert found[1].value == {"id": "2", "text": "caf\ufffd"}
    assert [record.error for record in found] == [
        "found 1 fields, expected 2 as in the header",
        "not UTF-8: found byte 0xE9 in column 'text': save the file as UTF-8",
        "not CSV: ',' expected after '\"'",
        None,
    ]


def test_a_quote_that_never_ends_does_not_swallow_the_file_silently(tmp_path: Path) -> None:
    last = csv_records(tmp_path, b'id,text\n1,"open\n2,x\n')[-1]
    assert last.error == "not CSV: unexpected end of data"
    assert last.source.line == 2


def test_a_field_may_be_a_whole_document(tmp_path: Path) -> None:
    (record,) = csv_records(tmp_path, b"text\n" + b"a" * 500_000 + b"\n")
    assert len(record.value["text"]) == 500_000


def test_the_text_column_is_the_one_asked_for_or_obvious_or_an_error() -> None:
    assert text_column(["id", "prompt"], None, "t") == "prompt"
    assert text_column(["mail"], None, "t") == "mail"
    assert text_column(["id", "mail"], "mail", "t") == "mail"
    with pytest.raises(UsageError, match="only id, mail: choose one with --text-field"):
        text_column(["id", "mail"], None, "t")
    with pytest.raises(UsageError, match="no column 'post'"):
        text_column(["id", "mail"], "post", "t")
    with pytest.raises(UsageError, match="two columns named 'a'"):
        text_column(["a", "a"], None, "t")


def test_parquet_rows_carry_what_json_can_say(tmp_path: Path) -> None:
    columns = {
        "text": ["x", None],
        "day": [datetime.date(2026, 1, 2), None],
        "mass": [float("nan"), 1.5],
        "n": [[1], []],
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    found = list(read_parquet(tmp_path / "t.parquet", None))
    assert [record.value for record in found] == [
        {"text": "x", "day": "2026-01-02", "mass": None, "n": [1]},
        {"text": None, "day": None, "mass": 1.5, "n": []},
    ]
    assert [record.source.line for record in found] == [1, 2]


def test_a_file_that_is_not_parquet_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(b"nonsense")
    with pytest.raises(UsageError, match="cannot be read as Parquet"):
        list(read_parquet(tmp_path / "t.parquet", None))


def test_a_header_that_is_not_utf8_is_refused_with_its_line(tmp_path: Path) -> None:
    # Its columns' names were half of surrogate pairs: a traceback when they were recorded.
    with pytest.raises(UsageError, match=r"t\.csv:1: not UTF-8: found byte 0xFF in the header: save"):
        csv_records(tmp_path, b"\xffk,text\na,b\n")
