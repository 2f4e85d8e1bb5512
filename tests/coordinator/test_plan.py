"""Plans: pure arithmetic over lengths, speeds and memories."""

from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.commands.plan import split_task
from coordinator.planning.machine import longest_row
from coordinator.planning.plan import (
    LABELS,
    PROMPT_OVER_DECODE,
    UNKNOWN,
    USUAL,
    WORST,
    Answers,
    Load,
    Machine,
    Plan,
    Rates,
    expected_answers,
    machine,
    plan,
)
from coordinator.planning.planning import learnt
from coordinator.planning.run_plan import RunPlan
from coordinator.planning.tariff import Tariff, watts
from coordinator.records import Counts, JobRecord, JobStatus
from fleet.curve import Curve, Prefill, PrefillSample, Sample
from fleet.errors import UsageError
from fleet.job import JobState, Task
from tests import ledgers

#: Answers that use all that they may.
FULL = Answers(least=1.0, mean=1.0, most=1.0, in_tokens=False, origin="")


def mac(name: str, decode_tps: float, *, batch: int = 1, longest: int = 0) -> Machine:
    rates = Rates(batch=batch, decode_tps=decode_tps, prefill_tps=10 * decode_tps)
    return Machine(name=name, rates={256: rates}, longest_tokens=longest)


def load(*groups: tuple[int, int, int]) -> Load:
    """Of (rows, prompt tokens, max_tokens)."""
    made = Load()
    for rows, prompt, most in groups:
        for _ in range(rows):
            made.add(prompt, most)
    return made


def expected_s(made: Plan) -> float:
    return made.seconds[1] * USUAL


def test_one_mac_takes_new_tokens_over_its_rate_and_prompts_over_theirs() -> None:
    made = plan(load((100, 100, 20)), [mac("a", 100.0)], FULL)
    assert expected_s(made) == pytest.approx(100 * (20 / 100 + 100 / 1000))
    assert made.output_tokens == (2000, 2000, 2000)
    assert (made.rows, made.input_tokens, made.unfit_rows) == (100, 10_000, 0)


def test_two_macs_end_together_and_share_by_speed() -> None:
    made = plan(load((1000, 0, 30)), [mac("fast", 300.0), mac("slow", 100.0)], FULL)
    assert expected_s(made) == pytest.approx(1000 * 30 / 400)
    assert [(part.name, part.rows, part.share) for part in made.parts] == [("fast", 750, 0.75), ("slow", 250, 0.25)]
    assert made.parts[0].seconds == pytest.approx(made.parts[1].seconds)


def test_a_mac_gets_no_row_longer_than_its_memory_holds() -> None:
    macs = [mac("big", 100.0), mac("small", 100.0, longest=1024)]
    made = plan(load((100, 2000, 100), (10, 0, 100)), macs, FULL)
    # the long ones keep the big one busy for 300 s; the small one does all short ones, in 10 s
    assert {part.name: part.rows for part in made.parts} == {"big": 100, "small": 10}
    assert expected_s(made) == pytest.approx(300.0)


def test_short_rows_level_out_what_long_rows_left_uneven() -> None:
    macs = [mac("big", 100.0), mac("small", 100.0, longest=1024)]
    made = plan(load((10, 2000, 100), (100, 0, 100)), macs, FULL)
    assert expected_s(made) == pytest.approx((10 * 3 + 100) / 2)


def test_rows_that_fit_nowhere_are_counted_and_left_out() -> None:
    made = plan(load((3, 5000, 10), (7, 10, 10)), [mac("a", 100.0, longest=4096)], FULL)
    assert (made.unfit_rows, made.rows, made.input_tokens) == (3, 7, 70)


def test_when_nothing_fits_there_is_nothing_to_do() -> None:
    made = plan(load((3, 5000, 10)), [mac("a", 100.0, longest=256)], FULL)
    assert (made.unfit_rows, made.rows, made.seconds, made.output_tokens) == (3, 0, (0.0, 0.0, 0.0), (0, 0, 0))


