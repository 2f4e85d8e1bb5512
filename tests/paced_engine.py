"""A fake engine that keeps the pace of a simulated machine: a step of n rows takes what the machine's curve says, a
prompt what its prompt rate says. Rows end where the workload says, which nobody else knows.

Environment: PACED_PROFILE, the JSON of a profile as `ops.bench.simulation.profiles` has it; PACED_WORKLOAD, a file made
by `ops.bench.simulate --write`. A row's first prompt token is its number there. PACED_NOTES, a file that gets
`shard ID SECONDS` whenever a shard arrives and `ready SECONDS`, by the system's one monotonic clock.

It works in steps but wakes only a few times a second for all that were due meanwhile, as a GPU computes whatever the
processors do: eight of them take a small part of two cores.
"""

import json
import math
import os
import queue
import socket
import sys
import threading
import time
from argparse import ArgumentParser
from dataclasses import replace
from pathlib import Path

from fleet.job import Finish
from fleet.messages import Admitted, Cancel, Figures, Finished, Pulse, Ready, RowResult, RowWork, SetCap, Shard
from ops.bench.simulation import workload as workloads
from ops.bench.simulation.profiles import Profile
from worker.batching import cohort_due
from worker.link import Link

#: Longest sleep between two looks at what is due, seconds: results are late by this at most.
TICK_S = 0.02
#: As the real engine does, see `worker.loop`.
PULSE_S = 1.0


class PacedEngine:
    """One machine."""

    def __init__(self, link: Link, profile: Profile, answers: list[int], notes: Path) -> None:
        self._link = link
        self._profile = profile
        self._answers = answers
        self._notes = notes
        self._cap = profile.cap
        self._inbox: queue.SimpleQueue = queue.SimpleQueue()
        #: longest first, as `worker.batching` keeps them
        self._waiting: list[RowWork] = []
        #: row -> [the row, tokens it has made]
        self._batch: dict[int, list] = {}
        #: the moment up to which the machine has worked
        self._at_s = time.monotonic()
        self._pulsed_s = 0.0
        self._figures = Figures()

    def read(self) -> None:
        """Of a thread of its own, until the link ends, and with it the process."""
        while (message := self._link.receive()) is not None:
            self._inbox.put(message)
        os._exit(0)

    def run(self) -> None:
        """For ever."""
        while True:
            now_s = time.monotonic()
            self._take(now_s)
            ended = self._work(now_s)
            if ended:
                self._link.send(Finished(rows=tuple(ended)))
            if now_s - self._pulsed_s > PULSE_S or (ended and not self._batch):
                self._pulsed_s = now_s
                running = tuple((id, tokens) for id, (_, tokens) in self._batch.items())
                self._link.send(Pulse(running=running, waiting=len(self._waiting), figures=self._figures))
            time.sleep(TICK_S)

    def note(self, *words: object) -> None:
        """Adds a line to the notes."""
        with self._notes.open("a") as notes:
            print(*words, time.monotonic(), file=notes)

    def _take(self, now_s: float) -> None:
        if not self._batch and not self._waiting:
            self._at_s = now_s
        while not self._inbox.empty():
            message = self._inbox.get()
            if isinstance(message, Shard):
                self.note("shard", message.id)
                self._waiting += message.rows
                self._waiting.sort(key=lambda row: -len(row.tokens))
            elif isinstance(message, Cancel):
                gone = set(message.rows)
                self._waiting = [row for row in self._waiting if row.id not in gone]
                self._batch = {id: slot for id, slot in self._batch.items() if id not in gone}
            elif isinstance(message, SetCap):
                self._cap = min(message.rows or self._profile.cap, self._profile.cap)

    def _work(self, now_s: float) -> list[RowResult]:
        """Everything that was due until now."""
        ended: list[RowResult] = []
        while self._at_s < now_s:
            if cohort_due(len(self._waiting), len(self._batch), cap=self._cap) and self._waiting:
                self._admit()
            elif self._batch:
                ended += self._steps(now_s)
            else:
                self._at_s = now_s
        return ended

    def _admit(self) -> None:
        free = self._cap - len(self._batch)
        rows, self._waiting = self._waiting[:free], self._waiting[free:]
        self._link.send(Admitted(rows=tuple(row.id for row in rows)))
        self._batch |= {row.id: [row, 0] for row in rows}
        prompts = sum(len(row.tokens) for row in rows) // 4
        took_s = prompts / self._profile.prefill_tps
        self._at_s += took_s
        self._figures = replace(
            self._figures,
            prompt_tokens=self._figures.prompt_tokens + prompts,
            prefill_s=self._figures.prefill_s + took_s,
        )

    def _steps(self, now_s: float) -> list[RowResult]:
        """The steps that begin before now, up to the first in which a row ends."""
        batch = len(self._batch)
        step_s = 1 / self._profile.row_tps[batch]
        left = min(self._answers[_number(row)] - tokens for row, tokens in self._batch.values())
        steps = min(left, math.ceil((now_s - self._at_s) / step_s))
        for slot in self._batch.values():
            slot[1] += steps
        self._at_s += steps * step_s
        figures = self._figures
        self._figures = replace(
            figures,
            steps=figures.steps + steps,
            step_rows=figures.step_rows + steps * batch,
            step_cap=figures.step_cap + steps * self._cap,
            output_tokens=figures.output_tokens + steps * batch,
            decode_s=figures.decode_s + steps * step_s,
        )
        ended = [row for row, tokens in self._batch.values() if tokens >= self._answers[_number(row)]]
        for row in ended:
            del self._batch[row.id]
        return [self._result(row) for row in ended]

    def _result(self, row: RowWork) -> RowResult:
        return RowResult(
            id=row.id,
            text="an answer",
            finish=Finish.STOP,
            input_tokens=len(row.tokens) // 4,
            output_tokens=self._answers[_number(row)],
        )


def _number(row: RowWork) -> int:
    return int.from_bytes(row.tokens[:4], "little")


def main() -> int:
    parser = ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--hash", required=True)
    args, _ = parser.parse_known_args()
    profile = Profile(**json.loads(os.environ["PACED_PROFILE"]))
    answers = workloads.read(Path(os.environ["PACED_WORKLOAD"])).answers.tolist()
    link = Link(socket.socket(fileno=args.fd))
    engine = PacedEngine(link, profile, answers, Path(os.environ["PACED_NOTES"]))
    threading.Thread(target=engine.read, daemon=True).start()
    longest = profile.longest_tokens or 1 << 20
    engine.note("ready")
    link.send(Ready(model_hash=args.hash, cap=profile.cap, kv_bytes=1, budget_bytes=1 << 40, context_tokens=longest))
    engine.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
