"""The fleet at one moment, as `fleet status` shows it and the coordinator serves it: plain values, no live objects."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from fleet.errors import DecodeError

#: Raised by one whenever a field changes its meaning or goes; new fields may come without.
SCHEMA = 1


class MacState(StrEnum):
    """What a Mac is doing, in the words that a person reads."""

    #: on the network, and not (or not rightly) joined
    PRESENT = "present"
    JOINING = "joining"
    LOADING = "loading model"
    MEASURING = "measuring knee"
    WORKING = "working"
    IDLE = "idle"
    PAUSED = "paused"
    THROTTLED = "throttled"
    STOPPING = "leaving"
    #: its lease runs out: no beat for longer than one should take
    STALE = "stale"
    #: its lease ran out; its rows are back in the pool
    LOST = "lost"
    KICKED = "kicked"


@dataclass(frozen=True, slots=True, kw_only=True)
class MacLine:
    """One Mac."""

    #: the worker's id, empty for one that only advertises itself
    id: str
    name: str
    state: MacState
    #: why it is in this state, where the word alone does not say it: "battery", "wrong token"
    note: str = ""
    chip: str = ""
    #: memory of the machine, bytes; 0 when not known
    memory_bytes: int = 0
    #: most bytes its engine has held; 0 before one was loaded
    used_bytes: int = 0
    #: rows decoding together at most, 0 before an engine is loaded
    cap: int = 0
    #: rows decoding now
    running: int = 0
    #: rows dispatched to it and not recorded
    assigned: int = 0
    #: new tokens per second over the last minute, or tokens read where it embeds
    output_tps: float = 0.0
    #: tokens per second that its knee promises; 0 while not known
    measured_tps: float = 0.0
    #: its part of the fleet's speed, 0 to 1
    share: float = 0.0
    #: rows of it recorded since the coordinator started
    rows_done: int = 0
    #: model its engine holds, empty without one
    model: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLine:
    """One job that is not over, or was over lately."""

    id: int
    task: str
    model: str
    #: queued, reading (intake), running, writing, finished, failed, cancelled
    state: str
    #: why, for a job that failed
    error: str = ""
    priority: int = 0
    requests: int = 0
    #: False while requests is still growing
    intake_complete: bool = False
    done: int = 0
    failed: int = 0
    #: rows sent again after a fault
    retried: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    #: new tokens per second over the last minute, or tokens read where it embeds, and what the workers' speeds promise
    output_tps: float = 0.0
    planned_tps: float = 0.0
    #: prompt tokens computed only to make rows equally long, as a share of all computed
    padding_share: float = 0.0
    #: seconds until the end, soonest and latest; None while nothing is known
    eta_s: tuple[float, float] | None = None
    #: unix seconds
    created: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something worth telling: a Mac came or went, work was moved, a fault was met."""

    #: unix seconds, of the coordinator's clock
    at: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSnapshot:
    """Everything `fleet status` needs."""

    schema: int = SCHEMA
    #: mlx-fleet's version
    version: str
    #: the coordinator's name and the addresses it answers on, `host:port`
    coordinator: str
    addresses: tuple[str, ...] = ()
    #: unix seconds
    started: float = 0.0
    now: float = 0.0
    jobs: tuple[JobLine, ...] = ()
    macs: tuple[MacLine, ...] = ()
    #: oldest first
    events: tuple[Event, ...] = ()


def snapshot_from_json(data: object) -> FleetSnapshot:
    """The snapshot whose `asdict` was made JSON; DecodeError for another schema or anything that is no snapshot.

    Fields that this version does not know are passed over: a newer coordinator may send more.
    """
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        raise DecodeError(
            f"the coordinator tells its status in form {schema!r} and this fleet reads form {SCHEMA}: "
            "bring both to one version of mlx-fleet"
        )
    snapshot = _read(data, FleetSnapshot, "status")
    assert isinstance(snapshot, FleetSnapshot)
    return snapshot


def _read(value: Any, kind: Any, where: str) -> Any:
    """`value` from JSON as `kind`: a dataclass, a tuple, an optional, an enum or a plain type."""
    if is_dataclass(kind):
        return _read_fields(value, kind, where)
    origin, inside = get_origin(kind), get_args(kind)
    if origin is UnionType:
        (some,) = (part for part in inside if part is not NoneType)
        return None if value is None else _read(value, some, where)
    if origin is tuple and isinstance(value, list | tuple):
        if inside[-1] is not Ellipsis and len(inside) != len(value):
            raise _unreadable(where)
        kinds = [inside[0]] * len(value) if inside[-1] is Ellipsis else inside
        return tuple(_read(item, kind, where) for item, kind in zip(value, kinds, strict=True))
    if kind is MacState and value in list(MacState):
        return MacState(value)
    accepted = (int, float) if kind is float else kind
    if (
        kind not in (str, int, float, bool)
        or not isinstance(value, accepted)
        or (kind is not bool and isinstance(value, bool))
    ):
        raise _unreadable(where)
    return value


def _read_fields(value: Any, kind: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise _unreadable(where)
    hints = get_type_hints(kind)
    known = {field.name: field for field in fields(kind)}
    lacking = [name for name, field in known.items() if name not in value and field.default is MISSING]
    if lacking:
        raise _unreadable(f"{where}.{lacking[0]}")
    return kind(**{name: _read(value[name], hints[name], f"{where}.{name}") for name in known if name in value})


def _unreadable(where: str) -> DecodeError:
    return DecodeError(f"the coordinator's {where} cannot be read: is it the same version of mlx-fleet?")
