"""The picture of a benchmark."""

import struct
from pathlib import Path

import pytest

from fleet.errors import StorageError, UsageError
from worker import plot
from worker.trial import Trial, table

TRIALS = [Trial(batch=batch, total_tps=10.0 * batch, prompt_tps=1, seconds=1, peak_bytes=1) for batch in (1, 2, 4)]
TABLES = [table(name, TRIALS, prompt_tokens=8, output_tokens=100) for name in ("short", "long")]


def test_without_matplotlib_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(plot, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"-m pip install 'mlx-fleet\[plot\]'"):
        plot.check(tmp_path / "a.png")


@pytest.mark.parametrize(("name", "reason"), [("a.jpg", "ends in .png"), ("none/a.png", "there is no folder")])
def test_a_picture_that_could_not_be_written_is_refused_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, reason: str
) -> None:
    monkeypatch.setattr(plot, "find_spec", lambda _: True)
    with pytest.raises(UsageError, match=reason):
        plot.check(tmp_path / name)
    plot.check(tmp_path / "a.png")


def test_tables_become_a_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot.draw(TABLES, "tiny on a machine", tmp_path / "bench.png")
    drawn = (tmp_path / "bench.png").read_bytes()
    assert drawn[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", drawn[16:24]) == (1200, 750)


def test_a_place_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "bench.png").mkdir()
    with pytest.raises(StorageError, match="cannot be written"):
        plot.draw(TABLES, "tiny", tmp_path / "bench.png")
