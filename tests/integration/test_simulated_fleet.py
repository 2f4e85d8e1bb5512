"""Real processes against the simulator: the same rows on the same machines end as it says, over the least possible."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from pathlib import Path

import pytest

from ops.bench.simulation import workload as workloads
from ops.bench.simulation.bound import bound_s
from ops.bench.simulation.machine import Fate
from ops.bench.simulation.ours import Ours
from ops.bench.simulation.profiles import Profile, fleet
from ops.bench.simulation.run import Delays, Simulation
from ops.bench.simulation.workload import Workload
from tests.paced_fleet import PacedFleet, calibrated, faster, trip_s

#: Machines run so many times faster than the Macs of the simulation, so that 20,000 rows take six minutes.
SCALE = 10.0
ROWS = 20_000
#: How far apart real and simulated time may be, each over its bound.
APART = 0.02
#: The last rows fall now here, now there: the simulator is asked with turns a little shorter and longer, too.
TURNS = (0.8, 0.9, 1.0, 1.1, 1.2)


def least_s(workload: Workload, machines: Sequence[Profile]) -> float:
    return bound_s(workload, machines, [Fate() for _ in machines])


def simulated(workload: Workload, machines: Sequence[Profile], delays: Delays) -> tuple[float, list[float]]:
    """What the simulator says: the time, and each machine's at work, over the bound."""
    bound = least_s(workload, machines)
    run = Simulation(workload, machines, [Fate() for _ in machines], Ours(), delays=delays)
    took_s = run.run(bound).makespan_s
    figures = [run.machines[mac.name].figures() for mac in machines]
    return took_s / bound, [round((each.decode_s + each.prefill_s) / bound, 3) for each in figures]


def test_a_few_rows_on_two_paced_machines_take_no_less_than_the_bound(tmp_path: Path) -> None:
    machines = [faster(mac, 40.0) for mac in fleet(8)[:4:3]]
    workload = workloads.make(200, 3)
    with PacedFleet(tmp_path / "fleet", machines, workload) as started:
        took_s = started.run(within_s=60)
    assert 1 <= took_s / least_s(workload, machines) < 10, took_s


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_eight_workers_take_as_long_as_the_simulator_says(tmp_path: Path) -> None:
    machines = [faster(mac, SCALE) for mac in fleet(8)]
    workload = workloads.make(ROWS, 1)
    trip = trip_s(tmp_path / "trip", machines[0])
    bound = least_s(workload, calibrated(tmp_path / "calibration", machines))
    with PacedFleet(tmp_path / "fleet", machines, workload) as started:
        took_s = started.run(within_s=4 * bound)
        load = statistics.mean(started.load_s(mac.name) for mac in machines)
        turn_s = took_s / started.turns
        busy = [round(started.busy_s(mac.name) / bound, 3) for mac in machines]
    delays = [Delays(turn_s=turn_s * turn, trip_s=trip, load_s=load) for turn in TURNS]
    said = [simulated(workload, machines, each) for each in delays]
    ratio, expected = took_s / bound, statistics.median(each for each, _ in said)
    print(
        f"{took_s:.1f} s over a bound of {bound:.1f} s: {ratio:.4f}; simulated {[round(each, 4) for each, _ in said]}"
    )
    print(f"turn {turn_s:.3f} s, trip {trip:.3f} s, loading {load:.2f} s, load average {os.getloadavg()}")
    print(f"at work {busy}; simulated {said[0][1]}")
    assert took_s >= 180
    assert ratio == pytest.approx(expected, abs=APART)
