"""A real engine child, spoken to over its link as the agent does."""

import random
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.job import Finish, Sampling
from fleet.messages import Admitted, Cancel, Finished, Pulse, Refused, SetCap
from tests.driver import EngineDriver, key_of, shard
from tests.models import CONTEXT_TOKENS, tiny_llama

pytestmark = pytest.mark.mlx


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def engine(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineDriver]:
    driver = EngineDriver(model, tmp_path_factory.mktemp("engine"), "--cap", "4")
    driver.ready()
    yield driver
    assert driver.close() == 0


@pytest.fixture(autouse=True)
def fresh_ears(engine: EngineDriver) -> None:
    engine.said = [message for message in engine.said if not isinstance(message, Pulse)]


def prompts(first: int, count: int, length: int = 5) -> dict[int, list[int]]:
    return {first + at: [3 + (first * 7 + at * 11 + n * 5) % 350 for n in range(length + at)] for at in range(count)}


def pulses(engine: EngineDriver, count: int = 1) -> list[Pulse]:
    had = len(engine.heard(Pulse))
    engine.until(lambda: len(engine.heard(Pulse)) >= had + count, 20)
    return engine.heard(Pulse)[had:]


def test_an_engine_says_what_it_holds(engine: EngineDriver) -> None:
    ready = engine.ready()
    assert ready.cap == 4
    assert ready.kv_bytes == 512
    assert ready.context_tokens == CONTEXT_TOKENS
    assert ready.budget_bytes > 1 << 20
    assert ready.single == ""


def test_rows_of_several_shards_finish_once_and_their_keys_are_logged_before(engine: EngineDriver) -> None:
    hash = engine.ready().model_hash
    engine.link.send(shard(prompts(100, 7), model_hash=hash, id="w-1"))
    engine.link.send(shard(prompts(110, 6), model_hash=hash, id="w-2"))
    rows = [*range(100, 107), *range(110, 116)]
    results = engine.finish(rows)
    assert {results[id].finish for id in rows} <= {Finish.LENGTH, Finish.STOP}
    assert results[103].input_tokens == 8
    assert any(results[id].text for id in rows)
    logged = engine.key_log.read_text().splitlines()
    assert {key_of(id).hex() for id in rows} <= set(logged)
    assert len(set(logged)) == len(logged)


def test_a_row_is_admitted_before_it_finishes(engine: EngineDriver) -> None:
    engine.link.send(shard(prompts(130, 3), model_hash=engine.ready().model_hash))
    engine.finish([130, 131, 132])
    admitted = [id for message in engine.heard(Admitted) for id in message.rows]
    assert [id for id in admitted if 130 <= id < 133] == [132, 131, 130]


def test_a_prefix_is_part_of_the_prompt(engine: EngineDriver) -> None:
    hash = engine.ready().model_hash
    engine.link.send(shard({140: [9, 8, 7, 6, 5]}, model_hash=hash))
    engine.link.send(shard({141: [6, 5]}, prefix=[9, 8, 7], model_hash=hash))
    results = engine.finish([140, 141])
    assert results[140].text == results[141].text
    assert results[141].input_tokens == 5


def test_rows_of_two_shared_prefixes_in_one_batch_answer_as_without(engine: EngineDriver) -> None:
    hash = engine.ready().model_hash
    draw = random.Random(11)
    shared = [[draw.randrange(3, 350) for _ in range(length)] for length in (140, 70)]
    rest = [[draw.randrange(3, 350) for _ in range(1 + n % 9)] for n in range(24)]
    plain = {500 + n: [*shared[n % 2], *rest[n]] for n in range(24)}
    engine.link.send(shard(plain, model_hash=hash, max_tokens=20))
    without = engine.finish(list(plain))
    before = pulses(engine)[-1].figures
    for at, prefix in enumerate(shared):
        rows = {600 + n: rest[n] for n in range(at, 24, 2)}
        engine.link.send(shard(rows, prefix=prefix, model_hash=hash, max_tokens=20, id=f"w-{60 + at}"))
    results = engine.finish(range(600, 624))
    after = pulses(engine)[-1].figures
    for n in range(24):
        assert replace(results[600 + n], id=500 + n) == without[500 + n]
    assert len({result.text for result in without.values()}) > 12
    assert after.prompt_tokens - before.prompt_tokens == 210 + sum(map(len, rest))
    assert after.shared_tokens - before.shared_tokens == 11 * 210


