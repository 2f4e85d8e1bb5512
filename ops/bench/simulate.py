"""Simulates a fleet: how long each policy takes for a backlog, over the least time possible.

python -m ops.bench.simulate --seeds 10
python -m ops.bench.simulate --seeds 1 --scenario straggler --picture build/straggler.png --json build/straggler.json
python -m ops.bench.simulate --machines 1000 --rows 1000000 --seeds 1 --scenario steady --policy ours --turn 2
python -m ops.bench.simulate --write build/backlog.jsonl

The policies see prompt lengths, beats and finished rows. The bound knows the answers' lengths and the speeds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from ops.bench.simulation import workload as workloads
from ops.bench.simulation.baselines import BASELINES
from ops.bench.simulation.bound import bound_s
from ops.bench.simulation.ours import Ours
from ops.bench.simulation.profiles import Profile, fleet
from ops.bench.simulation.run import Delays, Outcome, Policy, Simulation
from ops.bench.simulation.scenarios import SCENARIOS
from ops.bench.simulation.workload import Workload

OURS = "ours"
HEADS = ("median", "worst", "bound s", "copies", "moved", "wall s")


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
    #: makespan over bound
    ratio: float
    copies: int
    #: rows taken back from one worker for another
    moved: int
    #: tokens of rows that were cancelled or ended twice
    wasted_tokens: int
    wall_s: float


def simulate(
    scenario: str,
    policy: str,
    workload: Workload,
    profiles: Sequence[Profile],
    *,
    turn_s: float = 0.5,
    trace: bool = False,
) -> tuple[Line, Outcome]:
    """One run of a policy; AssertionError when it hangs."""
    steady_s = bound_s(workload, *SCENARIOS["steady"](profiles, 1.0))
    cast, fates = SCENARIOS[scenario](profiles, steady_s)
    least_s = bound_s(workload, cast, fates)
    chosen: Policy = Ours() if policy == OURS else BASELINES[policy]()
    began = time.perf_counter()
    outcome = Simulation(workload, cast, fates, chosen, delays=Delays(turn_s=turn_s), trace=trace).run(least_s)
    line = Line(
        scenario=scenario,
        policy=policy,
        seed=workload.seed,
        machines=len(profiles),
        rows=len(workload),
        makespan_s=outcome.makespan_s,
        bound_s=least_s,
        ratio=outcome.makespan_s / least_s,
        copies=outcome.copies,
        moved=outcome.moved,
        wasted_tokens=int(outcome.wasted_tokens),
        wall_s=time.perf_counter() - began,
    )
    return line, outcome


def table(lines: Sequence[Line]) -> str:
    """One text line for runs of one policy in one scenario."""
    ratios = [line.ratio for line in lines]
    middles = [median(getattr(line, name) for line in lines) for name in ("bound_s", "copies", "moved")]
    figures = "".join(f"{middle:9.0f}" for middle in middles)
    wall_s = median(line.wall_s for line in lines)
    first = lines[0]
    return f"{first.scenario:10} {first.policy:28}{median(ratios):9.4f}{max(ratios):9.4f}{figures}{wall_s:9.1f}"


def main() -> int:
    """Prints the table; writes what else is asked for."""
    args = _arguments()
    if args.write:
        workloads.write(workloads.make(args.rows, 0, tie=args.tie), args.write)
        return 0
    profiles = fleet(args.machines, even=args.prompts == "even")
    backlogs = (
        [workloads.read(args.backlog)]
        if args.backlog
        else [workloads.make(args.rows, seed, tie=args.tie) for seed in range(args.seeds)]
    )
    lines: list[Line] = []
    drawn: dict[str, tuple[Line, Outcome]] = {}
    print(f"{'scenario':10} {'policy':28}" + "".join(f"{head:>9}" for head in HEADS))
    for scenario in args.scenario:
        for policy in args.policy:
            some = []
            for backlog in backlogs:
                trace = args.picture is not None and policy not in drawn
                line, outcome = simulate(scenario, policy, backlog, profiles, turn_s=args.turn, trace=trace)
                some.append(line)
                if trace:
                    drawn[policy] = line, outcome
            lines += some
            print(table(some), flush=True)
    if args.json:
        args.json.write_text(json.dumps([asdict(line) for line in lines], indent=1), encoding="utf-8")
    if args.picture:
        from ops.bench.simulation.picture import draw

        caps = {profile.name: profile.cap for profile in profiles}
        draw(
            args.scenario[0],
            caps,
            {p: (x.makespan_s, x.bound_s, o.traces) for p, (x, o) in drawn.items()},
            args.picture,
        )
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", type=int, default=8)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tie", type=float, default=0.0, help="correlation of prompt and answer lengths (0)")
    parser.add_argument("--prompts", choices=("even", "solo"), default="even", help="prompt rates, see profiles.py")
    parser.add_argument("--turn", type=float, default=0.5, help="seconds between decisions (0.5)")
    parser.add_argument("--scenario", nargs="+", default=list(SCENARIOS), choices=list(SCENARIOS))
    parser.add_argument("--policy", nargs="+", default=[*BASELINES, OURS], choices=[*BASELINES, OURS])
    parser.add_argument("--backlog", type=Path, help="a file made by --write, instead of --rows and --seeds")
    parser.add_argument("--write", type=Path, help="writes the backlog of seed 0, and simulates nothing")
    parser.add_argument("--json", type=Path, help="writes every run")
    parser.add_argument("--picture", type=Path, help="draws each policy's first run (PNG)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
