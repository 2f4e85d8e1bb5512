"""The ledger's tables. Their names and shapes are decided here; a change of any of them raises VERSION.

A request's id is `job << 32 | ordinal`, so that a job's requests are one range of rowids in input order and need
no index for it. A row's id is an integer rowid beside a unique 16-byte key: about three times the insert speed of
the key as primary key.
"""

from __future__ import annotations

#: PRAGMA user_version of a ledger this code reads and writes.
VERSION = 8

#: Bits of a request's id that hold its ordinal.
ORDINAL_BITS = 32

TABLES = """
CREATE TABLE job (
    id INTEGER PRIMARY KEY AUTOINCREMENT,   -- never again that of a job that was forgotten
    fingerprint BLOB NOT NULL,          -- sha256 of spec
    salt TEXT NOT NULL,                 -- what --fresh added to the row keys
    spec TEXT NOT NULL,                 -- JobSpec as canonical JSON
    state TEXT NOT NULL,                -- JobState
    problem TEXT NOT NULL DEFAULT '',   -- why, when FAILED
    priority INTEGER NOT NULL DEFAULT 0,
    submitted INTEGER NOT NULL DEFAULT 0, -- 1: a fleet works on it, and takes it up again by itself
    created REAL NOT NULL,              -- unix seconds
    intake_complete INTEGER NOT NULL DEFAULT 0,
    signature TEXT NOT NULL DEFAULT '',
    -- running totals, kept by the transactions that change the requests; tokens are those of DONE requests
    requests INTEGER NOT NULL DEFAULT 0,
    done INTEGER NOT NULL DEFAULT 0,
    error INTEGER NOT NULL DEFAULT 0,
    quarantined INTEGER NOT NULL DEFAULT 0,
    input_tokens INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX job_fingerprint ON job (fingerprint);

-- Written by `fleet cancel` without the lock, and by nothing else until the job is begun again.
CREATE TABLE cancellation (job INTEGER PRIMARY KEY);

CREATE TABLE input (
    id INTEGER PRIMARY KEY,
    path TEXT NOT NULL UNIQUE
);

CREATE TABLE request (
    id INTEGER PRIMARY KEY,             -- job << 32 | ordinal
    job INTEGER NOT NULL,
    custom_id TEXT,                     -- NULL for a line without one, or whose id was already used ...
    repeated_id TEXT,                   -- ... which then stands here
    state INTEGER NOT NULL,             -- RequestState
    shape INTEGER NOT NULL,             -- Shape
    level INTEGER NOT NULL DEFAULT 0,   -- the latest level of its parts
    input INTEGER NOT NULL,
    line INTEGER NOT NULL,
    url TEXT NOT NULL,
    extra TEXT NOT NULL,
    error TEXT                          -- why, when ERROR or QUARANTINED
);
CREATE UNIQUE INDEX request_custom_id ON request (job, custom_id);
CREATE INDEX request_to_reduce ON request (id) WHERE state = 0 AND shape = 1;

-- A request without parts is an input error.
CREATE TABLE part (
    request INTEGER NOT NULL,
    level INTEGER NOT NULL,             -- 0: parts of the input; 1..: reduce steps
    ordinal INTEGER NOT NULL,
    row INTEGER NOT NULL,
    place TEXT,                         -- Place as JSON [text, start, end, cut_tokens], of a piece that is embedded
    PRIMARY KEY (request, level, ordinal)
) WITHOUT ROWID;
CREATE INDEX part_row ON part (row);

CREATE TABLE sampling (
    id INTEGER PRIMARY KEY,
    json TEXT NOT NULL UNIQUE           -- Sampling as canonical JSON
);

CREATE TABLE row (
    id INTEGER PRIMARY KEY,
    key BLOB NOT NULL UNIQUE,           -- 16 bytes, fleet.job.KeyMaker
    state INTEGER NOT NULL DEFAULT 0,   -- RowState
    max_tokens INTEGER NOT NULL,
    sampling INTEGER NOT NULL,
    crashes INTEGER NOT NULL DEFAULT 0, -- engines that died with it in the batch
    alone INTEGER NOT NULL DEFAULT 0,   -- those of them in which it was the only row
    vanished INTEGER NOT NULL DEFAULT 0, -- workers that went silent with it in the batch
    error TEXT,                         -- why, when ERROR or QUARANTINED
    tokens BLOB NOT NULL                -- uint32, little endian
);

CREATE TABLE result (
    row INTEGER PRIMARY KEY,
    text TEXT NOT NULL,
    finish TEXT NOT NULL,               -- Finish
    input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    reasoning TEXT NOT NULL,            -- what came before the text, empty for most models
    worker TEXT NOT NULL,
    vector BLOB                         -- of a text that was embedded, see RowResult.vector
);

-- what workers tell once and for all: crashes, and rows given back
CREATE TABLE report (id TEXT PRIMARY KEY) WITHOUT ROWID;
-- Open rows that a fleet sent, to whom, and in which shard last: only those may answer them, also to the next
-- coordinator, who knows by the shards that a worker tells which rows it has.
CREATE TABLE sent (
    row INTEGER NOT NULL,
    worker TEXT NOT NULL,
    shard TEXT NOT NULL,
    PRIMARY KEY (row, worker)
) WITHOUT ROWID;

CREATE TRIGGER result_is_final BEFORE UPDATE ON result
BEGIN SELECT RAISE(ABORT, 'a committed result never changes'); END;
CREATE TRIGGER row_done_is_final BEFORE UPDATE OF state ON row WHEN OLD.state = 1
BEGIN SELECT RAISE(ABORT, 'a row that is done stays done'); END;
"""

#: Scratch of one connection: the requests a transaction touched, and those of them it ended.
SCRATCH = """
CREATE TEMP TABLE touched (request INTEGER PRIMARY KEY);
CREATE TEMP TABLE settled (request INTEGER PRIMARY KEY, state INTEGER NOT NULL, error TEXT);
"""


def first_request(job: int) -> int:
    """The smallest request id a job can have; `first_request(job + 1)` is past its last."""
    return job << ORDINAL_BITS


def job_of(request: int) -> int:
    """The job a request belongs to."""
    return request >> ORDINAL_BITS