def test_no_plan_is_shorter_than_its_longest_row() -> None:
    # one row decodes at the rate of one row, not of the batch of 32
    made = plan(load((1, 0, 100)), [mac("a", 320.0, batch=32)], FULL)
    assert expected_s(made) == pytest.approx(10.0)


def test_the_range_covers_answers_and_pace() -> None:
    made = plan(load((100, 0, 100)), [mac("a", 100.0)], UNKNOWN)
    assert made.output_tokens == (2500, 5000, 10_000)
    assert made.seconds == pytest.approx((25.0, 50.0 / USUAL, 100.0 / WORST))


def test_energy_is_that_of_each_macs_time_and_cost_follows() -> None:
    tariff = Tariff(watts=watts("fast=300,slow=60"), price=0.5)
    made = plan(load((1000, 0, 30)), [mac("fast", 300.0), mac("slow", 100.0)], FULL, tariff)
    kwh = 360 * made.seconds[1] / 3.6e6
    assert made.kwh == pytest.approx(kwh)
    assert made.cost == pytest.approx(kwh / 2)
    assert made.cost_per_million == pytest.approx(kwh / 2 / 30_000 * 1e6)
    free = plan(load((1, 0, 30)), [mac("fast", 300.0)], FULL, replace(tariff, price=None))
    assert (free.kwh is not None, free.cost, free.cost_per_million) == (True, None, None)


def test_a_length_that_was_not_measured_runs_like_the_next_longer_one() -> None:
    rates = {bucket: Rates(batch=1, decode_tps=bucket, prefill_tps=1.0) for bucket in (512, 2048)}
    machine = Machine(name="a", rates=rates)
    assert [machine.rates_of(tokens).decode_tps for tokens in (10, 512, 513, 9000)] == [512, 512, 2048, 2048]


# -- curves ----------------------------------------------------------------------------------------


def curve(*, scale: float = 1.0, prefill: tuple[PrefillSample, ...] = ()) -> Curve:
    samples = tuple(Sample(rows=rows, tps=tps) for rows, tps in ((1, 100.0), (8, 390.0), (16, 400.0)))
    return Curve(bucket_tokens=256, samples=samples, scale=scale, prefill=prefill)


def test_a_macs_rates_are_those_at_the_knee_as_corrected_while_running() -> None:
    slow, fast = (Prefill(rows=rows, tokens=512) for rows in (1, 2))
    prefill = (PrefillSample(setting=slow, tps=2000.0), PrefillSample(setting=fast, tps=3000.0))
    made = machine("a", {256: curve(scale=0.5, prefill=prefill)})
    assert made is not None
    assert made.rates == {256: Rates(batch=8, decode_tps=195.0, prefill_tps=3000.0)}


def test_prompts_that_were_not_timed_are_reckoned_from_decoding() -> None:
    made = machine("a", {256: curve()})
    assert made is not None
    assert made.rates[256].prefill_tps == PROMPT_OVER_DECODE * 390.0


def test_without_a_sample_there_is_no_machine() -> None:
    assert machine("a", {256: Curve(bucket_tokens=256)}) is None


# -- answers ---------------------------------------------------------------------------------------


def job(*, done: int, output_tokens: int, task: Task = Task.GENERATE, model_hash: str = "ab") -> JobStatus:
    record = JobRecord(
        id=1,
        spec=replace(ledgers.spec(task=task), model_hash=model_hash),
        state=JobState.FINISHED,
        created=0.0,
        intake_complete=True,
        signature="",
    )
    return JobStatus(record=record, counts=Counts(requests=done, done=done, output_tokens=output_tokens))


