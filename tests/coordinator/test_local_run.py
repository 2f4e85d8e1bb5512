"""What a run on this machine says when it ends."""

from __future__ import annotations

from coordinator.control.local_run import how_to_go_on
from coordinator.records import Counts


def test_after_an_interruption_it_is_told_what_is_recorded_where_there_is_something() -> None:
    assert how_to_go_on(4, Counts(requests=9)) == "interrupted with 0 of 9 requests done; the same command goes on"
    assert how_to_go_on(4, Counts(requests=9, done=2)) == (
        "interrupted with 2 of 9 requests done, all of them recorded; the same command goes on from there, "
        "`fleet results 4` writes what is there"
    )
