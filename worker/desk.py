"""Where the worker's threads meet: holding and outbox under one lock, and the waits on their changes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from fleet.messages import Beat, Cancel, Host, Message, SetCap, Shard, Stop
from worker.held import Decision, Held, ModelRef
from worker.holding import Holding
from worker.outbox import Letter, Outbox

#: Takes a message for the engine without blocking.
Post = Callable[[Message], None]


class Desk:
    """Every event of a worker passes here; nothing here blocks but the waits."""

    def __init__(self, worker: str, nonce: str, *, cap: int = 0, host: Host | None = None) -> None:
        self.worker = worker
        self.nonce = nonce
        self._host = host or Host()
        self._holding = Holding(cap=cap)
        self._outbox = Outbox(nonce)
        #: of each held shard: how many reports were put when its last row ended
        self._marks: dict[str, int] = {}
        self._post: Post | None = None
        self._epoch = ""
        self._closed = False
        #: the news of the last beat
        self._told: object = None
        self._changed = threading.Condition()

    # -- the agent ---------------------------------------------------------------------------------

    @property
    def epoch(self) -> str:
        """Of the broker as last seen, empty before that."""
        return self._epoch

    @property
    def stopping(self) -> bool:
        """True once no more work is taken."""
        return self._holding.stopping or self._closed

    def await_room(self, timeout_s: float) -> bool:
        """Waits until another shard is wanted; False when the time ran out or none will be."""
        with self._changed:
            return self._changed.wait_for(lambda: self._has_room() or self.stopping, timeout_s) and not self.stopping

    def take(self, shard: Shard) -> None:
        """A shard off the queue."""
        with self._changed:
            self._follow(self._holding.take(shard))

    def holds(self, shard_id: str) -> bool:
        """True until the shard is wholly settled."""
        with self._changed:
            return shard_id in self._holding.shards

    # -- the keeper of the engine ------------------------------------------------------------------

    def await_model(self) -> tuple[ModelRef, int] | None:
        """Waits until an engine is needed: its model and cap; None when none will be."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._holding.wanted() is not None)
            wanted = self._holding.wanted()
            return None if self._closed or wanted is None else (wanted, self._holding.cap)

    def wants(self, model: ModelRef) -> bool:
        """True while an engine of `model` should stay."""
        with self._changed:
            return not self._closed and self._holding.wanted() == model

    def engine_started(self, model: ModelRef, post: Post) -> None:
        """A process for `model` takes messages through `post`."""
        with self._changed:
            self._post = post
            self._holding.engine_started(model)
            self._changed.notify_all()

    def heard(self, message: Message) -> None:
        """A message of the engine."""
        with self._changed:
            self._follow(self._holding.heard(message))

    def engine_gone(self, reason: str, *, expected: bool) -> int:
        """The engine's process ended; the number of failures in a row."""
        with self._changed:
            self._post = None
            self._follow(self._holding.engine_gone(reason, expected=expected))
            return self._holding.failures

    # -- control and lease -------------------------------------------------------------------------

    def obey(self, message: Message) -> None:
        """A message of the coordinator."""
        with self._changed:
            match message:
                case Cancel(rows=rows):
                    self._follow(self._holding.cancel(rows))
                case SetCap(rows=rows):
                    self._follow(self._holding.set_cap(rows))
                case Stop():
                    self._follow(self._holding.stop())
                case _:
                    pass  # others have no meaning here

    def pause(self, reason: str) -> None:
        """Takes no work while there is a reason; an empty one ends it."""
        with self._changed:
            self._follow(self._holding.pause(reason))

    def drop(self, shard_id: str) -> None:
        """The coordinator took a held shard away."""
        with self._changed:
            self._follow(self._holding.drop(shard_id))

    def met(self, epoch: str) -> bool:
        """The broker says its epoch; True when it is another than before: it was wiped, or is the first."""
        with self._changed:
            new, self._epoch = epoch != self._epoch, epoch
            self._changed.notify_all()
        return new

    def beat(self) -> Beat:
        """What the lease should say now."""
        with self._changed:
            self._told = self._news()
            beat = self._holding.beat(worker=self.worker, nonce=self.nonce, epoch=self._epoch)
        return replace(beat, host=self._host)

    def await_news(self, timeout_s: float) -> None:
        """Waits, but not when the last beat is no longer true in more than its counts."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._news() != self._told, timeout_s)

    # -- the pump ----------------------------------------------------------------------------------

    def await_mail(self, timeout_s: float) -> None:
        """Waits, but not when something should go at once: a full letter, rows given back, the end of all rows."""
        with self._changed:
            self._changed.wait_for(self._has_urgent_mail, timeout_s)

    def draft(self) -> Letter | None:
        """The next letter to the coordinator."""
        with self._changed:
            return self._outbox.draft()

    def sent(self, letter: Letter, epoch: str, entry_id: str) -> None:
        """The draft is in the stream."""
        with self._changed:
            self._outbox.sent(letter, epoch, entry_id)

    def finished(self) -> list[str]:
        """Shards that owe nothing and whose reports are all in the stream."""
        with self._changed:
            return [shard_id for shard_id, mark in self._marks.items() if mark <= self._outbox.sent_count]

    def taken(self, epoch: str, first: str | None) -> None:
        """See `Outbox.taken`; shards whose reports were all taken are forgotten."""
        with self._changed:
            self._outbox.taken(epoch, first)
            taken = self._outbox.taken_count
            for shard_id in [shard_id for shard_id, mark in self._marks.items() if mark <= taken]:
                del self._marks[shard_id]
                self._holding.forget(shard_id)
            self._changed.notify_all()

    @property
    def untaken(self) -> bool:
        """True while the coordinator lacks something."""
        with self._changed:
            return self._outbox.taken_count < self._outbox.put_count

    # -- the supervisor ----------------------------------------------------------------------------

    def await_idle(self, timeout_s: float) -> bool:
        """Waits until no row is owed."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._holding.shard_of, timeout_s)

    def await_taken(self, timeout_s: float) -> bool:
        """Waits until the coordinator has everything."""
        with self._changed:
            return self._changed.wait_for(lambda: not self.untaken, timeout_s)

    def close(self) -> None:
        """Ends every wait."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def await_closed(self, timeout_s: float) -> bool:
        """Waits until `close`, or a little."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closed, timeout_s)

    @property
    def closed(self) -> bool:
        """True once the threads should end."""
        return self._closed

    def shards(self) -> dict[str, Held]:
        """The held shards, for tests and logs."""
        with self._changed:
            self._holding.validate()
            return dict(self._holding.shards)

    # -- inside ------------------------------------------------------------------------------------

    def _follow(self, decision: Decision) -> None:
        self._outbox.put(decision.to_coordinator)
        for shard_id in self._holding.done():
            self._marks.setdefault(shard_id, self._outbox.put_count)
        if self._post is not None:
            for message in decision.to_engine:
                self._post(message)
        self._changed.notify_all()

    def _news(self) -> object:
        holding = self._holding
        final = holding.figures if not holding.shard_of else None  # counts are news once nothing follows soon
        return (tuple(holding.shards), holding.state(), holding.paused, holding.ready, final)

    def _has_room(self) -> bool:
        return self._holding.wants_more() and not self._outbox.full

    def _has_urgent_mail(self) -> bool:
        ended = self._outbox.unsent > 0 and not self._holding.shard_of
        return self._closed or self._outbox.urgent or ended
