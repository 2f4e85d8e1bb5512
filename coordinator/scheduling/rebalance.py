"""What workers take from each other once the pool is empty: whole shards first, then copies of rows. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace

from coordinator.scheduling.fleet_view import Copy, FleetView, Recall, RowView, ShardView, Steal, WorkerView, seconds

#: From a decision to the row's place in a batch elsewhere, and its result back: about two seconds.
TRIP_S = 2.0
#: ... and before that until an engine has loaded the model.
LOAD_S = 20.0
#: A copy must promise to end in less than this share of the time the row needs where it is.
WORTH_SHARE = 0.9
#: Other workers that may have a row at once.
COPIES = 2


def rebalance(view: FleetView, hungry: Sequence[WorkerView]) -> list[Steal | Recall | Copy]:
    """What the `hungry` workers, for which the pool has nothing, take from the others."""
    if not hungry:
        return []
    fastest = sorted(hungry, key=lambda worker: -worker.decode_tps)
    steals = _Stealing(view).by(fastest)
    thieves = {steal.target for steal in steals}
    return [*steals, *_Copying(view).by([worker for worker in fastest if worker.id not in thieves])]


class _Stealing:
    """What waits with each worker, as it shrinks while some of it is taken."""

    def __init__(self, view: FleetView) -> None:
        self._workers = {worker.id: worker for worker in view.workers}
        #: what its agent has comes first, what it will take last comes last
        self._waiting: dict[str, list[RowView | ShardView]] = {}
        for row in view.rows:
            if not row.running and not row.copied:
                self._waiting.setdefault(row.worker, []).append(row)
        for shard in view.shards:
            self._waiting.setdefault(shard.worker, []).append(shard)
        self._taken_s: dict[str, float] = {}
        #: (negative wait, worker) of those that have something, longest wait first
        self._longest = [(-self._waits_s(worker), worker) for worker in self._waiting]
        heapify(self._longest)

    def by(self, thieves: Sequence[WorkerView]) -> list[Steal | Recall]:
        made: list[Steal | Recall] = []
        for thief in thieves:
            if not self._longest:
                break
            _, victim = self._longest[0]
            if victim != thief.id:
                made += _moves(self._some(thief, self._workers[victim]), victim, thief.id)
                if self._waiting[victim]:
                    heapreplace(self._longest, (-self._waits_s(victim), victim))
                else:
                    heappop(self._longest)
        return made

    def _waits_s(self, worker: str) -> float:
        return self._workers[worker].queued_s - self._taken_s.get(worker, 0.0)

    def _some(self, thief: WorkerView, victim: WorkerView) -> list[RowView | ShardView]:
        """What waits longest, until both would come to an end at once."""
        taken: list[RowView | ShardView] = []
        waiting = self._waiting[victim.id]
        mine_s = thief.queued_s + (TRIP_S if thief.cap else TRIP_S + LOAD_S)
        while waiting:
            piece = waiting[-1]
            mine_s += seconds(thief, piece.input_tokens, piece.output_tokens)
            fits = not thief.longest_tokens or piece.longest_tokens <= thief.longest_tokens
            if not fits or mine_s > WORTH_SHARE * self._waits_s(victim.id):
                break
            there_s = seconds(victim, piece.input_tokens, piece.output_tokens)
            self._taken_s[victim.id] = self._taken_s.get(victim.id, 0.0) + there_s
            taken.append(waiting.pop())
        return taken


def _moves(pieces: Sequence[RowView | ShardView], source: str, target: str) -> list[Steal | Recall]:
    steals = [Steal(shard=piece.id, source=source, target=target) for piece in pieces if isinstance(piece, ShardView)]
    rows = tuple(piece.id for piece in pieces if isinstance(piece, RowView))
    return [*steals, Recall(rows=rows, source=source, target=target)] if rows else [*steals]


class _Copying:
    """Rows by the time they still need where they are soonest done, longest last."""

    def __init__(self, view: FleetView) -> None:
        self._workers = {worker.id: worker for worker in view.workers}
        self._left = view.copies_left
        self._holders: dict[int, list[str]] = {}
        soonest: dict[int, tuple[float, RowView]] = {}
        for row in view.rows:
            self._holders.setdefault(row.id, []).append(row.worker)
            left_s = self._left_s(row)
            if row.id not in soonest or left_s < soonest[row.id][0]:
                soonest[row.id] = left_s, row
        few = [pair for pair in soonest.values() if len(self._holders[pair[1].id]) <= COPIES]
        self._rows = sorted(few, key=lambda pair: (pair[0], pair[1].id))

    def by(self, takers: Sequence[WorkerView]) -> list[Copy]:
        made: list[Copy] = []
        for taker in takers:
            batch = taker.rows
            while batch < taker.cap:
                found = self._worth(taker, batch + 1) if self._left > 0 else None
                if found is None:
                    break
                batch += 1
                self._left -= 1
                made.append(Copy(row=found.id, source=found.worker, target=taker.id))
        return made

    def _worth(self, taker: WorkerView, batch: int) -> RowView | None:
        for index in range(len(self._rows) - 1, -1, -1):
            left_s, row = self._rows[index]
            if taker.id in self._holders[row.id]:
                continue
            if taker.longest_tokens and row.longest_tokens > taker.longest_tokens:
                continue
            here_s = TRIP_S + row.input_tokens / taker.prefill_tps + row.output_tokens / taker.row_tps(batch)
            if here_s > WORTH_SHARE * left_s:
                return None
            del self._rows[index]
            return row
        return None

    def _left_s(self, row: RowView) -> float:
        worker = self._workers[row.worker]
        decoding_s = row.left_tokens / worker.row_tps(min(worker.rows, worker.cap))
        if row.running:
            return decoding_s
        return worker.queued_s + row.input_tokens / worker.prefill_tps + decoding_s
