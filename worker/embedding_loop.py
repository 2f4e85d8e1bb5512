"""The engine's loop for embedding: takes messages, computes batches, reports. Everything happens on one thread."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import mlx.core as mx

from fleet.messages import Admitted, Cancel, Finished, Message, Pulse, Ready, RowResult, RowWork, SetCap, Shard
from worker import memory
from worker.batching import Row, lane_of
from worker.embedding_batches import DTYPES, Batches
from worker.embedding_model import LoadedEmbedder
from worker.faults import Faults
from worker.knee_store import KneeStore
from worker.loop import PULSE_S, REPORT_S, Inbox, failed, waiting_in
from worker.prefixes import unpack
from worker.token_budget import SAMPLE_TOKENS, TokenBudget
from worker.token_gauge import TokenGauge

#: The cap is told as if texts had this many tokens: so many wait here before the agent stops taking shards.
SHORT_TOKENS = 32
#: Measuring pauses work for about this long at a time, seconds.
MEASURE_S = 3.0


def told_cap(budget_tokens: int) -> int:
    """Rows of a batch of short texts."""
    return max(1, budget_tokens // SHORT_TOKENS)


class EmbeddingLoop:
    """Turns over one embedder; `send` gets what the agent must know, `log_key` the key of each finished row."""

    def __init__(
        self,
        loaded: LoadedEmbedder,
        ready: Ready,
        *,
        budget: TokenBudget,
        store: KneeStore,
        cap: int,
        inbox: Inbox,
        send: Callable[[Message], None],
        log_key: Callable[[bytes], None],
        faults: Faults,
    ) -> None:
        """`cap` is the most rows of a batch, 0 for no limit."""
        self._loaded = loaded
        self._ready = ready
        self._budget = budget
        self._store = store
        self._gauge = TokenGauge(loaded.embedder, vocabulary=loaded.vocabulary, max_seq_tokens=loaded.max_seq_tokens)
        self._cap = cap
        self._inbox = inbox
        self._send = send
        self._log_key = log_key
        self._faults = faults
        self._batches = Batches(loaded.embedder, budget)
        self._ended: list[RowResult] = []
        self._keys: dict[int, bytes] = {}
        self._reported = self._pulsed = time.monotonic()

    def run(self) -> None:
        """Turns until the process ends."""
        while True:
            self.turn()

    def turn(self) -> None:
        """One round; waits only when there is nothing to compute."""
        self._take(wait=not self._batches.running and not self._batches.waiting and not self._ended)
        try:
            started = self._batches.start(self._cap or self._budget.tokens, self._announce)
            if self._batches.due(started=started):
                self._ended += self._batches.finish()
        except (RuntimeError, MemoryError) as error:
            if not memory.is_shortage(error):
                raise
            print(f"engine: {error}; texts begin anew", file=sys.stderr, flush=True)
            self._ended += self._batches.shed(error)
        self._report()
        self._pulse()
        self._measure()

    def _announce(self, rows: Sequence[Row]) -> None:
        self._send(Admitted(rows=tuple(row.id for row in rows)))
        if self._faults.strikes(row.key for row in rows):
            self._faults.strike()

    # -- messages ----------------------------------------------------------------------------------

    def _take(self, *, wait: bool) -> None:
        """Handles the messages that are there; with `wait`, until one comes or a pulse is due."""
        for message in waiting_in(self._inbox, self._pulsed + PULSE_S if wait else None):
            self._handle(message)

    def _handle(self, message: Message) -> None:
        if isinstance(message, Shard):
            self._accept(message)
        elif isinstance(message, Cancel):
            self._cancel(message.rows)
        elif isinstance(message, SetCap):
            self._cap = message.rows
        else:
            print(f"engine: a {type(message).__name__} is not for an engine, dropped", file=sys.stderr)

    def _accept(self, shard: Shard) -> None:
        """Rows of a shard start to wait; those that can never run end here."""
        lane = lane_of(shard.id, exclusive=shard.exclusive, cap=shard.cap)
        first = unpack(shard.prefix)
        for work in shard.rows:
            tokens = first + unpack(work.tokens)
            if reason := self._refusal(shard, work, tokens):
                self._ended.append(failed(work.id, len(tokens), reason))
                continue
            self._keys[work.id] = work.key
            row = Row(
                id=work.id,
                key=work.key,
                tokens=tokens,
                max_tokens=0,
                sampling=shard.sampling,
                lane=lane,
                charged_tokens=self._loaded.embedder.computed_tokens(tokens),
            )
            self._batches.put(row)

    def _refusal(self, shard: Shard, work: RowWork, tokens: Sequence[int]) -> str | None:
        """Why a row cannot be run, None when it can."""
        loaded, asked = self._loaded, shard.sampling.embedding
        dimension = loaded.embedder.dimension
        if shard.model_hash != loaded.hash:
            return f"planned for weights {shard.model_hash[:12]}, this engine holds {loaded.hash[:12]}"
        if asked is None or asked.dtype not in DTYPES or not 0 <= asked.dimensions <= dimension:
            return f"this engine makes vectors of up to {dimension} numbers in {' or '.join(DTYPES)}, and nothing else"
        if asked.folder and asked.folder != loaded.folder_hash:
            return "the model's pooling or Dense modules here are not those that the job was planned for"
        if not work.tokens:
            return "an empty text has no vector"
        if max(tokens) >= loaded.vocabulary:
            return f"token {max(tokens)} is not in the model's vocabulary of {loaded.vocabulary}"
        if len(tokens) > loaded.max_seq_tokens:
            return f"{len(tokens)} tokens are over the model's limit of {loaded.max_seq_tokens}"
        return memory.text_refusal(len(tokens), token_bytes=loaded.token_bytes, budget_bytes=self._ready.budget_bytes)

    def _cancel(self, ids: Sequence[int]) -> None:
        self._batches.cancel(ids)
        gone = set(ids)
        self._ended = [result for result in self._ended if result.id not in gone]
        for id in gone:
            self._keys.pop(id, None)

    # -- reports -----------------------------------------------------------------------------------

    def _report(self) -> None:
        """Sends finished rows; their keys are on disk before."""
        now = time.monotonic()
        busy = bool(self._batches.running or self._batches.waiting)
        if not self._ended or (busy and now - self._reported < REPORT_S):
            return
        for result in self._ended:
            key = self._keys.pop(result.id, None)
            if key is not None:
                self._log_key(key)
        if not busy:
            self._send_pulse()  # whoever hears that all is finished knows what it took
        self._send(Finished(rows=tuple(self._ended)))
        self._ended, self._reported = [], now

    def _pulse(self) -> None:
        if time.monotonic() - self._pulsed >= PULSE_S:
            self._send_pulse()

    def _send_pulse(self, *, measuring: bool = False) -> None:
        self._pulsed = time.monotonic()
        if told_cap(self._budget.tokens) != self._ready.cap:
            self._ready = replace(self._ready, cap=told_cap(self._budget.tokens))
            self._send(self._ready)
        self._send(
            Pulse(
                running=tuple((id, 0) for id in self._batches.running),
                waiting=self._batches.waiting,
                figures=self._batches.figures,
                measuring=measuring,
            )
        )

    # -- measuring ---------------------------------------------------------------------------------

    def _measure(self) -> None:
        """Pauses work to measure how large batches should be, when that is worth it."""
        if self._cap or self._budget.curve.ended or not self._budget.due(self._batches.waiting_tokens):
            return
        self._budget.begin()
        deadline = time.monotonic() + MEASURE_S
        try:
            while time.monotonic() < deadline and (tokens := self._budget.next_tokens()) is not None:
                self._take(wait=False)
                self._send_pulse(measuring=True)
                self._budget.sampled(self._gauge.sample(tokens))
        except (RuntimeError, MemoryError) as error:
            if not memory.is_shortage(error):
                raise
            self._budget.ran_out()
            mx.clear_cache()
        self._send_pulse()
        if self._budget.curve.ended:
            self._store.save({SAMPLE_TOKENS: self._budget.curve})
