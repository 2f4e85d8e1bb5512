"""The engine's loop: takes messages, lets rows join, decodes, reports. Everything happens on one thread."""

from __future__ import annotations

import queue
import sys
import time
from collections.abc import Callable, Sequence

import mlx.core as mx
import numpy as np

from fleet.job import Finish
from fleet.messages import Admitted, Cancel, Finished, Message, Pulse, Ready, RowResult, RowWork, SetCap, Shard
from worker import memory
from worker.batching import TOKEN_BYTES, Pool, Row, lane_of
from worker.decoder import Decoder
from worker.faults import Faults
from worker.prefixes import unpack

PULSE_S = 1.0
#: Finished rows leave at most this late while others decode.
REPORT_S = 0.2

Inbox = queue.SimpleQueue[Message]


class Loop:
    """Turns over one decoder; `send` gets what the agent must know, `log_key` the key of each finished row."""

    def __init__(
        self,
        ready: Ready,
        *,
        decoder: Decoder,
        limits: memory.Limits,
        vocabulary: int,
        together: int,
        inbox: Inbox,
        send: Callable[[Message], None],
        log_key: Callable[[bytes], None],
        faults: Faults,
    ) -> None:
        self._ready = ready
        self._cap = ready.cap
        self._decoder = decoder
        self._limits = limits
        self._vocabulary = vocabulary
        self._together = together
        self._inbox = inbox
        self._send = send
        self._log_key = log_key
        self._faults = faults
        self._pool = Pool()
        self._keys: dict[int, bytes] = {}
        self._ended: list[RowResult] = []
        self._reported = self._pulsed = time.monotonic()

    def run(self) -> None:
        """Turns until the process ends."""
        while True:
            self.turn()

    def turn(self) -> None:
        """One round; waits only when there is nothing to decode."""
        idle = not self._decoder.rows and not len(self._pool) and not self._ended
        self._take(wait=idle)
        self._admit()
        if self._decoder.rows:
            if self._faults.strikes(row.key for row in self._decoder.rows):
                self._faults.strike()
            self._ended += self._decoder.step(self._cap)
        self._report()
        self._pulse()

    def _take(self, *, wait: bool) -> None:
        """Handles the messages that are there; with `wait`, until one comes or a pulse is due."""
        try:
            timeout = max(0.0, self._pulsed + PULSE_S - time.monotonic())
            self._handle(self._inbox.get(wait, timeout if wait else None))
            while True:
                self._handle(self._inbox.get_nowait())
        except queue.Empty:
            return

    def _handle(self, message: Message) -> None:
        if isinstance(message, Shard):
            self._accept(message)
        elif isinstance(message, Cancel):
            self._cancel(message.rows)
        elif isinstance(message, SetCap):
            self._cap = min(message.rows or self._ready.cap, 1 if self._ready.single else sys.maxsize)
        else:
            print(f"engine: a {type(message).__name__} is not for an engine, dropped", file=sys.stderr)

    def _accept(self, shard: Shard) -> None:
        """Rows of a shard start to wait; those that can never run end here."""
        lane = lane_of(shard.id, exclusive=shard.exclusive, cap=shard.cap)
        for work in shard.rows:
            prompt_tokens = (len(shard.prefix) + len(work.tokens)) // TOKEN_BYTES
            reason = self._refusal(shard, work, prompt_tokens)
            if reason:
                self._refuse(work, prompt_tokens, reason)
                continue
            self._keys[work.id] = work.key
            self._pool.put(
                Row(
                    id=work.id,
                    key=work.key,
                    tokens=unpack(work.tokens),
                    prefix=shard.prefix,
                    max_tokens=work.max_tokens,
                    sampling=shard.sampling,
                    lane=lane,
                    charged_tokens=memory.charged_tokens(prompt_tokens, work.max_tokens),
                )
            )

    def _refusal(self, shard: Shard, work: RowWork, prompt_tokens: int) -> str | None:
        if shard.model_hash != self._ready.model_hash:
            return f"planned for weights {shard.model_hash[:12]}, this engine holds {self._ready.model_hash[:12]}"
        if not work.tokens:
            return "an empty prompt has nothing to go on from"
        largest = max(np.frombuffer(part, "<u4").max(initial=0) for part in (shard.prefix, work.tokens))
        if largest >= self._vocabulary:
            return f"token {largest} is not in the model's vocabulary of {self._vocabulary}"
        return memory.refusal(prompt_tokens, work.max_tokens, self._limits)

    def _refuse(self, work: RowWork, prompt_tokens: int, reason: str) -> None:
        self._ended.append(
            RowResult(
                id=work.id, text="", finish=Finish.ERROR, input_tokens=prompt_tokens, output_tokens=0, error=reason
            )
        )

    def _cancel(self, ids: Sequence[int]) -> None:
        gone = set(ids)
        self._pool.forget(gone)
        self._decoder.remove(gone)
        self._ended = [result for result in self._ended if result.id not in gone]
        for id in gone:
            self._keys.pop(id, None)

    def _admit(self) -> None:
        """Lets rows join, a few prompts at a time, so that messages and pulses pass in between."""
        if not self._pool.due(self._decoder.rows, cap=self._cap):
            return
        while some := self._pool.take(
            self._decoder.rows, cap=self._cap, budget_tokens=self._budget_tokens(), at_most=self._together
        ):
            self._send(Admitted(rows=tuple(row.id for row in some)))
            self._decoder.insert(some)
            self._report()
            self._pulse()
            self._take(wait=False)

    def _budget_tokens(self) -> int:
        """What prefixes leave to rows; a row alone fits all the same, see `batching.admit`."""
        return self._limits.budget_tokens - memory.tokens_of(self._decoder.prefix_bytes, self._limits)

    def _report(self) -> None:
        """Sends finished rows; their keys are on disk before."""
        now = time.monotonic()
        if not self._ended or (self._decoder.rows and now - self._reported < REPORT_S):
            return
        mx.synchronize()
        for result in self._ended:
            key = self._keys.pop(result.id, None)
            if key is not None:
                self._log_key(key)
        self._send(Finished(rows=tuple(self._ended)))
        self._ended, self._reported = [], now

    def _pulse(self) -> None:
        now = time.monotonic()
        if now - self._pulsed >= PULSE_S:
            self._pulsed = now
            self._send(Pulse(running=self._decoder.running, waiting=len(self._pool), figures=self._decoder.figures))
