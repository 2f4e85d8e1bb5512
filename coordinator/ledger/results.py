"""Results and failures of rows as they come in. Used inside a transaction."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace

from coordinator.ledger.rows import Samplings
from coordinator.ledger.store import Store
from fleet.job import Embedding, Finish, RowState
from fleet.messages import RowResult

#: No row has more tokens; a job's totals are sums of such figures, and must not overflow.
MOST_TOKENS = 1 << 31
_INSERT = """
INSERT INTO result (row, text, finish, input_tokens, output_tokens, reasoning, vector, worker)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
_LATEST_TEXTS = """
SELECT x.text FROM request q JOIN part p ON p.request = q.id AND p.level = q.level
JOIN result x ON x.row = p.row WHERE q.id = ? ORDER BY p.ordinal
"""
_THESE = "id IN (SELECT value FROM json_each(?))"


def record_results(store: Store, samplings: Samplings, worker: str, results: Sequence[RowResult]) -> list[int]:
    """Records the first result of each open row and drops the others; the rows that ended with it. A vector that is
    none, or figures that cannot be, fail their row."""
    first: dict[int, RowResult] = {}
    for result in results:
        first.setdefault(result.id, result)
    still_open = store.rows(f"SELECT id, sampling FROM row WHERE state = 0 AND {_THESE}", (json.dumps(list(first)),))
    embeddings = {group: samplings.get(group).embedding for group in {group for _, group in still_open}}
    kept = [_checked(first[row], embeddings[group]) for row, group in still_open]
    done = [result for result in kept if result.finish is not Finish.ERROR]
    store.run_many(_INSERT, [(*_values(result), worker) for result in done])
    store.run_many("UPDATE row SET state = 1 WHERE id = ?", [(r.id,) for r in done])
    store.run_many("DELETE FROM sent WHERE row = ?", [(r.id,) for r in kept])
    for result in kept:
        if result.finish is Finish.ERROR:
            fail_row(store, result.id, RowState.ERROR, result.error or "the engine gave no reason")
    return [result.id for result in kept]


def _checked(result: RowResult, embedding: Embedding | None) -> RowResult:
    if result.finish is Finish.ERROR:
        return result
    wrong: str | None
    if not all(0 <= tokens <= MOST_TOKENS for tokens in (result.input_tokens, result.output_tokens)):
        wrong = "the worker's count of tokens cannot be"
    elif embedding is None:
        wrong = "the worker gave a vector for a text" if result.vector else None
    else:
        from coordinator.ledger.vectors import flaw  # numpy, which nobody needs who only lists jobs

        wrong = flaw(result.vector, embedding)
    return result if wrong is None else replace(result, finish=Finish.ERROR, error=wrong)


def _values(result: RowResult) -> tuple[object, ...]:
    tokens = (result.input_tokens, result.output_tokens)
    return (result.id, result.text, result.finish.value, *tokens, result.reasoning, result.vector or None)


def note_sent(store: Store, sent: Iterable[tuple[int, str, str]]) -> None:
    """Remembers who may answer which row, and in which shard it went there last."""
    store.run_many(
        "INSERT INTO sent (row, worker, shard) VALUES (?, ?, ?) "
        "ON CONFLICT (row, worker) DO UPDATE SET shard = excluded.shard",
        sent,
    )


def sent_rows(store: Store) -> list[tuple[int, str, str]]:
    """(row, worker, shard) of the open rows that were sent."""
    return store.rows("SELECT s.row, s.worker, s.shard FROM sent s JOIN row r ON r.id = s.row AND r.state = 0")


def fail_row(store: Store, row: int, state: RowState, reason: str) -> bool:
    """Ends an open row without a result; False when it has ended already."""
    changed = store.run("UPDATE row SET state = ?, error = ? WHERE id = ? AND state = 0", (int(state), reason, row))
    return changed > 0


def count_crash(store: Store, rows: Sequence[int], alone: bool) -> list[int]:
    """Counts a crash against each row; how many each has now had alone, in the order given."""
    ids = (json.dumps(list(rows)),)
    store.run(f"UPDATE row SET crashes = crashes + 1, alone = alone + {int(alone)} WHERE {_THESE}", ids)
    counts: dict[int, int] = dict(store.rows(f"SELECT id, alone FROM row WHERE {_THESE}", ids))
    return [counts[row] for row in rows]


def count_vanished(store: Store, rows: Sequence[int]) -> dict[int, int]:
    """Counts a worker that went silent against each row; how many each has now had."""
    ids = (json.dumps(list(rows)),)
    store.run(f"UPDATE row SET vanished = vanished + 1 WHERE {_THESE}", ids)
    return dict(store.rows(f"SELECT id, vanished FROM row WHERE {_THESE}", ids))


def hear_report(store: Store, report: str) -> bool:
    """Notes a report's id; False when it is known."""
    return not report or store.run("INSERT INTO report (id) VALUES (?) ON CONFLICT DO NOTHING", (report,)) > 0


def latest_texts(store: Store, request: int) -> list[str]:
    """The texts of the request's latest level, in order."""
    return [text for (text,) in store.rows(_LATEST_TEXTS, (request,))]


def part_settings(store: Store, request: int) -> tuple[int, int]:
    """(sampling id, max_tokens) of the request's first part, which the later levels share."""
    row = store.row(
        "SELECT r.sampling, r.max_tokens FROM part p JOIN row r ON r.id = p.row "
        "WHERE p.request = ? AND p.level = 0 AND p.ordinal = 0",
        (request,),
    )
    assert row is not None, f"request {request} has no part"
    return int(row[0]), int(row[1])
