"""The batch: rows that decode together, one step at a time; rows join and leave without the others being copied."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from worker.generation.attention import StepAttention, step_attention
from worker.generation.choice import choose
from worker.generation.contest import Contest
from worker.generation.positions import Positions
from worker.generation.prefill import Prefix, compute_prefix, groups, prefill
from worker.generation.rows import Counters, GenRow, RunningRow, Step, shared_tokens
from worker.generation.slots import STEP_COLUMNS, slots_for

#: Steps between evaluations of all cache state: what no later step asks for would pile up as graph (mlx-lm issue 1845).
SETTLE_STEPS = 256
#: A gap is closed once it was computed in vain this often. Moving a row cost 10 steps of one slot on a CPU with wide
#: keys and tiny weights, and costs less where weights count.
MOVE_STEPS = 6
#: Buffers shrink when they need less than this share of their columns; a change copies them once.
SHRINK_SHARE = 0.6


class Ahead(Enum):
    """What is done for the next step before this one's tokens are read."""

    #: nothing: the next step knows who ended
    NOTHING = "nothing"
    #: its graph is built, and sent off once the tokens are there
    BUILD = "build"
    #: it is sent off
    SEND = "send"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flight:
    """A step under way: its tokens, (slots,), and the rows they are for, by slot."""

    tokens: mx.array
    rows: tuple[tuple[int, RunningRow], ...]


