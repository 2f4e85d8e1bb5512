"""Rows in, results out: text, stop strings and labels over token generation. The engine's one way to decode."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from fleet.job import Finish
from fleet.messages import Figures, RowResult
from worker.batching import TOKEN_BYTES, Row
from worker.generation.rows import GenRow
from worker.knee import Prefill
from worker.penalties import PenaltyProcessor, penalizes
from worker.prefixes import PrefixStore, unpack
from worker.sampling import LabelProcessor, LabelTrie, Processor, Samplers
from worker.solo import Generation
from worker.text import REPLACEMENT, StopWatch, Text, cut
from worker.thinking import TAIL_TOKENS, Tagged, Tags, Thought


@dataclass(slots=True)
class _Live:
    """A row in the batch; owned by the decoder."""

    row: Row
    #: new tokens, the end token left out
    kept: list[int] = field(default_factory=list)
    #: present when the row has stop strings
    watch: StopWatch | None = None
    #: stop strings that are one special token, which text never shows
    stop_ids: frozenset[int] = frozenset()
    #: present when the model may think before it answers
    thought: Thought | None = None
    #: present when the answer is one of labels
    trie: LabelTrie | None = None


class Decoder:
    """Decodes rows together. `insert` computes prompts, each `step` gives every row a token more."""

    def __init__(
        self,
        generation: Generation,
        text: Text,
        eos: frozenset[int],
        prefixes: PrefixStore | None = None,
        thinking: Tags | None = None,
    ) -> None:
        """Without `prefixes` every row's prompt is computed whole; `thinking` is for models that think."""
        self._generation = generation
        self._prefixes = prefixes
        self._text = text
        self._eos = eos
        self._tagged = Tagged(text, thinking) if thinking else None
        self._samplers = Samplers()
        self._live: dict[int, _Live] = {}
        self._output_tokens = 0
        self._prefix_tokens = 0
        self._step_cap = 0
        self._trie = functools.lru_cache(maxsize=8)(LabelTrie)

    @property
    def rows(self) -> list[Row]:
        """The rows in the batch."""
        return [live.row for live in self._live.values()]

    @property
    def running(self) -> tuple[tuple[int, int], ...]:
        """(row id, new tokens so far) of each row in the batch."""
        return tuple((id, len(live.kept)) for id, live in self._live.items())

    @property
    def prefix_bytes(self) -> int:
        """Bytes of the computed prefixes kept for rows to come."""
        return self._prefixes.nbytes if self._prefixes else 0

    def insert(self, rows: Sequence[Row]) -> None:
        """Computes the prompts of `rows` and lets them join."""
        lives = [self._enter(row) for row in rows]
        self._generation.insert([self._gen_row(live) for live in lives])

    def _enter(self, row: Row) -> _Live:
        stops = row.sampling.stop
        stop_ids = frozenset(id for stop in stops if (id := self._text.special_id(stop)) is not None)
        live = _Live(row, stop_ids=stop_ids, watch=StopWatch(self._text, stops) if stops else None)
        if row.sampling.labels:
            live.trie = self._trie(row.sampling.labels, row.sampling.label_tokens)
        elif self._tagged is not None:
            tail = unpack(row.prefix[-TAIL_TOKENS * TOKEN_BYTES :]) + row.tokens[-TAIL_TOKENS:]
            live.thought = Thought(self._tagged, tail)
        self._live[row.id] = live
        return live

    def _gen_row(self, live: _Live) -> GenRow:
        row = live.row
        prefix = self._prefixes.get(row.prefix) if self._prefixes and row.prefix else None
        self._prefix_tokens += len(prefix.tokens) if prefix else 0
        return GenRow(
            id=row.id,
            tokens=row.tokens if prefix else unpack(row.prefix) + row.tokens,
            prefix=prefix,
            # a label is never cut, and needs one step more for the end token when it goes on in a longer one
            max_tokens=max(row.max_tokens, live.trie.depth + 1) if live.trie else row.max_tokens,
            sampler=self._samplers.sampler(row.sampling, row.key),
            processor=self._processor(live),
        )

    def _processor(self, live: _Live) -> Processor | None:
        if live.trie is not None:
            return LabelProcessor(live.trie, self._eos)
        if penalizes(live.row.sampling):
            return PenaltyProcessor(live.row.sampling, unpack(live.row.prefix) + live.row.tokens)
        return None

    def step(self, cap: int) -> list[RowResult]:
        """One token more of each row; the results of rows that ended. `cap` is the one in force, for the figures."""
        steps = self._generation.step()
        if steps:
            self._step_cap += cap
        ended: list[RowResult] = []
        cut_short: list[int] = []
        for id, token, finish in steps:
            live = self._live[id]
            stopped = finish is not Finish.STOP and self._keep(live, token)
            if stopped and finish is None:
                cut_short.append(id)
            if stopped or finish is not None:
                ended.append(self._end(live, Finish.STOP if stopped or finish is None else finish))
        if cut_short:
            self._generation.remove(cut_short)
        return ended

    def _keep(self, live: _Live, token: int) -> bool:
        """Adds a token; True when it completes a stop string or a label that cannot go on."""
        answer = live.thought.push(token) if live.thought else (token,)
        if token in live.stop_ids and token in answer:
            return True
        live.kept.append(token)
        self._output_tokens += 1
        if live.trie is not None:
            node = live.trie.follow(live.kept)
            return node is not None and not node.children
        return live.watch is not None and any(map(live.watch.push, answer))

    def _end(self, live: _Live, finish: Finish) -> RowResult:
        del self._live[live.row.id]
        reasoning, answer, text = self._split(live)
        if finish is Finish.LENGTH:
            reasoning, text = reasoning.rstrip(REPLACEMENT), text.rstrip(REPLACEMENT)
            finish = Finish.THINKING if live.thought and live.thought.inside else finish
        elif not answer:
            finish = Finish.EMPTY
        return RowResult(
            id=live.row.id,
            text=text,
            finish=finish,
            input_tokens=live.row.prompt_tokens,
            output_tokens=len(live.kept),
            reasoning=reasoning,
        )

    def _split(self, live: _Live) -> tuple[str, Sequence[int], str]:
        """The row's thinking, the tokens of its answer, and the answer."""
        if live.trie is not None:
            node = live.trie.follow(live.kept)
            return "", live.kept, node.label if node is not None and node.label is not None else ""
        if live.thought is not None:
            reasoning, answer, text = live.thought.split(live.kept)
        else:
            reasoning, answer, text = "", live.kept, self._text.decode(live.kept)
        return reasoning, answer, cut(text, live.row.sampling.stop)

    def remove(self, ids: Iterable[int]) -> None:
        """Forgets those of these rows that are in the batch."""
        present = [id for id in ids if id in self._live]
        if present:
            self._generation.remove(present)
        for id in present:
            del self._live[id]

    def give_back(self) -> list[Row]:
        """Takes all rows out, with all they and the prefixes held; their answers begin anew elsewhere."""
        rows = self.rows
        self._output_tokens -= sum(len(live.kept) for live in self._live.values())
        self._live.clear()
        if self._prefixes:
            self._prefixes.clear()
        self._generation.reset()
        return rows

    def expect(self, slots: int) -> None:
        """From now on about `slots` rows run together."""
        self._generation.expect(slots)

    def prefill_as(self, setting: Prefill) -> None:
        """From now on prompts are computed like this."""
        self._generation.prefill_as(rows=setting.rows, tokens=setting.tokens)

    @property
    def shared_steps(self) -> int:
        """Steps that read a prefix once for all rows, and so less than a step without."""
        return self._generation.counters.shared_steps

    @property
    def figures(self) -> Figures:
        """Counters since the start."""
        counters = self._generation.counters
        return Figures(
            output_tokens=self._output_tokens,
            prompt_tokens=counters.prompt_tokens,
            shared_tokens=self._prefix_tokens - counters.prefix_tokens,
            padding_tokens=counters.padding_tokens,
            steps=counters.steps,
            step_rows=counters.step_rows,
            step_cap=self._step_cap,
            decode_s=counters.decode_s,
            prefill_s=counters.prefill_s,
            peak_bytes=mx.get_peak_memory(),
        )
