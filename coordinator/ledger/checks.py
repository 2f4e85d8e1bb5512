"""What must hold in a ledger, as queries that find nothing. Called by tests after every fault."""

from __future__ import annotations

from coordinator.ledger.store import Store

#: (invariant, query of what breaks it)
_BROKEN = (
    (
        "I1: a finished job has an open request",
        "SELECT q.id FROM request q JOIN job j ON j.id = q.job WHERE j.state = 'finished' AND q.state = 0",
    ),
    (
        "I1: a done request has a latest part that is not done",
        "SELECT q.id, r.id, r.state FROM request q JOIN part p ON p.request = q.id AND p.level = q.level "
        "JOIN row r ON r.id = p.row WHERE q.state = 1 AND r.state <> 1",
    ),
    (
        "I1: a done request has no part, or a REDUCE one several at its last level",
        "SELECT q.id, count(p.row) FROM request q LEFT JOIN part p ON p.request = q.id AND p.level = q.level "
        "WHERE q.state = 1 GROUP BY q.id HAVING count(p.row) = 0 OR (q.shape = 1 AND count(p.row) > 1)",
    ),
    (
        "I1: a request failed without a reason, or gives one without having failed",
        "SELECT id, state, error FROM request WHERE (state > 1) <> (error IS NOT NULL)",
    ),
    (
        "I1: an open request has ended parts only",
        "SELECT q.id FROM request q JOIN part p ON p.request = q.id AND p.level = q.level "
        "JOIN row r ON r.id = p.row WHERE q.state = 0 AND q.shape = 0 GROUP BY q.id HAVING sum(r.state = 0) = 0",
    ),
    (
        "I1: an open request has no part",
        "SELECT id FROM request q WHERE state = 0 AND NOT EXISTS (SELECT 1 FROM part WHERE request = q.id)",
    ),
    (
        "I2: a job's ordinals have gaps",
        "SELECT job, count(*), max(id & 4294967295) FROM request GROUP BY job "
        "HAVING max(id & 4294967295) <> count(*) - 1",
    ),
    (
        "I3: a row is done without a result, or has one without being done",
        "SELECT r.id, r.state FROM row r LEFT JOIN result x ON x.row = r.id WHERE (r.state = 1) <> (x.row IS NOT NULL)",
    ),
    (
        "I3: a row that embeds is done without a vector, or another with one",
        "SELECT x.row FROM result x JOIN row r ON r.id = x.row JOIN sampling s ON s.id = r.sampling "
        "WHERE (json_extract(s.json, '$.embedding') IS NULL) <> (x.vector IS NULL)",
    ),
    ("I3: a result without its row", "SELECT row FROM result WHERE row NOT IN (SELECT id FROM row)"),
    (
        "I5: a quarantined row that crashed alone less than twice",
        "SELECT id, crashes, alone FROM row WHERE state = 3 AND alone < 2",
    ),
    ("I5: a row failed without a reason", "SELECT id, state FROM row WHERE state > 1 AND error IS NULL"),
    ("a part names no row", "SELECT request, row FROM part WHERE row NOT IN (SELECT id FROM row)"),
    (
        "the totals of a job are wrong: id, kept, counted",
        """
        SELECT j.id, j.requests || ' ' || j.done || ' ' || j.error || ' ' || j.quarantined AS kept,
            count(q.id) || ' ' || count(CASE q.state WHEN 1 THEN 1 END) || ' ' ||
            count(CASE q.state WHEN 2 THEN 1 END) || ' ' || count(CASE q.state WHEN 3 THEN 1 END) AS counted
        FROM job j LEFT JOIN request q ON q.job = j.id GROUP BY j.id HAVING kept <> counted
        """,
    ),
    (
        "the tokens of a job are wrong: id, kept, counted",
        """
        SELECT j.id, j.input_tokens || ' ' || j.output_tokens AS kept,
            ifnull(sum(x.input_tokens), 0) || ' ' || ifnull(sum(x.output_tokens), 0) AS counted
        FROM job j LEFT JOIN request q ON q.job = j.id AND q.state = 1 LEFT JOIN part p ON p.request = q.id
        LEFT JOIN result x ON x.row = p.row GROUP BY j.id HAVING kept <> counted
        """,
    ),
)


def check_ledger(store: Store) -> None:
    """AssertionError naming what is broken and the first rows of the proof. Reads every table: for tests."""
    for claim, query in _BROKEN:
        found = store.rows(f"{query} LIMIT 5")
        assert not found, f"{claim}: {found}"
