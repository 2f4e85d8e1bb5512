"""Lists in pages, as OpenAI's clients walk them: `limit` and `after`, the id of the last one seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import JSONResponse, Response

from coordinator.api.replies import wrong


def page(items: Sequence[dict[str, Any]], query: Mapping[str, str], *, most: int, usual: int) -> Response:
    """The page of `items` that `query` asks for; ApiError for a limit or an id that cannot be."""
    shown, more = cut(items, limit=_limit(query, most=most, usual=usual), after=query.get("after"))
    ends = {"first_id": shown[0]["id"], "last_id": shown[-1]["id"]} if shown else {"first_id": None, "last_id": None}
    return JSONResponse({"object": "list", "data": shown, **ends, "has_more": more})


def cut(items: Sequence[dict[str, Any]], *, limit: int, after: str | None) -> tuple[list[dict[str, Any]], bool]:
    """(`limit` items behind the one with the id `after`, whether there are more); ApiError for an unknown id."""
    start = 0
    if after is not None:
        start = next((at + 1 for at, item in enumerate(items) if item["id"] == after), -1)
        if start < 0:
            raise wrong("after", f"there is no {after} in this list")
    return list(items[start : start + limit]), start + limit < len(items)


def _limit(query: Mapping[str, str], *, most: int, usual: int) -> int:
    text = query.get("limit", str(usual))
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= most):
        raise wrong("limit", f"found {text[:20]!r}, expected a number from 1 to {most:,}")
    return int(text)
