"""Ends requests whose rows have ended. Set-based: a row shared by a million requests costs no memory here.

Used inside a transaction: name the requests with one of `touch_*`, then `settle`, which leaves the scratch empty.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from coordinator.ledger.store import Store

# The latest parts of the touched requests that are still open, each with its row.
_OPEN_PARTS = """
FROM temp.touched t
CROSS JOIN request q ON q.id = t.request AND q.state = 0
CROSS JOIN part p ON p.request = q.id AND p.level = q.level
CROSS JOIN row r ON r.id = p.row
"""

# EACH ends when every part has; REDUCE with the first failure, or when one part is left and it is done. A lone
# max() makes r.error that of the row with the largest state: the reason.
_SETTLE = f"""
INSERT INTO temp.settled (request, state, error)
SELECT q.id, max(r.state), r.error {_OPEN_PARTS}
GROUP BY t.request
HAVING CASE q.shape
    WHEN 0 THEN sum(r.state = 0) = 0
    ELSE sum(r.state > 1) > 0 OR (count(*) = 1 AND sum(r.state = 1) = 1)
END
"""

# Not UPDATE FROM: that would scan the requests for the few that ended.
_WRITE_STATES = """
UPDATE request SET (state, error) = (SELECT state, error FROM temp.settled WHERE request = request.id)
WHERE id IN (SELECT request FROM temp.settled)
"""

_ADD_STATES = """
UPDATE job
SET done = job.done + s.done, error = job.error + s.error, quarantined = job.quarantined + s.quarantined
FROM (
    SELECT request >> 32 AS job, sum(state = 1) AS done, sum(state = 2) AS error, sum(state = 3) AS quarantined
    FROM temp.settled GROUP BY request >> 32
) s WHERE job.id = s.job
"""

_ADD_TOKENS = """
UPDATE job SET input_tokens = input_tokens + s.input, output_tokens = output_tokens + s.output
FROM (
    SELECT s.request >> 32 AS job, sum(x.input_tokens) AS input, sum(x.output_tokens) AS output
    FROM temp.settled s
    CROSS JOIN part p ON p.request = s.request
    CROSS JOIN result x ON x.row = p.row
    WHERE s.state = 1 GROUP BY s.request >> 32
) s WHERE job.id = s.job
"""

_READY = f"SELECT q.id {_OPEN_PARTS} WHERE q.shape = 1 GROUP BY t.request HAVING sum(r.state = 1) = count(*)"


def touch_requests(store: Store, requests: Sequence[int]) -> None:
    """Names requests by id."""
    store.run(
        "INSERT OR IGNORE INTO temp.touched SELECT value FROM json_each(?)",
        (json.dumps(list(requests)),),
    )


def touch_rows(store: Store, rows: Sequence[int]) -> None:
    """Names the requests that use any of these rows, of whatever job."""
    store.run(
        "INSERT OR IGNORE INTO temp.touched SELECT request FROM part WHERE row IN (SELECT value FROM json_each(?))",
        (json.dumps(list(rows)),),
    )


def touch_to_reduce(store: Store, first: int, end: int) -> None:
    """Names the open REDUCE requests with `first` <= id < `end`."""
    store.run(
        "INSERT OR IGNORE INTO temp.touched SELECT id FROM request "
        "WHERE state = 0 AND shape = 1 AND id >= ? AND id < ?",
        (first, end),
    )


def settle(store: Store) -> list[int]:
    """Ends the touched requests that can end and adds them to their jobs' totals.

    Returns the REDUCE requests among them whose latest level is done and has several parts: they need another level.
    """
    if store.run(_SETTLE):
        store.run(_WRITE_STATES)
        store.run(_ADD_STATES)
        store.run(_ADD_TOKENS)
    ready = [int(request) for (request,) in store.rows(_READY)]
    store.run("DELETE FROM temp.touched")
    store.run("DELETE FROM temp.settled")
    return ready
