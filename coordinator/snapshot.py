"""The fleet at one moment, as `fleet status` shows it and the coordinator serves it: plain values, no live objects."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

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
    #: new tokens per second over the last minute
    output_tps: float = 0.0
    #: new tokens per second that its knee promises; 0 while not known
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
    #: new tokens per second over the last minute, and what the workers' speeds promise
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
