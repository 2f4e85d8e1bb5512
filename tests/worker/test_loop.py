"""The engine's loop over a real tiny model: what it does when memory ends, and how the cap follows the length."""

import queue
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from fleet.job import Finish
from fleet.messages import Finished, Message, Pulse, Ready, RowResult, SetCap
from tests.driver import shard
from tests.models import tiny_llama
from worker import memory
from worker.caps import Caps
from worker.device import subject
from worker.engine import start
from worker.faults import Faults
from worker.generation.batch import Generation
from worker.knee import Curve, Sample
from worker.knee_store import KneeStore
from worker.loop import Loop
from worker.models import LoadedModel, load

pytestmark = pytest.mark.mlx

SHORTAGE = RuntimeError("[malloc] Unable to allocate 4096 bytes.")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("model")
    return load(str(tiny_llama(folder / "tiny")), "", folder / "hashes")


class Engine:
    """A loop with what it said."""

    def __init__(self, loaded: LoadedModel, *, cap: int = 0, memory_bytes: int = 0, knees: Path | None = None) -> None:
        self.inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.said: list[Message] = []
        self.hash = loaded.hash
        self.loop: Loop = start(
            loaded,
            cap=cap,
            memory_bytes=memory_bytes,
            inbox=self.inbox,
            send=self.said.append,
            log_key=lambda _: None,
            faults=Faults(),
            knees=knees,
        )

    def give(self, rows: dict[int, list[int]], **changes: Any) -> None:
        self.inbox.put(shard(rows, model_hash=self.hash, **changes))

    def turn_until_finished(self, count: int) -> dict[int, RowResult]:
        for _ in range(30_000):
            self.loop.turn()
            done = {row.id: row for message in self.said if isinstance(message, Finished) for row in message.rows}
            if len(done) == count:
                return done
        raise AssertionError(f"{len(done)} of {count} rows finished")

    def caps(self) -> list[int]:
        return [message.cap for message in self.said if isinstance(message, Ready)]

    def pulses(self) -> list[Pulse]:
        return [message for message in self.said if isinstance(message, Pulse)]


def prompts(count: int, length: int = 6) -> dict[int, list[int]]:
    return {id: [3 + (id * 7 + at * 5) % 350 for at in range(length)] for id in range(count)}


