"""Simulates a fleet: how long each policy takes for a backlog, over the least time possible.

python -m ops.bench.simulate --rows 20000 --seeds 10 --scenario steady straggler death late drift
python -m ops.bench.simulate --machines 1000 --rows 1000000 --seeds 1 --policy ours --turn 1
python -m ops.bench.simulate --seeds 1 --picture build/simulated.png --json build/simulated.json
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from ops.bench.simulation import workload as workloads
from ops.bench.simulation.baselines import BASELINES
from ops.bench.simulation.bound import bound_s
from ops.bench.simulation.ours import Ours
from ops.bench.simulation.profiles import fleet
from ops.bench.simulation.run import Outcome, Policy, Simulation
from ops.bench.simulation.scenarios import SCENARIOS

OURS = "ours"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One run."""

    scenario: str
    policy: str
    seed: int
    machines: int
    rows: int
    makespan_s: float
    bound_s: float
    copies: int
    steals: int
    wasted_tokens: int
    wall_s: float

    @property
    def ratio(self) -> float:
        return self.makespan_s / self.bound_s


def simulate(
    scenario: str, policy: str, *, machines: int, rows: int, seed: int, turn_s: float, trace: bool = False
) -> tuple[Line, Outcome]:
    """One run of a policy."""
    workload = workloads.make(rows, seed)
    profiles = fleet(machines)
    steady_s = bound_s(workload, *SCENARIOS["steady"](profiles, 1.0))
    profiles, fates = SCENARIOS[scenario](profiles, steady_s)
    least_s = bound_s(workload, profiles, fates)
    chosen: Policy = Ours() if policy == OURS else BASELINES[policy]()
    began = time.perf_counter()
    outcome = Simulation(workload, profiles, fates, chosen, turn_s=turn_s, trace=trace).run(least_s)
    line = Line(
        scenario=scenario,
        policy=policy,
        seed=seed,
        machines=machines,
        rows=rows,
        makespan_s=outcome.makespan_s,
        bound_s=least_s,
        copies=outcome.copies,
        steals=outcome.steals,
        wasted_tokens=int(outcome.wasted_tokens),
        wall_s=time.perf_counter() - began,
    )
    return line, outcome


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", type=int, default=8)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--turn", type=float, default=0.5, help="seconds between decisions")
    parser.add_argument("--scenario", nargs="+", default=list(SCENARIOS), choices=list(SCENARIOS))
    parser.add_argument("--policy", nargs="+", default=[*BASELINES, OURS], choices=[*BASELINES, OURS])
    parser.add_argument("--json", type=Path, help="writes every run")
    parser.add_argument("--picture", type=Path, help="draws the first seed of the first scenario (PNG)")
    return parser.parse_args()


def main() -> int:
    args = _arguments()
    lines: list[Line] = []
    drawn: dict[str, tuple[Line, Outcome]] = {}
    print(
        f"{'scenario':10} {'policy':28} {'median':>7} {'worst':>7} {'bound s':>8} {'copies':>7} {'steals':>7} {'wall s':>7}"
    )
    for scenario in args.scenario:
        for policy in args.policy:
            some = []
            for seed in range(args.seeds):
                trace = args.picture is not None and scenario == args.scenario[0] and seed == 0
                line, outcome = simulate(
                    scenario, policy, machines=args.machines, rows=args.rows, seed=seed, turn_s=args.turn, trace=trace
                )
                some.append(line)
                if trace:
                    drawn[policy] = line, outcome
            lines += some
            ratios = [line.ratio for line in some]
            print(
                f"{scenario:10} {policy:28} {median(ratios):7.4f} {max(ratios):7.4f}"
                f" {median(line.bound_s for line in some):8.0f} {median(line.copies for line in some):7.0f}"
                f" {median(line.steals for line in some):7.0f} {median(line.wall_s for line in some):7.1f}",
                flush=True,
            )
    if args.json:
        args.json.write_text(json.dumps([{**asdict(line), "ratio": line.ratio} for line in lines], indent=1))
    if args.picture:
        from ops.bench.simulation.picture import draw

        draw(drawn, args.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
