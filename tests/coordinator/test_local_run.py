"""What a run on this machine says when it ends."""

from __future__ import annotations

from types import SimpleNamespace

from coordinator.broker.dispatch import Lease, Sight
from coordinator.control.local_run import STOPPING, hear, how_to_go_on, stopping
from coordinator.control.member import Member
from coordinator.control.run_view import RunView
from coordinator.records import Counts
from coordinator.screens.progress import figures
from fleet.messages import Figures
from tests.post import beat


def test_after_an_interruption_it_is_told_what_is_recorded_where_there_is_something() -> None:
    assert how_to_go_on(4, Counts(requests=9)) == "interrupted with 0 of 9 requests done; the same command begins again"
    assert how_to_go_on(4, Counts(requests=9, done=2)) == (
        "interrupted with 2 of 9 requests done, all of them recorded; the same command goes on from there, "
        "`fleet results 4` writes what is there"
    )


def test_a_run_that_only_finishes_its_batch_does_not_tell_how_long_the_whole_job_would_take() -> None:
    counts = Counts(requests=9, done=2)
    view = RunView(
        counts=counts, intake_ended=True, output_tps=5.0, prompt_tps=0.0, computed=2, left_s=90.0, state=STOPPING
    )
    assert figures(view)[-1] == "about 1:30 left"
    assert figures(stopping(view, 0)) == ["2/9 requests", "5 tok/s"]
    assert figures(stopping(view, 7)) == ["2/9 requests", "5 tok/s", "7 rows of the batch left"]


def test_while_the_batch_is_finished_beats_are_still_heard() -> None:
    # The rate stood still for as long as the batch took, and nobody could say how much of it was left.
    member = Member(id="w", local=True)
    for now_s, tokens, running in [(0.0, 0, ((1, 0), (2, 0))), (10.0, 50, ((2, 40),)), (11.0, 0, None)]:
        told = beat("w", running=running, figures=Figures(output_tokens=tokens)) if running else None
        lease = Lease(beat=told, ttl_ms=10_000) if told else None  # in the end the worker has gone
        dispatch = SimpleNamespace(sights=lambda _, lease=lease: {"w": Sight(queued=frozenset(), lease=lease)})
        hear(SimpleNamespace(dispatch=dispatch, clock=lambda now_s=now_s: now_s), member)  # type: ignore[arg-type]
    assert (member.throughput.output_tps, member.running) == (5.0, (2,))
