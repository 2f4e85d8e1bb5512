"""Long documents as rows: parts that fit the context, then summaries of summaries until one is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from coordinator.intake import documents
from coordinator.intake.fields import NOTHING_SET, Settings
from coordinator.intake.prompts import Prompts
from coordinator.intake.rows import RowMaker
from coordinator.intake.tokens import Tokens
from coordinator.records import NewRow
from fleet.errors import RequestError
from fleet.job import Sampling

#: Joining two texts can make a token or two more than they have apart.
_SEAM_TOKENS = 4
#: Less text than this in a prompt is not worth a row.
_LEAST_ROOM_TOKENS = 16
_LEAST_SUMMARY_TOKENS = 8


class Parts:
    """Cuts the documents of one job and puts their summaries together."""

    def __init__(self, tokens: Tokens, prompts: Prompts, rows: RowMaker) -> None:
        self._tokens = tokens
        self._prompts = prompts
        self._rows = rows
        self._around_text = self._count(prompts.document("")) + _SEAM_TOKENS
        self._around_summaries = self._count(prompts.reduction([])) + _SEAM_TOKENS

    def cut(self, document: str, settings: Settings) -> tuple[NewRow, ...]:
        """The rows of a document that is over the context; RequestError when the context is too small for it."""
        summary = self._summary_tokens(self._rows.wanted(settings)[0])
        limit = self._rows.context - summary
        room = limit - self._around_text
        starts = self._tokens.starts(document)
        settings = replace(settings, max_tokens=summary)
        while room >= _LEAST_ROOM_TOKENS:
            parts = [part for part in documents.cut(document, starts, room) if not part.isspace()]
            encoded = self._tokens.encode([self._prompts.document(part) for part in parts])
            over = max(map(len, encoded)) // 4 - limit
            if over <= 0:
                return tuple(self._rows.row(tokens, settings) for tokens in encoded)
            room -= max(over, room // 16)  # tokens counted across a border differ; ask for less and look again
        raise self._too_small()

    def reduce(
        self, summaries: Sequence[str], sampling: Sampling | None = None, max_tokens: int | None = None
    ) -> tuple[NewRow, ...]:
        """The rows of the next level over `summaries`: one when they fit one prompt, else at most half as many."""
        texts = [text for text in summaries if text and not text.isspace()] or ["(empty)"]
        sampling = sampling or self._rows.sampling(NOTHING_SET)
        wanted = max_tokens or self._rows.wanted(NOTHING_SET)[0]
        whole = self._tokens.encode([self._prompts.reduction(texts)])[0]
        if len(whole) // 4 <= self._rows.context - wanted:
            return (self._rows.reduction(whole, sampling, wanted),)
        summary = self._summary_tokens(wanted)
        limit = self._rows.context - summary
        room = limit - self._around_summaries
        while room >= _LEAST_ROOM_TOKENS:
            encoded = self._tokens.encode([self._prompts.reduction(group) for group in self._grouped(texts, room)])
            over = max(map(len, encoded)) // 4 - limit
            if over <= 0:
                return tuple(self._rows.reduction(tokens, sampling, summary) for tokens in encoded)
            room -= max(over, room // 16)
        raise self._too_small()

    def _grouped(self, texts: Sequence[str], room: int) -> list[list[str]]:
        """Neighbours together; a summary over half of `room`, which no row of ours writes, is shortened to it."""
        half = room // 2 - _SEAM_TOKENS
        texts = [documents.head(text, self._tokens.starts(text), half) for text in texts]
        counts = [min(len(tokens) // 4, half) + _SEAM_TOKENS for tokens in self._tokens.encode(texts)]
        return [list(texts[start:end]) for start, end in documents.group(counts, room)]

    def _summary_tokens(self, wanted: int) -> int:
        """New tokens of a part or a middle level: such that two of its texts always fit the next prompt."""
        room = self._rows.context - self._around_summaries - 2 * _SEAM_TOKENS
        summary = min(wanted, room // 3, (room - wanted) // 2)
        if summary < _LEAST_SUMMARY_TOKENS:
            raise self._too_small()
        return summary

    def _count(self, text: str) -> int:
        return len(self._tokens.encode([text])[0]) // 4

    def _too_small(self) -> RequestError:
        return RequestError(
            f"the text is over the model's context of {self._rows.context:,} tokens, and that is too small "
            "to summarize it in parts: expected fewer max_tokens, or a model with a longer context"
        )
