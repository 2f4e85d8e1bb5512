"""In which order a benchmark runs its batches, with figures made up for MLX's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from worker.bench import Bench
from worker.memory import Limits
from worker.models import LoadedModel
from worker.trial import Trial

LIMITS = Limits(context_tokens=10_000, budget_tokens=1_000_000, kv_bytes=1)


class Machine:
    """Slow in its first run, whatever that is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, runs: int) -> None:
        #: (batch, prompt tokens, new tokens) of each run
        self.ran: list[tuple[int, int, int]] = []
        self.said: list[str] = []
        loaded = cast(LoadedModel, SimpleNamespace(single=""))
        self.bench = Bench(loaded, LIMITS, self._hear, runs=runs, seed=0)
        monkeypatch.setattr(self.bench, "_run", self._run)

    def _hear(self, message: dict[str, Any]) -> None:
        self.said.append(message["say"])

    def _run(self, batch: int, prompt_tokens: int, output_tokens: int) -> Trial:
        self.ran.append((batch, prompt_tokens, output_tokens))
        total_tps = 10.0 * batch / (5 if len(self.ran) == 1 else 1)
        return Trial(batch=batch, total_tps=total_tps, prompt_tps=1.0, seconds=1.0, peak_bytes=1)


@pytest.mark.parametrize(("new", "warm"), [(40, 40), (1500, 64)])
def test_the_first_batch_is_run_once_untimed_as_it_is_and_others_only_a_little(
    monkeypatch: pytest.MonkeyPatch, new: int, warm: int
) -> None:
    machine = Machine(monkeypatch, runs=2)
    table = machine.bench.table("short", (4, 8), prompt_tokens=128, output_tokens=new)
    assert machine.ran == [(4, 128, warm), (4, 128, new), (8, 16, 3), (8, 128, new), (4, 128, new), (8, 128, new)]
    assert [(line.total_tps, line.spread, line.runs) for line in table.lines] == [(40.0, 0.0, 2), (80.0, 0.0, 2)]
    assert machine.said[0] == "short, run 1 of 2, batch 4: 40.0 tok/s"
    assert len(machine.said) == 4
