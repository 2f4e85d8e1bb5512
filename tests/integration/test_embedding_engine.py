"""A real engine child that embeds with MiniLM, spoken to over its link as the agent does."""

import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from fleet.encoder_folder import read_encoder
from fleet.job import Embedding, Finish, Sampling
from fleet.messages import Admitted, Cancel, Pulse, Refused, RowResult
from tests.driver import EngineDriver, key_of, shard
from tests.encoder_reference import hidden_states, pooled
from tests.minilm import minilm, minilm_tokens
from tests.models import tiny_llama

pytestmark = pytest.mark.mlx

TEXTS = {
    1: "A man is eating food.",
    2: "A man is eating a piece of bread.",
    3: "The girl is carrying a baby.",
    4: "Naïve café \N{GRINNING FACE}\N{PILE OF POO} 東京",
    5: "word " * 60,
}
WANTED = Sampling(embedding=Embedding())


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineDriver]:
    driver = EngineDriver(minilm(), tmp_path_factory.mktemp("engine"), "--embed")
    driver.ready()
    yield driver
    assert driver.close() == 0


def vector(result: RowResult, dtype: str = "<f4") -> np.ndarray:
    return np.frombuffer(result.vector, dtype)


def test_it_says_what_it_holds(engine: EngineDriver) -> None:
    ready = engine.ready()
    assert ready.context_tokens == 256
    assert ready.cap >= 8
    assert ready.kv_bytes > 384 * 4
    assert ready.budget_bytes > 256 * ready.kv_bytes


def test_vectors_are_those_of_the_reference_whatever_they_were_batched_with(engine: EngineDriver) -> None:
    rows = {id: minilm_tokens(text) for id, text in TEXTS.items()}
    engine.link.send(shard(rows, model_hash=engine.ready().model_hash, sampling=WANTED, max_tokens=0))
    results = engine.finish(list(TEXTS))
    weights, config = load_file(minilm() / "model.safetensors"), read_encoder(minilm()).config
    for id, tokens in rows.items():
        expected = pooled(hidden_states(weights, config, tokens), "mean")
        assert np.abs(vector(results[id]) - expected).max() < 1e-6
        assert (results[id].finish, results[id].text, results[id].output_tokens) == (Finish.STOP, "", 0)
        assert results[id].input_tokens == len(tokens)
    engine.until(lambda: engine.heard(Pulse) and engine.heard(Pulse)[-1].figures.prompt_tokens >= 90)
    figures = engine.heard(Pulse)[-1].figures
    assert figures.prefill_s > 0
    assert figures.steps == figures.output_tokens == 0
    logged = engine.key_log.read_text().split()
    assert {key_of(id).hex() for id in TEXTS} <= set(logged)


def test_short_and_half_vectors_come_as_asked(engine: EngineDriver) -> None:
    tokens, hash = minilm_tokens(TEXTS[1]), engine.ready().model_hash
    for id, form in ((10, Embedding()), (11, Embedding(dtype="float16")), (12, Embedding(dimensions=64))):
        engine.link.send(
            shard({id: tokens}, model_hash=hash, sampling=Sampling(embedding=form), max_tokens=0, id=f"w-{id}")
        )
    results = engine.finish([10, 11, 12])
    full, half, short = vector(results[10]), vector(results[11], "<f2").astype(np.float32), vector(results[12])
    assert full @ half / np.linalg.norm(half) > 0.9999
    assert len(short) == 64
    assert np.allclose(short, full[:64] / np.linalg.norm(full[:64]), atol=1e-7)


def test_rows_that_cannot_be_run_say_why(engine: EngineDriver) -> None:
    hash = engine.ready().model_hash
    engine.link.send(shard({20: [5] * 257}, model_hash=hash, sampling=WANTED, max_tokens=0, id="w-20"))
    engine.link.send(shard({21: [30522]}, model_hash=hash, sampling=WANTED, max_tokens=0, id="w-21"))
    engine.link.send(shard({22: [101]}, model_hash=hash, id="w-22"))
    other = Sampling(embedding=Embedding(folder="00"))
    engine.link.send(shard({23: [101]}, model_hash=hash, sampling=other, max_tokens=0, id="w-23"))
    engine.link.send(shard({24: [101]}, model_hash="00", sampling=WANTED, max_tokens=0, id="w-24"))
    results = engine.finish([20, 21, 22, 23, 24])
    errors = [results[id].error or "" for id in range(20, 25)]
    for error, word in zip(
        errors, ("limit of 256", "vocabulary", "384 numbers", "pooling", "planned for"), strict=True
    ):
        assert word in error
    assert all(results[id].finish is Finish.ERROR for id in range(20, 25))


def test_a_cancelled_row_is_not_reported_and_an_exclusive_one_runs_alone(engine: EngineDriver) -> None:
    hash = engine.ready().model_hash
    rows = {id: minilm_tokens(f"text number {id}") for id in range(30, 50)}
    engine.link.send(shard(rows, model_hash=hash, sampling=WANTED, max_tokens=0, id="w-30"))
    engine.link.send(shard({50: rows[30]}, model_hash=hash, sampling=WANTED, max_tokens=0, id="w-50", exclusive=True))
    engine.link.send(Cancel(rows=(49,)))
    engine.finish([*range(30, 49), 50])
    assert (50,) in [message.rows for message in engine.heard(Admitted)]


def test_a_poisoned_row_ends_the_engine_after_it_was_announced(tmp_path: Path) -> None:
    env = {"FLEET_TEST_FAULTS": "1", "FLEET_TEST_POISON_KEYS": key_of(7).hex()}
    with EngineDriver(minilm(), tmp_path, "--embed", env=env) as engine:
        hash = engine.ready().model_hash
        engine.link.send(shard({7: [101, 102]}, model_hash=hash, sampling=WANTED, max_tokens=0))
        assert engine.process.wait(20) == -signal.SIGABRT
        engine.until(lambda: engine.heard(Admitted))
        assert engine.heard(Admitted)[0].rows == (7,)


def test_a_folder_that_says_nothing_of_vectors_is_refused(tmp_path: Path) -> None:
    with EngineDriver(tiny_llama(tmp_path / "tiny"), tmp_path, "--embed") as engine:
        engine.until(lambda: engine.heard(Refused))
        assert "modules.json" in engine.heard(Refused)[0].reason