@pytest.mark.parametrize(
    ("id", "tokens", "max_tokens", "reason"),
    [
        (150, [5] * CONTEXT_TOKENS, 8, "over the model's context of 512"),
        (151, [5, 100_000], 8, "token 100000 is not in the model's vocabulary"),
        (152, [5], CONTEXT_TOKENS, "1 prompt tokens and 512 new ones"),
    ],
)
def test_a_row_that_can_never_run_is_an_error_with_figures(
    engine: EngineDriver, id: int, tokens: list[int], max_tokens: int, reason: str
) -> None:
    engine.link.send(shard({id: tokens}, model_hash=engine.ready().model_hash, max_tokens=max_tokens))
    result = engine.finish([id])[id]
    assert result.finish is Finish.ERROR
    assert result.error is not None
    assert reason in result.error


def test_a_shard_planned_for_other_weights_is_not_computed(engine: EngineDriver) -> None:
    engine.link.send(shard({160: [5, 6]}, model_hash="feed" * 16))
    result = engine.finish([160])[160]
    assert result.finish is Finish.ERROR
    assert "feedfeedfeed" in (result.error or "")


def test_seeded_rows_draw_the_same_alone_and_in_company(engine: EngineDriver) -> None:
    hash = engine.ready().model_hash
    seeded = Sampling(temperature=1.0, seed=5)
    engine.link.send(shard({170: [5, 6, 7]}, model_hash=hash, sampling=seeded, exclusive=True))
    alone = engine.finish([170])[170]
    engine.said = [message for message in engine.said if not isinstance(message, Finished)]
    engine.link.send(shard(prompts(171, 2), model_hash=hash, sampling=Sampling(temperature=1.0)))
    engine.link.send(shard({170: [5, 6, 7]}, model_hash=hash, sampling=seeded))
    assert engine.finish([170, 171, 172])[170].text == alone.text


def test_rows_of_unlike_sampling_get_the_answers_they_get_alone(engine: EngineDriver) -> None:
    hash = engine.ready().model_hash
    kinds = (
        Sampling(),
        Sampling(temperature=0.9, top_p=0.8, seed=3),
        Sampling(presence_penalty=2.0, frequency_penalty=1.5),
        Sampling(repetition_penalty=1.9),
        Sampling(temperature=1.0, seed=4, repetition_penalty=1.5, frequency_penalty=0.5),
        Sampling(stop=("e", "a")),
        Sampling(labels=("yes", "no"), label_tokens=((60, 61), (70,))),
    )
    rows = prompts(700, 3 * len(kinds))
    limits = {id: 5 + 3 * (id % 7) for id in rows}
    sent = [
        shard({id: tokens}, model_hash=hash, max_tokens=limits[id], sampling=kinds[id % len(kinds)], id=f"w-{id}")
        for id, tokens in rows.items()
    ]
    for each in sent:
        engine.link.send(replace(each, exclusive=True))
    alone = {id: result for id, result in engine.finish(list(rows)).items() if id in rows}
    engine.said = [message for message in engine.said if not isinstance(message, Finished)]
    for each in sent:
        engine.link.send(each)
    assert {id: result for id, result in engine.finish(list(rows)).items() if id in rows} == alone
    assert len({result.output_tokens for result in alone.values()}) > 5


def test_an_answer_among_labels_is_always_a_label(engine: EngineDriver) -> None:
    labels = Sampling(labels=("yes", "no", "none"), label_tokens=((60, 61), (70,), (70, 71)))
    engine.link.send(shard(prompts(180, 6), model_hash=engine.ready().model_hash, sampling=labels, max_tokens=1))
    results = engine.finish(range(180, 186))
    assert {results[id].text for id in range(180, 186)} <= {"yes", "no", "none"}
    assert {results[id].finish for id in range(180, 186)} == {Finish.STOP}


def test_cancelled_rows_give_no_result_and_the_others_do(engine: EngineDriver) -> None:
    hash = engine.ready().model_hash
    engine.link.send(shard(prompts(200, 30), model_hash=hash, max_tokens=60))
    engine.link.send(Cancel(rows=tuple(range(200, 229))))
    engine.link.send(shard({240: [5, 6]}, model_hash=hash))
    results = engine.finish([229, 240])
    assert len([id for id in results if 200 <= id < 229]) < 10


