"""One SQLite connection to a ledger: opened right, transactions, and errors as sentences a person can act on."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from coordinator.ledger import schema as ledger_schema
from fleet.config import StateDir
from fleet.errors import StorageError, UsageError

#: How long a writer waits for the moment another one needs (`fleet cancel` beside a run), seconds.
BUSY_S = 30.0
#: Pages kept in memory; the key index of 10M rows is larger, the rest is the system's cache.
CACHE_KIB = 64 << 10
#: The write-ahead log is folded into the file every so many pages.
CHECKPOINT_PAGES = 1_000
#: Only one row of 500 tokens fits a page of SQLite's own 4,096: with these, 20,000 of them took 43 MB and not 65,
#: and 17 us each and not 22.
PAGE_BYTES = 16_384
#: A write-ahead log that a long reader let grow is cut back to this, bytes.
WAL_LIMIT_BYTES = 64 << 20

#: What sqlite3 says when a statement is wrong or would break a rule of the tables: our bug, not the person's disk.
_OURS = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISUSE, sqlite3.SQLITE_RANGE)

Values = Sequence[Any]


class Store:
    """A connection used by one thread at a time; everything sqlite3 raises leaves here as StorageError."""

    def __init__(self, path: Path, *, write: bool, busy_s: float = BUSY_S) -> None:
        """Opens the file; only a writer creates it, and its tables."""
        self._path = path
        mode = "rwc" if write else "ro"
        with self._translated():
            if write:
                with suppress(OSError):  # SQLite says it in its own words
                    path.touch(mode=0o600)  # a folder that was there before us may be open to everybody
            # The owner may hand the connection on to another thread, never share it.
            self._connection = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode={mode}",
                uri=True,
                timeout=busy_s,
                isolation_level=None,
                check_same_thread=False,
            )
        try:
            self._prepare(write)
        except BaseException:
            self.close()
            raise

    def _prepare(self, write: bool) -> None:
        if write:
            self.run(f"PRAGMA page_size = {PAGE_BYTES}")
            self.run("PRAGMA journal_mode = WAL")
            self.run("PRAGMA synchronous = FULL")
            self.run("PRAGMA fullfsync = ON")  # macOS: fsync alone leaves data in the drive's cache
            self.run("PRAGMA checkpoint_fullfsync = ON")
            self.run(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
            self.run(f"PRAGMA journal_size_limit = {WAL_LIMIT_BYTES}")
        version = self.number("PRAGMA user_version")
        if write and version == 0 and self.number("SELECT count(*) FROM sqlite_schema") == 0:
            with self.transaction():
                self._script(ledger_schema.TABLES)
                self.run(f"PRAGMA user_version = {ledger_schema.VERSION}")
        elif version != ledger_schema.VERSION:
            raise StorageError(
                f"{self._path} was written by another version of mlx-fleet (its schema is {version}, this one uses "
                f"{ledger_schema.VERSION}): use that version, or give another folder with --state-dir"
            )
        # Only now is the size of a page known: said before, the same figure let the cache grow to four times as much.
        self.run(f"PRAGMA cache_size = -{CACHE_KIB}")
        if write:
            self._script(ledger_schema.SCRATCH)

    def _script(self, sql: str) -> None:
        """Runs the statements one by one; sqlite3's executescript would commit the transaction first."""
        statement = ""
        for line in sql.splitlines(keepends=True):
            statement += line
            if sqlite3.complete_statement(statement):
                self.run(statement)
                statement = ""

    def close(self) -> None:
        """Closes the connection; twice does no harm."""
        with self._translated():
            self._connection.close()

    def size_bytes(self) -> int:
        """What the file and its write-ahead log take on disk."""
        log = self._path.with_name(f"{self._path.name}-wal")
        return sum(path.stat().st_size for path in (self._path, log) if path.exists())

    def compact(self) -> None:
        """Gives the space of deleted rows back to the disk; needs as much again as is kept while it runs."""
        self.run("VACUUM")
        self.row("PRAGMA wal_checkpoint(TRUNCATE)")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of the block is written or none of it; the write lock is taken at once, so no statement meets it late."""
        self.run("BEGIN IMMEDIATE")
        try:
            yield
            self.run("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # a full disk may have rolled back already
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
            raise

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Every query of the block sees one moment of the ledger."""
        self.run("BEGIN")
        try:
            yield
        finally:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")

    def run(self, sql: str, values: Values = ()) -> int:
        """Rows changed."""
        with self._translated():
            return self._connection.execute(sql, values).rowcount

    def run_many(self, sql: str, rows: Iterable[Values]) -> int:
        """Rows changed by all of them together."""
        with self._translated():
            return self._connection.executemany(sql, rows).rowcount

    def rows(self, sql: str, values: Values = ()) -> list[tuple[Any, ...]]:
        """Every row of the query."""
        with self._translated():
            return self._connection.execute(sql, values).fetchall()

    def row(self, sql: str, values: Values = ()) -> tuple[Any, ...] | None:
        """The first row of the query."""
        with self._translated():
            found: tuple[Any, ...] | None = self._connection.execute(sql, values).fetchone()
            return found

    def number(self, sql: str, values: Values = ()) -> int:
        """The integer a query of one value gives; 0 for NULL or no row."""
        found = self.row(sql, values)
        return int(found[0] or 0) if found else 0

    def stream(self, sql: str, values: Values = ()) -> Iterator[tuple[Any, ...]]:
        """The query's rows as they are read; the connection must not be written meanwhile."""
        with self._translated():
            yield from self._connection.execute(sql, values)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _OURS:
                raise
            raise StorageError(_sentence(self._path, error)) from error


def _sentence(path: Path, error: sqlite3.Error) -> str:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return (
            f"the disk is full, the ledger {path} cannot grow: free some space and give the same command again; "
            "what is recorded is safe"
        )
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_AUTH):
        return (
            f"the ledger {path} cannot be opened or written ({error}): "
            "check its permissions, or give another folder with --state-dir"
        )
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return (
            f"{path} is damaged or no ledger ({error}): restore it, or move it away and give the same command "
            "again to start anew"
        )
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return f"the ledger {path} is in use by another command: try again in a moment"
    return f"the ledger {path} failed ({error}): check the disk, then give the same command again"


def check_exists(state: StateDir) -> None:
    """UsageError when nothing is recorded in the folder."""
    if not state.has_ledger():
        raise UsageError(
            f"no job is recorded in {state.root}: begin one with `fleet run`, or give its folder with --state-dir"
        )
