"""Embedded texts as lines of output: flat, as OpenAI's embeddings, or as the id of a vector in a matrix. Pure.

A flat line is `{id, embedding, truncated, finish_reason, input_tokens, output_tokens, error}`, then the input's other
fields. A text in several pieces has `embeddings`, and in `spans` the characters [start, end] of each; one that was cut
says in `text_tokens` how many tokens it had in all.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import numpy as np

from coordinator.intake.fields import ENCODING_FORMAT
from coordinator.ledger.vectors import unpack
from coordinator.outputs.answer_lines import Line, carried
from coordinator.records import Answer, JobRecord, Part
from fleet.job import Finish, RequestState

#: Names in the lines and tables of this job's kind.
OWN_FIELDS = frozenset(
    {
        *("id", "embedding", "embeddings", "spans", "truncated", "text_tokens"),
        *("finish_reason", "input_tokens", "output_tokens", "error"),
        *("vector", "tokens", "index", "chunk", "start", "end"),
    }
)


def dtype_of(job: JobRecord) -> str:
    """Of the job's vectors."""
    dtype: str = json.loads(job.spec.options).get("dtype", "float32")
    return dtype


def flat_line(answer: Answer, dtype: str) -> Line:
    """One flat object for a request that ended."""
    done = answer.state is RequestState.DONE
    line: Line = {"id": answer.custom_id}
    places = [part.place for part in answer.parts if part.place is not None] if done else []
    if done and len(answer.parts) > 1:
        line["embeddings"] = [_numbers(part, dtype) for part in answer.parts]
        line["spans"] = [[place.start, place.end] for place in places]
    else:
        line["embedding"] = _numbers(answer.parts[0], dtype) if done else None
    cut = [place.cut_tokens for place in places if place.cut_tokens]  # one at most: a flat line has one text
    line["truncated"] = bool(cut)
    if cut:
        line["text_tokens"] = cut[0]
    line["finish_reason"] = (Finish.STOP if done else Finish.ERROR).value
    line |= {"input_tokens": answer.input_tokens, "output_tokens": 0, "error": answer.error}
    return line | carried(answer, OWN_FIELDS)


def openai_body(answer: Answer, job: JobRecord) -> Line:
    """The body of OpenAI's response. A text in several pieces has an entry for each, with its `start` and `end`."""
    packed = ENCODING_FORMAT in answer.extra  # the only field that intake keeps of such a line
    dtype = dtype_of(job)
    return {
        "object": "list",
        "data": [
            {
                "object": "embedding",
                "index": index,
                "embedding": _base64(part, dtype) if packed else _numbers(part, dtype),
            }
            | _span(part)
            for index, _, part in pieces(answer)
        ],
        "model": job.spec.model,
        "usage": {"prompt_tokens": answer.input_tokens, "total_tokens": answer.input_tokens},
    }


def id_lines(answer: Answer, *, several: bool) -> Iterator[Line]:
    """A line for each vector of the request; `several` says which of the request's texts it is."""
    fields = carried(answer, OWN_FIELDS) if not answer.url else {}
    for index, chunk, part in pieces(answer):
        place: Line = {"chunk": chunk} | _span(part) if _span(part) else {}
        line: Line = {"id": answer.custom_id} | ({"index": index} if several else {})
        yield line | {"tokens": part.input_tokens, "truncated": is_truncated(part)} | place | fields


def pieces(answer: Answer) -> Iterator[tuple[int, int, Part]]:
    """(number of the text in the request, number of the piece in the text, the piece), in order."""
    last, chunk = -1, 0
    for ordinal, part in enumerate(answer.parts):
        text = ordinal if part.place is None else part.place.text
        chunk = chunk + 1 if text == last else 0
        last = text
        yield text, chunk, part


def is_truncated(part: Part) -> bool:
    """Whether the rest of the text was left out."""
    return part.place is not None and part.place.cut_tokens > 0


def _span(part: Part) -> Line:
    """Where in its text a piece is, and that it is cut."""
    place = part.place
    if place is None:
        return {}
    cut = {"truncated": True, "text_tokens": place.cut_tokens} if place.cut_tokens else {}
    return {"start": place.start, "end": place.end} | cut


def _numbers(part: Part, dtype: str) -> list[float]:
    numbers: list[float] = unpack(part.vector, dtype).tolist()
    return numbers


def _base64(part: Part, dtype: str) -> str:
    """As OpenAI's clients read it: float32, little endian."""
    return base64.b64encode(unpack(part.vector, dtype).astype(np.dtype("<f4")).tobytes()).decode()