def test_exclusive_rows_run_with_nothing_else(engine: EngineDriver) -> None:
    hash = engine.ready().model_hash
    engine.link.send(shard(prompts(300, 8), model_hash=hash, max_tokens=200, id="w-3"))
    engine.link.send(shard({310: [5, 6, 7]}, model_hash=hash, max_tokens=200, exclusive=True, id="w-4"))
    engine.finish([*range(300, 308), 310])
    inside: set[int] = set()
    for message in engine.said[: engine.said.index(Admitted(rows=(310,))) + 1]:
        if isinstance(message, Admitted):
            inside |= set(message.rows)
        elif isinstance(message, Finished):
            inside -= {row.id for row in message.rows}
    assert inside & set(range(300, 311)) == {310}


def test_the_cap_changes_live_and_the_pulse_tells_of_it(engine: EngineDriver) -> None:
    hash = engine.ready().model_hash
    before = pulses(engine)[-1].figures
    engine.link.send(SetCap(rows=2))
    engine.link.send(shard(prompts(400, 6), model_hash=hash, max_tokens=30))
    engine.finish(range(400, 406))
    engine.link.send(SetCap(rows=0))
    after = pulses(engine)[-1].figures
    steps = after.steps - before.steps
    assert after.step_cap - before.step_cap == 2 * steps
    assert (after.step_rows - before.step_rows) / steps <= 2
    assert after.output_tokens - before.output_tokens <= 180
    assert after.peak_bytes > 0


def test_an_idle_engine_keeps_pulsing(engine: EngineDriver) -> None:
    first, second = pulses(engine, 2)
    assert first.running == second.running == ()
    assert second.waiting == 0


def test_weights_of_another_hash_are_refused(model: Path, tmp_path: Path) -> None:
    with EngineDriver(model, tmp_path, "--hash", "ab" * 32) as driver:
        driver.until(lambda: driver.heard(Refused))
        assert "abababababab" in driver.heard(Refused)[0].reason
        assert driver.process.wait(60) == 1


def test_a_poisoned_row_aborts_the_engine_by_its_key_and_the_text_stays_out_of_the_log(
    model: Path, tmp_path: Path
) -> None:
    faults = {"FLEET_TEST_FAULTS": "1", "FLEET_TEST_POISON_KEYS": key_of(2).hex()}
    with EngineDriver(model, tmp_path, "--cap", "2", env=faults) as driver:
        hash = driver.ready().model_hash
        driver.link.send(shard({1: [70, 71, 72, 73]}, model_hash=hash))
        driver.finish([1])
        driver.link.send(shard({2: [70, 71, 72, 73]}, model_hash=hash))
        with pytest.raises(AssertionError, match="the engine ended"):
            driver.finish([2])
        assert driver.process.wait(60) == -signal.SIGABRT
        assert driver.heard(Admitted)[-1].rows == (2,)
        assert driver.key_log.read_text().split() == [key_of(1).hex()]


def test_a_step_that_raises_ends_the_engine_with_its_rows_unreported(model: Path, tmp_path: Path) -> None:
    with EngineDriver(model, tmp_path, "--cap", "2") as driver:
        labels = Sampling(labels=("a",), label_tokens=((999_999,),))  # outside the vocabulary: the mask cannot be made
        driver.link.send(shard({1: [5, 6]}, model_hash=driver.ready().model_hash, sampling=labels))
        with pytest.raises(AssertionError, match="the engine ended, status 70"):
            driver.finish([1])
        assert "IndexError" in driver.log.read_text()
        assert driver.results() == {}


def test_the_engine_goes_when_the_other_end_goes_even_in_the_middle_of_work(model: Path, tmp_path: Path) -> None:
    with EngineDriver(model, tmp_path, "--cap", "4") as driver:
        driver.link.send(shard(prompts(1, 200), model_hash=driver.ready().model_hash, max_tokens=250))
        driver.until(lambda: driver.heard(Admitted))
        assert driver.close() == 0
        assert len(driver.key_log.read_text().split()) < 200


def test_an_unset_cap_is_measured(model: Path, tmp_path: Path) -> None:
    with EngineDriver(model, tmp_path) as driver:
        assert 1 < driver.ready().cap <= 64
        assert driver.close() == 0
        assert driver.log.read_text() == ""
