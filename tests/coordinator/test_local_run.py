"""What a run on this machine says when it ends."""

from __future__ import annotations

from coordinator.control.local_run import STOPPING, how_to_go_on, stopping
from coordinator.control.run_view import RunView
from coordinator.records import Counts
from coordinator.screens.progress import figures


def test_after_an_interruption_it_is_told_what_is_recorded_where_there_is_something() -> None:
    assert how_to_go_on(4, Counts(requests=9)) == "interrupted with 0 of 9 requests done; the same command goes on"
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
    assert figures(stopping(view)) == ["2/9 requests", "5 tok/s"]