@pytest.fixture
def small_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Steps of more than 3 rows find no memory; the batches that were tried."""
    tried: list[int] = []
    step = Generation.step

    def limited(self: Generation) -> list[Any]:
        tried.append(len(self.running))
        if len(self.running) > 3:
            raise SHORTAGE
        return step(self)

    monkeypatch.setattr(Generation, "step", limited)
    return tried


def test_a_batch_that_finds_no_memory_is_halved_until_it_fits_and_loses_no_row(
    loaded: LoadedModel, small_memory: list[int], capfd: pytest.CaptureFixture[str]
) -> None:
    plenty = Engine(loaded, cap=3)
    plenty.give(prompts(20))
    expected = plenty.turn_until_finished(20)
    engine = Engine(loaded, cap=16)
    engine.give(prompts(20))
    results = engine.turn_until_finished(20)
    assert [rows for rows in small_memory if rows > 3] == [16, 8, 4]
    assert {id: row.text for id, row in results.items()} == {id: row.text for id, row in expected.items()}
    assert "Unable to allocate" in capfd.readouterr().err
    engine.loop._pulse(due=True)
    told = engine.caps()  # those between are told where the machine is slow
    assert (told[0], told[-1], set(told) <= {16, 8, 4, 2}) == (16, 2, True)
    assert engine.pulses()[-1].figures.output_tokens == sum(row.output_tokens for row in results.values())


def test_prompts_that_find_no_memory_are_tried_again_in_a_smaller_batch(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert = Generation.insert

    def limited(self: Generation, rows: Any) -> None:
        if len(self.running) + len(rows) > 2:
            raise SHORTAGE
        insert(self, rows)

    monkeypatch.setattr(Generation, "insert", limited)
    engine = Engine(loaded, cap=8)
    engine.give(prompts(8))
    assert all(row.finish is not Finish.ERROR for row in engine.turn_until_finished(8).values())


def test_a_row_that_finds_no_memory_alone_is_an_error_and_the_others_run(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Generation.step

    def limited(self: Generation) -> list[Any]:
        if any(row is not None and len(row.row.tokens) == 50 for row in self._slots):
            raise SHORTAGE
        return step(self)

    monkeypatch.setattr(Generation, "step", limited)
    engine = Engine(loaded, cap=4)
    engine.give({**prompts(6), 99: [5] * 50})
    results = engine.turn_until_finished(7)
    assert [id for id, row in results.items() if row.finish is Finish.ERROR] == [99]
    assert "50 prompt tokens and 8 new ones alone: [malloc] Unable to allocate" in (results[99].error or "")


def test_another_error_ends_the_engine(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_self: Generation) -> list[Any]:
        raise RuntimeError("[matmul] shapes do not match")

    monkeypatch.setattr(Generation, "step", broken)
    engine = Engine(loaded, cap=4)
    engine.give(prompts(2))
    with pytest.raises(RuntimeError, match="matmul"):
        engine.turn_until_finished(2)


def curve(bucket: int, knee: int) -> Curve:
    samples = tuple(Sample(rows=rows, tps=min(rows, knee)) for rows in (1, 2, 4, 8, 16))
    return Curve(bucket_tokens=bucket, samples=samples, ended=True, prefill_ended=True)


def test_the_cap_follows_the_length_that_decodes(loaded: LoadedModel, tmp_path: Path) -> None:
    store = KneeStore(tmp_path / "knees.json", subject(loaded.hash))
    store.save({256: curve(256, 8), 512: curve(512, 2)})
    engine = Engine(loaded, knees=tmp_path / "knees.json")
    assert engine.caps() == [8], "the shortest length is the first guess"
    engine.give(prompts(6, length=300), max_tokens=20)
    engine.turn_until_finished(6)
    engine.loop._pulse(due=True)
    engine.give({id + 50: tokens for id, tokens in prompts(20).items()}, max_tokens=20)
    engine.turn_until_finished(26)
    engine.loop._pulse(due=True)
    figures = engine.pulses()[-1].figures
    assert 2 in engine.caps()
    assert engine.caps()[-1] == 8
    assert figures.step_rows / figures.step_cap > 0.5
    wide = Engine(loaded, cap=8)
    wide.give(prompts(6, length=300), max_tokens=20)
    wide.turn_until_finished(6)
    wide.loop._pulse(due=True)
    assert wide.pulses()[-1].figures.step_rows / wide.pulses()[-1].figures.steps > 2


def test_memory_is_not_taken_for_more_rows_than_fit(loaded: LoadedModel) -> None:
    """A wide cap over long rows must not make buffers that the budget forbids."""
    engine = Engine(loaded, cap=64)
    engine.loop._limits = replace(engine.loop._limits, budget_tokens=5 * 512)
    engine.give(prompts(12, length=300), max_tokens=20)
    engine.turn_until_finished(12)
    generation: Any = engine.loop._decoder._generation
    assert generation._room[0] <= 5
    engine.loop._pulse(due=True)
    assert engine.pulses()[-1].figures.step_rows / engine.pulses()[-1].figures.steps <= 5


def test_a_cap_set_from_outside_lowers_ours_and_0_gives_it_back(loaded: LoadedModel) -> None:
    engine = Engine(loaded, cap=6)
    engine.inbox.put(SetCap(rows=2))
    engine.give(prompts(4), max_tokens=5)
    engine.turn_until_finished(4)
    engine.loop._pulse(due=True)
    figures = engine.pulses()[-1].figures
    assert figures.step_cap == 2 * figures.steps
    engine.inbox.put(SetCap(rows=0))
    engine.give({id + 50: tokens for id, tokens in prompts(6).items()}, max_tokens=5)
    engine.turn_until_finished(10)
    engine.loop._pulse(due=True)
    after = engine.pulses()[-1].figures
    assert after.step_cap - figures.step_cap == 6 * (after.steps - figures.steps)
    assert engine.caps() == [6], "our own choice did not change"


def test_many_rows_of_a_length_have_its_knee_measured_and_kept(loaded: LoadedModel, tmp_path: Path) -> None:
    engine = Engine(loaded, knees=tmp_path / "knees.json")
    engine.give(prompts(700), max_tokens=40)
    results = engine.turn_until_finished(700)
    measuring = [pulse for pulse in engine.pulses() if pulse.measuring]
    assert measuring
    assert not engine.pulses()[-1].measuring
    known = KneeStore(tmp_path / "knees.json", subject(loaded.hash)).load()
    assert list(known) == [256]
    assert [sample.rows for sample in known[256].samples][:4] == [1, 2, 4, 8]
    assert all(row.finish is not Finish.ERROR for row in results.values())
    again = Engine(loaded, knees=tmp_path / "knees.json")
    if known[256].ended:
        assert known[256].knee is not None
        assert again.caps() == [known[256].knee.rows]


def test_a_small_backlog_is_not_measured_for(loaded: LoadedModel, tmp_path: Path) -> None:
    engine = Engine(loaded, knees=tmp_path / "knees.json")
    engine.give(prompts(150), max_tokens=40)
    engine.turn_until_finished(150)
    assert not [pulse for pulse in engine.pulses() if pulse.measuring]
    assert not (tmp_path / "knees.json").exists()


def test_a_row_that_needs_more_than_the_given_memory_is_refused_with_figures(loaded: LoadedModel) -> None:
    rows_bytes = 1.5 * memory.KV_STEP_TOKENS * loaded.kv_bytes * memory.COPY_FACTOR
    taken_bytes = max(loaded.weight_bytes, mx.get_peak_memory())
    engine = Engine(loaded, cap=16, memory_bytes=int((taken_bytes + rows_bytes) / memory.PLANNED_SHARE) + 1)
    engine.give({1: [5] * 300, 2: [5, 6]})
    results = engine.turn_until_finished(2)
    assert results[1].finish is Finish.ERROR
    figures = r"300 prompt tokens and 8 new ones need 0\.[1-9] MiB of memory, and 0\.[1-9] MiB are left"
    assert re.match(figures, results[1].error or "")
    assert results[2].finish is not Finish.ERROR


def test_steps_that_read_a_prefix_once_are_no_measure_of_the_machine(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(loaded, cap=4)
    stepped: list[bool] = []
    monkeypatch.setattr(Caps, "stepped", lambda *_, measurable: stepped.append(measurable))
    engine.give(prompts(4), prefix=range(3, 70), max_tokens=40)
    engine.turn_until_finished(4)
    assert stepped.count(False) == engine.loop._decoder.shared_steps > 0
    assert stepped.count(True) > 0
