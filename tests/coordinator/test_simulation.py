"""The policy in virtual time, with the production modules: every run ends near the least time, each row once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ops.bench.simulate import OURS, main, simulate
from ops.bench.simulation import workload as workloads
from ops.bench.simulation.bound import bound_s, work_s
from ops.bench.simulation.machine import Fate, Machine, Parcel
from ops.bench.simulation.ours import Ours
from ops.bench.simulation.profiles import FASTEST_TPS, RANGE, fleet, profile
from ops.bench.simulation.run import Delays, Simulation
from ops.bench.simulation.scenarios import SCENARIOS

MACHINES = fleet(8)
#: Loose: 4,000 rows are a fifth of what the aims are for, so the tail weighs five times as much.
LIMIT = 1.2


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_scenario_ends_near_the_bound_and_every_row_is_recorded_once(scenario: str) -> None:
    """`Simulation.run` ends when each row is recorded and refuses a second record; it raises when it hangs."""
    line, outcome = simulate(scenario, OURS, workloads.make(4000, 1), MACHINES)
    assert 1 <= line.ratio < LIMIT, line
    assert outcome.twice <= outcome.copies


def test_an_equal_split_fails_the_same_limit() -> None:
    assert simulate("steady", "equal split", workloads.make(4000, 1), MACHINES)[0].ratio > 2 * LIMIT


def test_machines_far_faster_than_their_first_guess_are_used_in_full() -> None:
    """Sent a batch at a time, as if it took them 20 s, they never showed their speed: 1.3 to 1.5 of the bound."""
    fast = [
        replace(mac, row_tps=tuple(20 * rate for rate in mac.row_tps), prefill_tps=20 * mac.prefill_tps)
        for mac in MACHINES
    ]
    assert simulate("steady", OURS, workloads.make(6000, 1), fast)[0].ratio < LIMIT


def test_delays_are_those_that_are_given() -> None:
    """A row alone: its engine loads while the shard is on its way, and an idle worker sends its result at once."""
    workload = workloads.Workload(seed=0, prompts=np.array([1]), answers=np.array([100]))
    alone_s = 1 / MACHINES[0].prefill_tps + 100 / MACHINES[0].row_tps[1]
    for trip_s, load_s in ((0.5, 0.0), (0.5, 4.0)):
        delays = Delays(turn_s=0.01, trip_s=trip_s, load_s=load_s)
        run = Simulation(workload, MACHINES[:1], [Fate()], Ours(), delays=delays)
        assert run.run(alone_s).makespan_s == pytest.approx(max(trip_s, load_s) + alone_s, abs=0.05)


def test_a_worker_begins_with_the_longest_prompt_it_has() -> None:
    machine = Machine("mac", replace(MACHINES[0], cap=2), Fate())
    machine.queue += [Parcel("a", 0.0, [(1, 10, 5)]), Parcel("b", 0.0, [(2, 90, 5), (3, 50, 5)])]
    machine.advance(1000.0)
    assert [row for _, row, _ in machine.outbox] == [2, 3, 1]


def test_a_run_can_be_repeated() -> None:
    runs = [simulate("straggler", OURS, workloads.make(1000, 3), MACHINES)[0] for _ in range(2)]
    assert runs[0].makespan_s == runs[1].makespan_s


def test_a_row_alone_takes_as_long_as_its_profile_says() -> None:
    mac = profile("mac", "m3-ultra-9b-4bit", 528.0, even=False)
    machine = Machine("mac", mac, Fate())
    machine.queue.append(Parcel("s", 0.0, [(7, 750, 150)]))
    machine.advance(10.0)
    assert [(row, tokens) for _, row, tokens in machine.outbox] == [(7, 150)]
    assert machine.outbox[0][0] == pytest.approx(750 / 750 + 150 / 75)


def test_a_full_batch_decodes_at_the_knee_and_a_slump_slows_it() -> None:
    mac = profile("mac", "m3-ultra-9b-4bit", 528.0)
    assert (mac.cap, round(mac.decode_tps)) == (32, 528)
    times = []
    for factors in ((), ((0.0, 0.5),)):
        machine = Machine("mac", mac, Fate(factors=factors))
        machine.queue.append(Parcel("s", 0.0, [(row, 1, 330) for row in range(32)]))
        machine.advance(1000.0)
        times.append(machine.outbox[-1][0])
    assert times[0] == pytest.approx(32 * 330 / 528, rel=0.01)
    assert times[1] == pytest.approx(2 * times[0], rel=0.01)


def test_a_cancelled_row_ends_nowhere() -> None:
    machine = Machine("mac", MACHINES[0], Fate())
    machine.queue.append(Parcel("s", 0.0, [(row, 1, 100) for row in range(40)]))
    machine.advance(0.5)
    machine.cancel([0, 39])
    machine.advance(1000.0)
    assert sorted(row for _, row, _ in machine.outbox) == list(range(1, 39))
    assert machine.wasted_tokens > 0


def test_the_bound_is_work_over_speed_and_never_less_than_the_longest_row() -> None:
    workload = workloads.make(2000, 0)
    fates = [Fate() for _ in MACHINES]
    rates = [1 / (workload.answers.mean() / m.decode_tps + workload.prompts.mean() / m.prefill_tps) for m in MACHINES]
    assert bound_s(workload, MACHINES, fates) == pytest.approx(2000 / sum(rates), rel=1e-3)
    one = workloads.Workload(seed=0, prompts=np.array([1]), answers=np.array([2048]))
    assert bound_s(one, MACHINES, fates) == pytest.approx(2048 / max(m.row_tps[1] for m in MACHINES))


def test_the_bound_uses_that_some_machines_are_better_at_prompts() -> None:
    uneven = fleet(8, even=False)
    workload = workloads.make(2000, 0)
    rates = [1 / (workload.answers.mean() / m.decode_tps + workload.prompts.mean() / m.prefill_tps) for m in uneven]
    assert bound_s(workload, uneven, [Fate() for _ in uneven]) < 0.95 * 2000 / sum(rates)


def test_a_fate_gives_what_it_leaves_of_a_machine() -> None:
    fate = Fate(begins_s=10, dies_s=100, factors=((50, 0.5),))
    assert [work_s(fate, until) for until in (5, 30, 70, 1000)] == [0, 20, 50, 65]


def test_the_fleet_spans_ten_times_in_speed() -> None:
    speeds = [max(n * tps for n, tps in enumerate(mac.row_tps)) for mac in MACHINES]
    assert speeds[0] / speeds[-1] == pytest.approx(RANGE, rel=0.1)
    assert speeds[0] == pytest.approx(FASTEST_TPS, rel=0.05)


def test_a_backlog_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = workloads.make(50, 4, tie=0.5)
    workloads.write(made, tmp_path / "backlog.jsonl")
    read = workloads.read(tmp_path / "backlog.jsonl")
    assert (read.seed, read.max_tokens) == (4, made.max_tokens)
    assert np.array_equal(read.prompts, made.prompts)
    assert np.array_equal(read.answers, made.answers)


def test_answers_have_the_median_and_the_limit_they_are_said_to_have() -> None:
    made = workloads.make(20_000, 0)
    assert np.median(made.answers) == pytest.approx(200, rel=0.03)
    assert made.answers.max() == 2048
    assert abs(np.corrcoef(made.prompts, made.answers)[0, 1]) < 0.02


def test_the_command_prints_a_table_and_writes_runs_and_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = "--rows 400 --seeds 1 --scenario death --policy ours --json {0}/runs.json --picture {0}/deep/runs.png"
    monkeypatch.setattr("sys.argv", ["simulate", *asked.replace("{0}", str(tmp_path)).split()])
    assert main() == 0
    assert "death      ours" in capsys.readouterr().out
    assert '"ratio"' in (tmp_path / "runs.json").read_text()
    assert (tmp_path / "deep" / "runs.png").stat().st_size > 10_000
