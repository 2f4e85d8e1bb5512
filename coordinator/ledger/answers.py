"""Streams a job's requests with their outcomes, in input order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any

from coordinator.ledger.schema import ORDINAL_BITS, first_request
from coordinator.ledger.store import Store
from coordinator.records import Answer, Part, Place, Shape, Source
from fleet.job import Finish, RequestState

_ANSWERS = """
SELECT q.id, coalesce(q.custom_id, q.repeated_id), i.path, q.line, q.state, q.error, q.extra, q.url, q.shape,
    p.level = q.level, x.text, x.finish, x.input_tokens, x.output_tokens, x.reasoning, p.place, {vector}
FROM request q
CROSS JOIN input i ON i.id = q.input
LEFT JOIN part p ON p.request = q.id
LEFT JOIN result x ON x.row = p.row
WHERE q.id >= ? AND q.id < ?
ORDER BY q.id, p.level, p.ordinal
"""
_ORDINAL = (1 << ORDINAL_BITS) - 1


def stream_answers(store: Store, job: int, *, vectors: bool) -> Iterator[Answer]:
    """One moment's answers, with their `vectors` or without; one request at a time is held in memory."""
    query = _ANSWERS.replace("{vector}", "x.vector" if vectors else "NULL")
    with store.snapshot():
        lines = store.stream(query, (first_request(job), first_request(job + 1)))
        for _, group in groupby(lines, key=itemgetter(0)):
            yield _answer(list(group))


def _answer(lines: list[tuple[Any, ...]]) -> Answer:
    number, custom_id, path, line, state, error, extra, url, shape = lines[0][:9]
    done = [values[9:] for values in lines if values[10] is not None]
    return Answer(
        ordinal=number & _ORDINAL,
        custom_id=custom_id,
        source=Source(file=path, line=line),
        state=RequestState(state),
        error=error,
        extra=extra,
        url=url,
        shape=Shape(shape),
        parts=tuple(
            Part(
                text=text,
                finish=Finish(finish),
                input_tokens=taken,
                output_tokens=made,
                reasoning=reasoning,
                vector=vector or b"",
                place=_place(place),
            )
            for latest, text, finish, taken, made, reasoning, place, vector in done
            if latest
        ),
        input_tokens=sum(values[3] for values in done),
        output_tokens=sum(values[4] for values in done),
    )


def _place(stored: str | None) -> Place | None:
    if stored is None:
        return None
    text, start, end, cut_tokens = json.loads(stored)
    return Place(text=text, start=start, end=end, cut_tokens=cut_tokens)
