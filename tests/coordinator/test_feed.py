"""Intake runs ahead by a bounded number of chunks, and its errors reach the caller."""

import time
from collections.abc import Iterator

import pytest

from coordinator.intake.feed import AHEAD, Feed
from coordinator.records import NewRequest, Source
from fleet.errors import UsageError

REQUEST = NewRequest(custom_id="a", source=Source(file="f", line=1), error="bad")


def drain(feed: Feed) -> int:
    chunks = 0
    deadline = time.monotonic() + 10
    while not feed.ended:
        assert time.monotonic() < deadline
        chunks += feed.poll() is not None
    return chunks


def test_every_chunk_arrives_and_then_the_end() -> None:
    feed = Feed(iter([[REQUEST]] * 20))
    assert drain(feed) == 20
    assert feed.poll() is None


def test_an_error_of_intake_is_raised_by_poll_after_what_came_before_it() -> None:
    def chunks() -> Iterator[list[NewRequest]]:
        yield [REQUEST]
        raise UsageError("the input broke off")

    feed = Feed(chunks())
    with pytest.raises(UsageError, match="broke off"):
        drain(feed)
    assert feed.ended


def test_intake_stays_at_most_a_few_chunks_ahead() -> None:
    pulled = []

    def chunks() -> Iterator[list[NewRequest]]:
        for number in range(100):
            pulled.append(number)
            yield [REQUEST]

    feed = Feed(chunks())
    deadline = time.monotonic() + 5
    while len(pulled) < AHEAD + 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    feed.close()
    assert len(pulled) <= AHEAD + 1
