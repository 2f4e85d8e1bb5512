"""The engine's loop: takes messages, lets rows join, decodes, reports. Everything happens on one thread."""

from __future__ import annotations

import queue
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import mlx.core as mx
import numpy as np

from fleet.job import Finish, salted
from fleet.messages import Admitted, Cancel, Finished, Message, Pulse, Ready, RowResult, RowWork, SetCap, Shard
from worker import memory
from worker.batching import ORDINARY, TOKEN_BYTES, Pool, Row, lane_of
from worker.caps import Caps
from worker.decoder import Decoder
from worker.faults import Faults
from worker.knee import bucket_of
from worker.prefixes import unpack
from worker.sweep import Sweep

PULSE_S = 1.0
#: Finished rows leave at most this late while others decode.
REPORT_S = 0.2
#: Measuring pauses decoding for about this long at a time.
MEASURE_S = 3.0
#: How often we look whether measuring is worth it, seconds.
LOOK_S = 1.0

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
        caps: Caps,
        sweep: Sweep | None,
        inbox: Inbox,
        send: Callable[[Message], None],
        log_key: Callable[[bytes], None],
        faults: Faults,
    ) -> None:
        self._ready = ready
        self._decoder = decoder
        self._limits = limits
        self._vocabulary = vocabulary
        self._caps = caps
        self._sweep = sweep
        #: of the rows that decode or are next to: what the cap and the prefill setting follow
        self._bucket = 0
        self._cap, self._setting = caps.in_force(self._bucket), caps.prefill(self._bucket)
        self._peak_bytes = 0
        self._look_at = 0.0
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
        try:
            self._admit()
            self._step()
        except (RuntimeError, MemoryError) as error:
            if not memory.is_shortage(error):
                raise
            self._shed(error)
        self._report()
        self._pulse()
        self._measure()

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
            self._caps.asked = message.rows
        else:
            print(f"engine: a {type(message).__name__} is not for an engine, dropped", file=sys.stderr)

    def _accept(self, shard: Shard) -> None:
        """Rows of a shard start to wait; those that can never run end here."""
        lane = lane_of(shard.id, exclusive=shard.exclusive, cap=shard.cap)
        for work in shard.rows:
            prompt_tokens = (len(shard.prefix) + len(work.tokens)) // TOKEN_BYTES
            reason = self._refusal(shard, work, prompt_tokens)
            if reason:
                self._ended.append(failed(work.id, prompt_tokens, reason))
                continue
            self._keys[work.id] = work.key
            self._pool.put(
                Row(
                    id=work.id,
                    key=salted(work.key, shard.salt),
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

    def _cancel(self, ids: Sequence[int]) -> None:
        gone = set(ids)
        self._pool.forget(gone)
        self._decoder.remove(gone)
        self._ended = [result for result in self._ended if result.id not in gone]
        for id in gone:
            self._keys.pop(id, None)

    def _admit(self) -> None:
        """Lets rows join, a few prompts at a time, so that messages and pulses pass in between."""
        self._follow()
        if not self._pool.due(self._decoder.rows, cap=self._cap):
            return
        while some := self._pool.take(
            self._decoder.rows,
            cap=self._cap,
            budget_tokens=self._budget_tokens(),
            at_most=self._setting.rows,
        ):
            self._send(Admitted(rows=tuple(row.id for row in some)))
            started = time.perf_counter()
            self._decoder.insert(some)
            self._caps.prefilled(self._bucket, time.perf_counter() - started)
            self._report()
            self._pulse()
            self._take(wait=False)
            self._follow()

    def _follow(self) -> None:
        """Takes the cap and the prefill setting of the longest row that decodes or is next to."""
        running = self._decoder.rows
        first = self._pool.first(running)
        longest = max([row.total_tokens for row in running] + ([first.total_tokens] if first else []), default=0)
        bucket = bucket_of(longest) if longest else self._bucket
        cap, setting = self._caps.in_force(bucket), self._caps.prefill(bucket)
        if (bucket, setting) != (self._bucket, self._setting):
            self._decoder.prefill_as(setting)
        self._bucket, self._cap, self._setting = bucket, cap, setting
        if longest:
            fitting = self._limits.budget_tokens // memory.charged_tokens(longest, 0)
            self._decoder.expect(max(1, min(cap, fitting)))

    def _step(self) -> None:
        rows = self._decoder.rows
        if not rows:
            return
        if self._faults.strikes(row.key for row in rows):
            self._faults.strike()
        started, shared = time.perf_counter(), self._decoder.shared_steps
        self._ended += self._decoder.step(self._cap)
        took_s, alone = time.perf_counter() - started, self._decoder.shared_steps == shared
        self._caps.stepped(self._bucket, len(rows), took_s, measurable=alone)

    def _shed(self, error: BaseException) -> None:
        """Memory ran out: half the cap, and all rows begin anew; a row that was alone can never run."""
        rows = self._decoder.give_back()
        self._caps.halve(self._bucket, len(rows))
        if len(rows) > 1:
            for row in rows:
                self._pool.put(row)
        for row in rows if len(rows) == 1 else ():
            reason = f"{row.prompt_tokens} prompt tokens and {row.max_tokens} new ones alone: {error}"
            self._ended.append(failed(row.id, row.prompt_tokens, reason))
        print(f"engine: {error}; {len(rows)} rows begin anew", file=sys.stderr, flush=True)

    # -- measuring ---------------------------------------------------------------------------------

    def _measure(self) -> None:
        """Pauses decoding to measure the present length, when that is worth it and memory is free for it."""
        running = self._decoder.rows
        if self._sweep is None or not running or running[0].lane != ORDINARY or time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + LOOK_S
        waiting = sum(bucket_of(tokens) == self._bucket for tokens in self._pool.lengths())
        held = len(running) * max(row.charged_tokens for row in running)
        held += memory.tokens_of(self._decoder.prefix_bytes, self._limits)
        free_tokens = memory.whole_tokens(self._limits) - held
        if self._caps.due(self._bucket, waiting) and self._sweep.can(self._bucket, free_tokens):
            self._peak_bytes = max(self._peak_bytes, mx.get_peak_memory())
            deadline = time.monotonic() + MEASURE_S
            self._sweep.run(self._bucket, free_tokens, lambda: self._breathe() < deadline)
            self._send_pulse(measuring=False)
        self._sweep.save()

    def _breathe(self) -> float:
        """Lets messages and pulses pass between two samples; the time."""
        self._take(wait=False)
        self._report()
        self._send_pulse(measuring=True)
        return time.monotonic()

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
        if not self._decoder.rows and not len(self._pool):
            self._pulse(due=True)  # whoever hears that all is finished knows what it took
        self._send(Finished(rows=tuple(self._ended)))
        self._ended, self._reported = [], now

    def _pulse(self, *, due: bool = False) -> None:
        if due or time.monotonic() - self._pulsed >= PULSE_S:
            self._send_pulse(measuring=False)

    def _send_pulse(self, *, measuring: bool) -> None:
        self._pulsed = time.monotonic()
        own = self._caps.own(self._bucket)
        if own != self._ready.cap:
            self._ready = replace(self._ready, cap=own)
            self._send(self._ready)
        figures = self._decoder.figures
        peak_bytes = max(figures.peak_bytes, self._peak_bytes, self._sweep.peak_bytes if self._sweep else 0)
        self._send(
            Pulse(
                running=self._decoder.running,
                waiting=len(self._pool),
                figures=replace(figures, peak_bytes=peak_bytes),
                measuring=measuring,
                throttled=self._caps.throttled(self._bucket),
                pace=self._caps.pace(self._bucket),
            )
        )


def waiting_in(inbox: Inbox, until_s: float | None) -> Iterator[Message]:
    """The messages that are there; with `until_s`, by `time.monotonic`, waits until then for the first."""
    with suppress(queue.Empty):
        yield inbox.get(until_s is not None, None if until_s is None else max(0.0, until_s - time.monotonic()))
        while True:
            yield inbox.get_nowait()


def failed(id: int, prompt_tokens: int, reason: str) -> RowResult:
    """The result of a row that cannot be run."""
    return RowResult(id=id, text="", finish=Finish.ERROR, input_tokens=prompt_tokens, output_tokens=0, error=reason)