def test_answers_are_learnt_from_jobs_of_the_task_and_model_alone() -> None:
    jobs = [
        job(done=10, output_tokens=1000),
        job(done=30, output_tokens=1500),
        job(done=10, output_tokens=9, task=Task.SUMMARIZE),
        job(done=10, output_tokens=9, model_hash="cd"),
        job(done=0, output_tokens=0),
    ]
    found = learnt(jobs, Task.GENERATE, "ab", 1.0)
    assert found is not None
    assert (found.least, found.mean, found.most) == (50.0, 62.5, 100.0)
    assert found.origin == "62 new tokens a row, as in 2 earlier jobs"
    assert learnt(jobs[2:], Task.GENERATE, "ab", 1.0) is None


def test_a_request_of_several_rows_spreads_its_answer_over_them() -> None:
    found = learnt([job(done=10, output_tokens=1000)], Task.GENERATE, "ab", 4.0)
    assert found is not None
    assert found.mean == 25.0


def test_learnt_answers_are_no_longer_than_rows_allow() -> None:
    found = expected_answers([(10, 100.0)])
    assert found is not None
    assert plan(load((10, 0, 60)), [mac("a", 1.0)], found).output_tokens == (600, 600, 600)


# -- a run's own plan ------------------------------------------------------------------------------


def watched(run: RunPlan) -> None:
    requests = [ledgers.request("a", 1), ledgers.request("b", 2, 3), ledgers.request(None, error="bad")]
    assert list(run.watch([requests])) == [requests]


def test_a_run_plans_what_it_reads_and_compares_what_it_computed() -> None:
    run = RunPlan(mac("a", 10.0), Task.GENERATE, "ab", [])
    watched(run)
    whole = (3 * 4 / 10 + 3 * 3 / 100) / USUAL  # 3 rows of 3 prompt tokens and half of 8 new ones
    assert run.seconds(3) == pytest.approx(whole)
    assert run.seconds(2) is None


def test_a_run_counts_labels_whole_and_learns_from_earlier_jobs() -> None:
    labels = RunPlan(mac("a", 10.0), Task.CLASSIFY, "ab", [])
    learning = RunPlan(mac("a", 10.0), Task.GENERATE, "ab", [job(done=2, output_tokens=6)])
    watched(labels)
    watched(learning)
    assert labels.seconds(3) == pytest.approx((3 * 8 * LABELS.mean / 10 + 9 / 100) / USUAL)
    assert learning.seconds(3) == pytest.approx((3 * 2 / 10 + 9 / 100) / USUAL)  # 3 a request, 3 rows of 2 requests


@pytest.mark.parametrize(("machine", "task"), [(None, Task.GENERATE), (mac("a", 1.0), Task.EMBED)])
def test_without_a_speed_or_for_vectors_a_run_has_no_plan(machine: Machine | None, task: Task) -> None:
    run = RunPlan(machine, task, "ab", [])
    watched(run)
    assert run.seconds(3) is None


# -- the command's words and the machine -----------------------------------------------------------


def test_the_task_may_stand_in_front_of_the_inputs(tmp_path: Path) -> None:
    assert split_task(["summarize", "a", "b"]) == (Task.SUMMARIZE, ["a", "b"])
    assert split_task(["summarize"]) == (Task.GENERATE, ["summarize"])
    assert split_task(["-", str(tmp_path)]) == (Task.GENERATE, ["-", str(tmp_path)])
    with pytest.raises(UsageError, match="neither a file nor a task sumarize, did you mean summarize"):
        split_task(["sumarize", "a"])


def test_the_longest_row_is_what_memory_leaves_beside_the_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 1, "hidden_size": 64}'
    )
    (tmp_path / "a.safetensors").write_bytes(b"0" * 1000)
    kv_bytes = 2 * 2 * 1 * 16 * 2
    assert longest_row(tmp_path, 1_000_000) == int((0.85 * 0.75 * 1_000_000 - 1000) / (2 * kv_bytes))
    assert longest_row(tmp_path, 1000) == 1
    assert longest_row(tmp_path, 0) == 0
    (tmp_path / "config.json").write_text('{"text_config": {"num_hidden_layers": 2}}')
    assert longest_row(tmp_path, 1_000_000) == 0
