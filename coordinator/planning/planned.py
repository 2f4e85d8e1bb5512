"""`fleet plan`: reads the input, makes the plan, prints it."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from coordinator.backlog_flags import intake_options
from coordinator.client.whereabouts import Place, place_or_record, state_dir
from coordinator.intake.intake import Intake
from coordinator.planning.plan import Answers, Machine, Plan, plan
from coordinator.planning.planning import Reading, answers, macs_of, this_machine
from coordinator.planning.tariff import Tariff, money
from coordinator.screens import failures
from coordinator.screens.progress import duration
from coordinator.screens.wording import counted
from fleet.config import StateDir
from fleet.errors import UsageError
from fleet.model import find_model, weights_hash


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan and what it rests on."""

    plan: Plan
    reading: Reading
    machines: tuple[Machine, ...]
    answers: Answers
    #: whether speeds are those that a fleet tells
    of_fleet: bool = False


def print_plan(args: argparse.Namespace, tariff: Tariff | None) -> None:
    """Does what `fleet plan` was asked. UsageError when no speed is known, after what the input has was printed."""
    inputs = [name if name == "-" else str(Path(name).absolute()) for name in args.inputs]
    state, place = state_dir(args), place_or_record(args)
    folder = find_model(args.model)
    model_hash = weights_hash(folder, state.root / "hashes.json")
    options = intake_options(args)
    intake = Intake(inputs, options, folder, model_hash)
    reading = Reading()
    for chunk in intake.chunks():
        reading.add(chunk)
    machines = _machines(place, state, args.model, folder, model_hash) if reading.load.rows else []
    if not machines:
        print(json.dumps(_backlog(reading)) if args.json else _backlog_line(reading))
        raise UsageError(_why_none(args.model, reading, of_fleet=place is not None))
    expected = answers(state, options.task, model_hash, reading.rows_per_request)
    made = plan(reading.load, machines, expected, tariff)
    planned = Planned(
        plan=made, reading=reading, machines=tuple(machines), answers=expected, of_fleet=place is not None
    )
    print(json.dumps(as_dict(planned)) if args.json else text(planned))


def _machines(place: Place | None, state: StateDir, model: str, folder: Path, model_hash: str) -> list[Machine]:
    """Those of the fleet at `place`, else this one; none where no speed is known."""
    if place is None:
        here = this_machine(state, folder, model_hash)
        return [here] if here is not None else []
    from coordinator.screens.fleet_status import FleetStatus

    source = FleetStatus(place)
    try:
        return macs_of(source(), model, folder)
    finally:
        source.close()


def _why_none(model: str, reading: Reading, *, of_fleet: bool) -> str:
    if not reading.load.rows:
        return "there is no row to plan for: `fleet run --dry-run` tells what is wrong with the lines"
    if of_fleet:
        return (
            "no Mac of the fleet has told its speed with this model: they do once they have worked with it for a "
            "minute; --local plans for this Mac alone"
        )
    return (
        f"no speed of this model was measured on this machine yet: `fleet bench {model}` does, in a few minutes. Short "
        "runs measure none, nor do runs with --batch; no run needs a plan"
    )


def as_dict(planned: Planned) -> dict[str, object]:
    """The plan as `--json` shows it."""
    return {**_backlog(planned.reading), **asdict(planned.plan), "assumed": assumptions(planned)}


def _backlog(reading: Reading) -> dict[str, object]:
    found = reading.found
    return {
        "requests": found.requests,
        "bad_lines": found.failed,
        "rows": reading.load.rows,
        "input_tokens": reading.load.input_tokens,
    }


def text(planned: Planned) -> str:
    """The plan as a person reads it."""
    made = planned.plan
    least, mean, most = made.output_tokens
    shortest, expected, longest = map(duration, made.seconds)
    lines = [
        _backlog_line(planned.reading),
        _line("answers", f"about {mean:,} new tokens ({least:,} to {most:,})"),
        _line("time", f"about {expected} ({shortest} to {longest}), without loading the model"),
        *[_line("speed", _speed(machine)) for machine in planned.machines],
    ]
    if len(made.parts) > 1:
        lines += [_line("share", f"{part.share:.0%} {part.name}: {counted(part.rows, 'row')}") for part in made.parts]
    if made.unfit_rows:
        lines.append(_line("memory", f"{counted(made.unfit_rows, 'row')} need about more than there is: they may fail"))
    if made.kwh is not None:
        lines.append(_line("energy", _energy(made)))
    return "\n".join([*lines, *[_line("assumed", told) for told in assumptions(planned)]])


def assumptions(planned: Planned) -> list[str]:
    """What the plan takes for granted."""
    measured = sorted({bucket for machine in planned.machines for bucket in machine.rates})
    lengths = ", ".join(f"{bucket:,}" for bucket in measured)
    here = f"speeds measured with rows of up to {lengths} tokens; others run like the next longer"
    return [
        planned.answers.origin,
        "speeds as the Macs tell them now" if planned.of_fleet else here,
        "nothing is recorded yet, and no rows are equal or share a prefix: those cost less",
    ]


def _backlog_line(reading: Reading) -> str:
    found, load = reading.found, reading.load
    parts = [
        counted(found.requests, "request"),
        counted(load.rows, "row"),
        counted(load.input_tokens, "prompt token"),
        *([counted(found.failed, "bad line")] if found.failed else []),
    ]
    return "\n".join([_line("backlog", ", ".join(parts)), *failures.lines(found.failures.kinds())])


def _speed(machine: Machine) -> str:
    fastest = max(machine.rates.values(), key=lambda rates: rates.decode_tps)
    return f"{fastest.decode_tps:,.0f} tok/s with {counted(fastest.batch, 'row')} together on {machine.name}"


def _energy(made: Plan) -> str:
    kwh = made.kwh or 0.0
    parts = [f"about {kwh:,.2f} kWh" if kwh >= 0.1 else f"about {1000 * kwh:,.1f} Wh"]
    if made.cost is not None:
        parts.append(f"{money(made.cost)} in all")
    if made.cost_per_million is not None:
        parts.append(f"{money(made.cost_per_million)} for a million new tokens")
    return ", ".join(parts)


def _line(name: str, value: str) -> str:
    return f"{name:<9} {value}"