class Generation:
    """Rows decoding together with one model."""

    def __init__(
        self,
        model: Any,
        *,
        prefill_rows: int,
        prefill_tokens: int,
        eos: frozenset[int],
        slots: int = 1,
        ahead: Ahead | None = None,
        attention: StepAttention | None = None,
        contest: Contest | None = None,
    ) -> None:
        """`prefill_rows` prompts at most are computed together, about `prefill_tokens` tokens an evaluation.

        Memory is taken for `slots` rows from the start; more may run, at the price of a copy when they join.
        `ahead` and `attention` suit the device when not given; `contest` decides whether a shared prefix is read once.
        Raises TypeError naming the cache type when the model cannot batch.
        """
        self.counters = Counters()
        self._model = model
        self._prefill_rows = prefill_rows
        self._prefill_tokens = prefill_tokens
        self._eos = eos
        self._ahead = ahead or _suitable_ahead()
        self._attention = attention or step_attention(model)
        self._contest = contest or Contest()
        self._positions = Positions()
        self._caches = [slots_for(cache, self._positions) for cache in make_prompt_cache(model)]
        self._slots: list[RunningRow | None] = []
        self._expected, self._room = slots, (slots, 0)
        self._flight: _Flight | None = None
        self._early: list[Step] = []
        # slots computed for nobody since gaps were closed or filled
        self._idle_slots = 0

    @property
    def running(self) -> list[tuple[int, int]]:
        """(id, tokens made) of the rows in the batch."""
        return [(row.row.id, row.made) for row in self._slots if row is not None]

    @property
    def nbytes(self) -> int:
        """Bytes the batch's cached state takes."""
        return sum(array.nbytes for cache in self._caches for array in cache.arrays)

    def compute_prefix(self, tokens: Sequence[int]) -> Prefix:
        """Computes tokens that many rows begin with, once; its memory is the caller's to count."""
        start = time.perf_counter()
        prefix = compute_prefix(self._model, tokens, tokens_per_eval=self._prefill_tokens)
        self.counters.prompt_tokens += len(tokens)
        self.counters.prefix_tokens += len(tokens)
        self.counters.prefill_s += time.perf_counter() - start
        return prefix

    def expect(self, slots: int) -> None:
        """From the next joining on memory is taken for `slots` rows, or for as many as run."""
        self._expected = slots

    def prefill_as(self, *, rows: int, tokens: int) -> None:
        """From the next joining on so many prompts are computed together, so many tokens an evaluation."""
        self._prefill_rows, self._prefill_tokens = rows, tokens

    def reset(self) -> None:
        """Lets go of all rows and their memory, in whatever state an error left them."""
        self._caches = [slots_for(cache, self._positions) for cache in make_prompt_cache(self._model)]
        self._slots, self._flight, self._early = [], None, []
        self._room = (self._expected, 0)
        mx.clear_cache()

    def insert(self, rows: Sequence[GenRow]) -> None:
        """Computes the rows' prompts, all but the last token, and lets the rows join the next step."""
        if any(not row.tokens or row.max_tokens < 1 for row in rows):
            raise ValueError("a row needs at least one prompt token and room for one new token")
        self._land_early()
        start = time.perf_counter()
        self._make_room(rows)
        for together in self._cohorts(rows):
            self._join(together)
        mx.clear_cache()
        self.counters.prefill_s += time.perf_counter() - start

    def step(self) -> list[Step]:
        """Makes one token for every row in the batch and returns them; empty only when no row is left."""
        start = time.perf_counter()
        events, self._early = self._early, []
        flight = self._flight or self._launch(None)
        self._flight = None
        if flight is not None:
            ahead = self._ahead is not Ahead.NOTHING and not self._gaps_are_due()
            self._flight = self._launch(flight) if ahead else None
            events += self._land(flight)
            if self._flight is not None:
                _send(self._flight.tokens)
        took_s = time.perf_counter() - start
        self.counters.decode_s += took_s
        self._contest.took(took_s)
        return events

    def remove(self, ids: Iterable[int]) -> None:
        """Takes rows out of the batch; ids that are not in it are ignored."""
        gone = set(ids)
        for i, row in enumerate(self._slots):
            if row is not None and row.row.id in gone:
                row.ended = True
                self._slots[i] = None
        self._early = [event for event in self._early if event[0] not in gone]

    # -- joining ------------------------------------------------------------------------------------

    def _cohorts(self, rows: Sequence[GenRow]) -> Iterable[list[GenRow]]:
        """The rows in the groups that are computed together: one prefix, and prompts to compute or none."""

        def kind(row: GenRow) -> tuple[int, bool]:
            return id(row.prefix), len(row.tokens) > 1

        for _, alike in groupby(sorted(rows, key=kind), key=kind):
            members = list(alike)
            for group in groups([len(row.tokens) for row in members], rows=self._prefill_rows):
                yield [members[i] for i in group]

    def _join(self, rows: Sequence[GenRow]) -> None:
        """Computes some rows' prompts together and places them in free slots."""
        prompts = [row.tokens[:-1] for row in rows]
        done = prefill(self._model, prompts, tokens_per_eval=self._prefill_tokens, prefix=rows[0].prefix)
        self.counters.prompt_tokens += sum(len(row.tokens) for row in rows)
        self.counters.padding_tokens += done.positions - sum(len(prompt) for prompt in prompts)
        free = [i for i, row in enumerate(self._slots) if row is None]
        for row, layers in zip(rows, done.pieces, strict=True):
            slot = free.pop(0) if free else len(self._slots)
            running = RunningRow(row=row, tokens=[row.tokens[-1]], cached=row.prompt_tokens - 1)
            self._slots[slot : slot + 1] = [running]
            for cache, piece in zip(self._caches, layers, strict=True):
                cache.count(len(self._slots))
                cache.place(slot, piece)
        mx.eval([cache.arrays for cache in self._caches])
        self._idle_slots = 0

    def _make_room(self, joining: Sequence[GenRow] = ()) -> None:
        """Fits the buffers to the rows that run and join; they are copied only when that changes them."""
        columns = [min(row.columns, row.cached + STEP_COLUMNS) for row in self._slots if row is not None]
        columns += [row.prompt_tokens - 1 + min(row.max_tokens, STEP_COLUMNS) for row in joining]
        taken = sum(row is not None for row in self._slots) + len(joining)
        need_slots, need_columns = max(taken, len(self._slots), self._expected), max(columns, default=0)
        have_slots, have_columns = self._room
        enough = SHRINK_SHARE * have_columns <= need_columns <= have_columns
        if not (enough and SHRINK_SHARE * have_slots <= need_slots <= have_slots):
            need_columns = -(-need_columns // STEP_COLUMNS) * STEP_COLUMNS
            self._room = (need_slots, need_columns)
            for cache in self._caches:
                cache.room(*self._room)

    # -- stepping -----------------------------------------------------------------------------------

    def _launch(self, after: _Flight | None) -> _Flight | None:
        """Builds the next step's graph, on the tokens of `after` when that step is under way."""
        if after is None:
            self._close_gaps()
        rows = [row if row is not None and row.wants else None for row in self._slots]
        wanted = tuple((i, row) for i, row in enumerate(rows) if row is not None)
        if not wanted:
            return None
        if max(row.cached for _, row in wanted) >= self._room[1]:
            self._make_room()
        shared = shared_tokens([row for _, row in wanted])
        self._positions.set([row.cached if row else None for row in rows], shared=shared)
        sharing = self._contest.second((len(rows).bit_length(), shared.bit_length()) if shared else None)
        inputs = after.tokens if after else mx.array([row.tokens[-1] if row else 0 for row in rows])
        with self._attention.lent(sharing=sharing):
            logits = self._model(inputs[:, None], cache=list(self._caches))[:, -1]
        under_way = [after.tokens[i : i + 1] if after else None for i in range(len(rows))]
        tokens = choose(logits, [row.choice(late) if row else None for row, late in zip(rows, under_way, strict=True)])
        for _, row in wanted:
            row.cached += 1
            row.launched += 1
        if after is None or self._ahead is Ahead.SEND:
            _send(tokens)
        self.counters.shared_steps += sharing
        self._count(len(rows), len(wanted))
        return _Flight(tokens=tokens, rows=wanted)

    def _land(self, flight: _Flight) -> list[Step]:
        """Reads a step's tokens; rows that end give up their slots."""
        tokens: Any = flight.tokens.tolist()
        events = []
        for slot, row in flight.rows:
            if row.ended:
                continue
            finish = row.read(tokens[slot], self._eos)
            events.append((row.row.id, tokens[slot], finish))
            if finish is not None:
                self._slots[slot] = None
        return events

    def _land_early(self) -> None:
        """Waits for the step under way, whose tokens the next `step` returns: nothing may read the buffers now."""
        if self._flight is not None:
            mx.eval(self._flight.tokens)
            self._early += self._land(self._flight)
            self._flight = None

    def _gaps_are_due(self) -> bool:
        """Whether the gaps among the rows have cost as much as closing them does."""
        gaps = self._slots.count(None)
        return gaps > 0 and self._idle_slots >= gaps * MOVE_STEPS

    def _close_gaps(self) -> None:
        """Moves the last rows into free slots when that is due; free slots at the end go at once."""
        taken = [i for i, row in enumerate(self._slots) if row is not None]
        if self._gaps_are_due():
            sources = [i for i in taken if i >= len(taken)]
            targets = [i for i in range(len(taken)) if self._slots[i] is None]
            for source, target in zip(sources, targets, strict=True):
                self._slots[target] = self._slots[source]
            for cache in self._caches:
                cache.move(sources, targets)
            self.counters.moved_rows += len(sources)
            self._idle_slots = 0
            taken = list(range(len(taken)))
        end = taken[-1] + 1 if taken else 0
        if end < len(self._slots):
            del self._slots[end:]
            for cache in self._caches:
                cache.count(end)

    def _count(self, slots: int, rows: int) -> None:
        self.counters.steps += 1
        self.counters.step_rows += rows
        self.counters.idle_slots += slots - rows
        self._idle_slots += slots - rows
        self.counters.level_steps += isinstance(self._positions.offset, int)
        if self.counters.steps % SETTLE_STEPS == 0:
            mx.eval([cache.arrays for cache in self._caches])
            mx.clear_cache()


def _suitable_ahead() -> Ahead:
    """What was fastest. On an H200, 64 unequal rows of an 8B model: 4,615, 4,905 and 6,179 tok/s in the enum's order.

    On Metal nothing is sent ahead, lest a step under way makes the next one copy the buffers it reads.
    """
    if mx.default_device().type == mx.DeviceType.cpu:
        return Ahead.NOTHING
    return Ahead.SEND if mx.cuda.is_available() else Ahead.BUILD


def _send(tokens: mx.array) -> None:
    mx.async_eval(tokens)  # type: ignore[no-untyped-call]
