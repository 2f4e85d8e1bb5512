"""Snapshots of fleets, for the tests of what is shown of them."""

from __future__ import annotations

from coordinator.screens.snapshot import Event, FleetSnapshot, JobLine, MacLine, MacState

NOW = 1_800_000_000.0
_CHIPS = ("Apple M3 Ultra", "Apple M5 Max", "Apple M4 Pro", "Apple M2", "Apple M4", "Apple M1 Max", "Apple M1", "")
_STATES = (
    (MacState.WORKING, ""),
    (MacState.WORKING, ""),
    (MacState.THROTTLED, ""),
    (MacState.PAUSED, "battery"),
    (MacState.LOADING, ""),
    (MacState.WORKING, ""),
    (MacState.STALE, ""),
    (MacState.PRESENT, "wrong token"),
)


def mac(number: int) -> MacLine:
    """One of eight kinds of Mac, again and again."""
    kind = number % 8
    state, note = _STATES[kind]
    joined = state is not MacState.PRESENT
    works = state in (MacState.WORKING, MacState.THROTTLED)
    return MacLine(
        id=f"w-{number}" if joined else "",
        name=f"{('studio', 'mbp-anna', 'mini-kitchen', 'air', 'mini-2', 'mbp-old', 'air-2', 'imac')[kind]}"
        + (f"-{number}" if number >= 8 else ""),
        state=state,
        note=note,
        chip=_CHIPS[kind],
        memory_bytes=(8 << 30) * (1 + kind),
        used_bytes=(5 << 30) * (1 + kind) if joined else 0,
        cap=32 if joined else 0,
        running=30 if works else 0,
        assigned=120 if works else 0,
        output_tps=1234.5 / (1 + kind) if works else 0.0,
        measured_tps=1300.0 / (1 + kind) if joined else 0.0,
        share=0.4 / (1 + kind) if works else 0.0,
        rows_done=1000 * kind,
        model="mlx-community/Qwen3-4B-4bit" if joined else "",
    )


def job(number: int) -> JobLine:
    """A job of any state."""
    kind = number % 4
    state = ("running", "queued", "reading", "failed")[kind]
    return JobLine(
        id=number + 1,
        task=("summarize", "classify", "generate", "generate")[kind],
        model="mlx-community/Qwen3-4B-4bit",
        state=state,
        error="no worker can load the model: mini has 16 GB" if state == "failed" else "",
        requests=100_000,
        intake_complete=state != "reading",
        done=12_345 if state != "queued" else 0,
        failed=4,
        retried=17,
        output_tps=1_834.0 if state == "running" else 0.0,
        planned_tps=1_950.0 if state == "running" else 0.0,
        padding_share=0.031,
        eta_s=(3_900.0, 4_800.0) if state == "running" else None,
    )


def fleet(macs: int, jobs: int = 3, events: int = 5) -> FleetSnapshot:
    """A fleet at NOW."""
    texts = ("air joined", "mini-kitchen throttled: share 11 -> 8 %", "air paused: battery", "air-2 gives no beat", "x")
    return FleetSnapshot(
        version="1.0",
        coordinator="studio",
        addresses=("192.168.1.20:7433", "[fe80::1]:7433"),
        started=NOW - 7380,
        now=NOW,
        jobs=tuple(map(job, range(jobs))),
        macs=tuple(map(mac, range(macs))),
        events=tuple(Event(at=NOW - 700 / (1 + n) ** 2, text=texts[n % 5]) for n in range(events)),
    )
