"""Figures in sentences."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """`1 request`, `1,000 requests`; `noun` in the singular."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
