"""What workers take from each other once the pool is empty: whole shards first, then copies of rows. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.fleet_view import Copy, FleetView, RowView, ShardView, Steal, WorkerView, seconds

#: From a decision to the row's place in a batch elsewhere, and its result back: about two seconds.
TRIP_S = 2.0
#: ... and before that until an engine has loaded the model.
LOAD_S = 20.0
#: A copy must promise to end in less than this share of the time the row needs where it is.
WORTH_SHARE = 0.9
#: Other workers that may have a row at once.
COPIES = 2


def rebalance(view: FleetView, hungry: Sequence[WorkerView]) -> list[Steal | Copy]:
    """What the `hungry` workers, for which the pool has nothing, take from the others."""
    if not hungry:
        return []
    fastest = sorted(hungry, key=lambda worker: -worker.decode_tps)
    steals = _Stealing(view).by(fastest)
    thieves = {steal.target for steal in steals}
    return [*steals, *_Copying(view).by([worker for worker in fastest if worker.id not in thieves])]


class _Stealing:
    """The queues as they shrink while shards are taken from them."""

    def __init__(self, view: FleetView) -> None:
        self._workers = {worker.id: worker for worker in view.workers}
        self._queues: dict[str, list[ShardView]] = {}
        for shard in view.shards:
            self._queues.setdefault(shard.worker, []).append(shard)
        self._taken_s: dict[str, float] = {}

    def by(self, thieves: Sequence[WorkerView]) -> list[Steal]:
        made: list[Steal] = []
        for thief in thieves:
            victim = max(self._queues, key=self._waits_s, default=None)
            if victim is None or victim == thief.id:
                continue
            made += self._some(thief, self._workers[victim])
        return made

    def _waits_s(self, worker: str) -> float:
        return self._workers[worker].queued_s - self._taken_s.get(worker, 0.0)

    def _some(self, thief: WorkerView, victim: WorkerView) -> list[Steal]:
        """Whole shards from the queue's end, until both would come to an end at once."""
        made = []
        mine_s = thief.queued_s
        queue = self._queues[victim.id]
        for shard in reversed(queue):
            there_s = seconds(victim, shard.input_tokens, shard.output_tokens)
            here_s = seconds(thief, shard.input_tokens, shard.output_tokens)
            fits = not thief.longest_tokens or shard.longest_tokens <= thief.longest_tokens
            start_s = mine_s + (TRIP_S if thief.cap else TRIP_S + LOAD_S)
            if not fits or start_s + here_s > WORTH_SHARE * self._waits_s(victim.id):
                break
            mine_s += here_s
            self._taken_s[victim.id] = self._taken_s.get(victim.id, 0.0) + there_s
            made.append(Steal(shard=shard.id, source=victim.id, target=thief.id))
        del queue[len(queue) - len(made) :]
        if not queue:
            del self._queues[victim.id]
        return made


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
