"""Packages that some commands need and not everybody installs."""

from __future__ import annotations

import sys

#: What pip installs to read and write Parquet, and to draw pictures; quoted for a shell.
PARQUET_EXTRA = "'mlx-fleet[parquet]'"
PLOT_EXTRA = "'mlx-fleet[plot]'"


def how_to_install(*packages: str) -> str:
    """The command that installs packages, or arguments of pip, where this program runs."""
    return f"{sys.executable} -m pip install {' '.join(packages)}"
