"""A picture of benchmark tables. The only user of matplotlib, which is an extra."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from fleet.errors import StorageError, UsageError
from fleet.packages import PLOT_EXTRA, how_to_install
from worker.trial import Table


def check(path: Path) -> None:
    """Raises UsageError when no picture could be drawn at `path`; called before anything is measured."""
    if find_spec("matplotlib") is None:
        raise UsageError(f"--plot needs matplotlib: {how_to_install(PLOT_EXTRA)}")
    if path.suffix.lower() != ".png":
        raise UsageError(f"--plot makes a PNG: name a file that ends in .png, not {path.name}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"there is no folder {path.absolute().parent} for --plot")


def draw(tables: Sequence[Table], title: str, path: Path) -> None:
    """Total throughput against batch size, a line a table, with its knee marked."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    for shown in tables:
        batches, totals = [line.batch for line in shown.lines], [line.total_tps for line in shown.lines]
        (drawn,) = axes.plot(batches, totals, marker="o", label=f"{shown.name}: {shown.output_tokens:,} new tokens")
        at = batches.index(shown.knee)
        axes.plot([shown.knee], [totals[at]], marker="*", markersize=18, color=drawn.get_color(), linestyle="none")
        axes.annotate(f"knee {shown.knee}", (shown.knee, totals[at]), textcoords="offset points", xytext=(8, -14))
    axes.set(xlabel="batch", ylabel="total tok/s", title=title, ylim=(0, None))
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    try:
        figure.savefig(path, format="png", dpi=150)
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}") from error
