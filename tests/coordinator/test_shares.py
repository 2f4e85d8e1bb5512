"""A slump is told once, with what it costs, and so is its end."""

from __future__ import annotations

from coordinator.scheduling.moves import Moves
from coordinator.scheduling.shares import Shares
from coordinator.scheduling.speeds import Speed
from tests.steady_engine import SteadyEngine

NAMES = {"a": "air", "b": "studio"}


def test_a_throttled_worker_is_told_with_its_shares_and_again_when_it_recovers() -> None:
    air, studio, shares = SteadyEngine().work(600), SteadyEngine().work(600), Shares()

    def told() -> list[str]:
        return list(shares.told({"a": air.speed, "b": studio.speed}, NAMES))

    assert told() == []
    air.work(180, tps=20)
    (sentence,) = told()
    assert sentence.startswith("air throttled: share 4")
    assert 20 < int(sentence.split()[-2]) < 35
    assert told() == []
    air.work(300)
    assert told() == ["air is as fast as usual again"]


def test_a_worker_that_left_is_forgotten() -> None:
    air, shares = SteadyEngine().work(600).work(180, tps=20), Shares()
    speeds = {"a": air.speed, "b": Speed()}
    assert len(list(shares.told(speeds, NAMES))) == 1
    assert list(shares.told({"b": Speed()}, NAMES)) == []
    assert len(list(shares.told(speeds, NAMES))) == 1


def test_moves_of_a_turn_are_told_together() -> None:
    moves = Moves()
    moves.stolen("a", "b", 3)
    moves.stolen("a", "b", 1)
    moves.copied("b", "a")
    assert list(moves.told(NAMES)) == ["4 rows moved from air to studio", "1 last row of studio also sent to air"]
