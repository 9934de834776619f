"""Pipelines for single tests, whose handlers do what those of `tests.support.books` do not.

own_tables   uses the store's own SQLite file (named in the item's data) for a table of its own, with connections of
             its own. The test makes the table: notes (key TEXT, n INTEGER).
napping      snoozes once, for as long as the item's data says.
bulky        hands on a result so long that it is read only when the second stage asks for it, which it does once the
             file named in the item's data is there. HOLDFAST_TEST_PATIENCE is how long a read waits for the database.
stalling     has an effect that writes two rows, the second one once the file named in the item's data is there. The test
             makes the table: notes (key, text).
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, text

from holdfast import Context, Item, Pipeline, RetryLater
from holdfast.engine.claim import EAGER_RESULT
from holdfast.store import Store
from tests.support.books import QUICK, ledger
from tests.support.ledger import Ledger

own_tables = Pipeline("own_tables")


@contextmanager
def _connection(path: str) -> Iterator[sqlite3.Connection]:
    conn = sqlite3.connect(path, isolation_level=None, timeout=10)
    try:
        yield conn
    finally:
        conn.close()


@own_tables.stage(name="note", max_attempts=3, backoff=QUICK)
def note(item: Item, ctx: Context) -> dict[str, Any]:
    """Read, wait until somebody else has committed, then write: what SQLite refuses at once, whatever the timeout.

    The first attempt lets the error out; the second takes the write lock before it reads.
    """
    ledger.append("start", item.key, "note", ctx.attempt)
    with _connection(item.data["file"]) as conn:
        conn.execute("BEGIN" if ctx.attempt == 1 else "BEGIN IMMEDIATE")
        [(count,)] = conn.execute("SELECT count(*) FROM notes").fetchall()
        if ctx.attempt == 1:
            _until_somebody_commits(item.data["file"])
        try:
            conn.execute("INSERT INTO notes VALUES (?, ?)", (item.key, count))
        except sqlite3.OperationalError as error:
            ledger.append("refused", item.key, "note", ctx.attempt, mark=error.sqlite_errorname)
            raise
        conn.execute("COMMIT")
    return {"count": count}


@own_tables.stage(name="look", after="note", max_attempts=3, backoff=QUICK)
def look(item: Item, ctx: Context) -> dict[str, Any]:
    """Keep an old view of the database open while others commit."""
    ledger.append("start", item.key, "look", ctx.attempt)
    with _connection(item.data["file"]) as conn:
        conn.execute("BEGIN")
        [(before,)] = conn.execute("SELECT count(*) FROM notes").fetchall()
        _until_somebody_commits(item.data["file"])
        [(after,)] = conn.execute("SELECT count(*) FROM notes").fetchall()
        conn.execute("COMMIT")
    assert before == after
    return ctx.result("note")


napping = Pipeline("napping")


@napping.stage(name="nap")
def nap(item: Item, ctx: Context) -> Any:
    ledger.append("start", item.key, "nap", ctx.attempt)
    # Read anew: a ledger that is kept is for one thread.
    return RetryLater(after=item.data["nap"]) if len(Ledger(ledger.path).starts(item.key)) == 1 else None


bulky = Pipeline("bulky")

if "HOLDFAST_TEST_PATIENCE" in os.environ:
    Store.read.__kwdefaults__["patience_seconds"] = float(os.environ["HOLDFAST_TEST_PATIENCE"])


@bulky.stage(name="make")
def make(item: Item, ctx: Context) -> Any:
    return "x" * 2 * EAGER_RESULT


@bulky.stage(name="use", after="make", max_attempts=3, backoff=QUICK)
def use(item: Item, ctx: Context) -> Any:
    ledger.append("start", item.key, "use", ctx.attempt)
    while not Path(item.data["gate"]).exists():
        time.sleep(0.005)
    ledger.append("ask", item.key, "use", ctx.attempt)
    return len(ctx.result("make"))


stalling = Pipeline("stalling")


def write_two(connection: Connection, table: str, key: str, gate: str) -> None:
    insert = text(f"INSERT INTO {table} (key, text) VALUES (:key, :text)")
    connection.execute(insert, {"key": key, "text": "first"})
    ledger.append("effect", key)
    while not Path(gate).exists():
        time.sleep(0.005)
    connection.execute(insert, {"key": key, "text": "second"})


@stalling.stage(name="write", max_attempts=1)
def write(item: Item, ctx: Context) -> None:
    ledger.append("start", item.key, "write", ctx.attempt)
    ctx.effect(write_two, item.data["table"], item.key, item.data["gate"])


def _until_somebody_commits(path: str) -> None:
    with _connection(path) as conn:
        version = conn.execute("PRAGMA data_version").fetchone()
        while conn.execute("PRAGMA data_version").fetchone() == version:
            time.sleep(0.002)
