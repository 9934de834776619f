"""Stores with very many items, made by statements over sets, and the cost of a claim in them.

One item is brought into the wanted state by holdfast itself; its rows are then multiplied, whatever columns they have, and
the counts with them. So a filled store looks as if so many items had come there one by one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any, Protocol

from benchmarks.board import now
from benchmarks.child import Order
from holdfast import Holdfast, Pipeline, RetryLater
from holdfast.engine.claim import claim
from holdfast.store import Transaction

BATCH = 500
CLAIMS = 9
#: Rows in one statement: a transaction that writes ten million at once needs as much room again for its log.
STEP = 500_000
#: Longer than any run.
LATER_SECONDS = 10_000_000

#: The tables whose rows belong to an item; those that are empty cost nothing. The column that names it comes first.
TABLES = (
    ("items", "id"),
    ("waiting", "item"),
    ("delayed", "item"),
    ("outcomes", "item"),
    ("events", "item"),
)


def fill(order: Order) -> None:
    """Make a store of one stage with so many items that are `waiting`, `delayed`, `done` or `told` (done, with events)."""
    _one_item(order)
    with _sql(order.url) as database:
        items: list[int] = [row[0] for row in database.rows(f"SELECT id FROM {database.prefix}items")]
        if len(items) != 1:
            raise SystemExit(f"a store to be filled must be empty; this one has {len(items)} items")
        for table, column in TABLES:
            _multiply(database, table, column, items[0], order.items)
        database.run(
            f"UPDATE {database.prefix}counts SET n = n * {order.items:d}, total_us = total_us * {order.items:d}"
        )
        database.run(f"UPDATE {database.prefix}versions SET n = n * {order.items:d} WHERE stage <> 0")
        database.finish([table for table, _ in TABLES])


def _one_item(order: Order) -> None:
    """An item in the wanted state: `told` is done, with events: its first attempt failed, and it was sent back."""
    calls: list[None] = []

    async def handler(item: Any, ctx: Any) -> RetryLater | None:
        calls.append(None)
        if order.state == "told" and len(calls) == 1:
            raise RuntimeError("the first attempt of the item that is multiplied")
        return RetryLater(after=LATER_SECONDS) if order.state == "delayed" else None

    made = Pipeline("bench", store=order.url)
    made.stage(name="s1")(handler)
    with Holdfast(order.url, [made.spec]) as app:
        app.add("bench", [{"key": "item", "page": 0}])
        if order.state == "waiting":
            return
        worker = app.worker()

        def look() -> None:
            states = app.status().pipelines[0].stages[0].states
            if states == ({"retry_later": 1} if order.state == "delayed" else {"done": 1}):
                worker.stop()
            elif states == {"retry_later": 1}:
                app.retry(states=["retry_later"])

        worker.run(on_tick=look, tick_seconds=0.05)


def _multiply(database: Sql, table: str, column: str, item: int, items: int) -> None:
    columns = database.columns(table)
    own_number = column != "id" and columns[0] == "id"
    copied = [name for name in columns if not (own_number and name == "id")]
    values = {name: name for name in copied} | {column: f"{column} + i"}
    if table == "items":
        values["key"] = "key || '-' || i"
    names = ", ".join(copied)
    wanted = ", ".join(values[name] for name in copied)
    for low in range(1, items, STEP):
        high = min(low + STEP, items) - 1
        database.run(
            f"INSERT INTO {database.prefix}{table} ({names}) SELECT {wanted} "
            f"FROM {database.prefix}{table} CROSS JOIN {database.numbers(low, high)} WHERE {column} = {item:d}"
        )


# The two databases ----------------------------------------------------------------------------------------------------


class Sql(Protocol):
    prefix: str

    def run(self, statement: str) -> None: ...

    def rows(self, statement: str) -> Sequence[tuple[Any, ...]]: ...

    def columns(self, table: str) -> list[str]: ...

    def numbers(self, low: int, high: int) -> str:
        """A table of whole numbers, in a column named i."""
        ...

    def finish(self, tables: Sequence[str]) -> None:
        """Leave the store as it would be after a quiet time."""
        ...

    def close(self) -> None: ...


class SqliteSql:
    prefix = "holdfast_"

    def __init__(self, url: str) -> None:
        self._conn = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        self._conn.execute("PRAGMA synchronous = OFF")
        self._conn.execute("PRAGMA cache_size = -200000")

    def run(self, statement: str) -> None:
        self._conn.execute(statement)

    def rows(self, statement: str) -> Sequence[tuple[Any, ...]]:
        return self._conn.execute(statement).fetchall()

    def columns(self, table: str) -> list[str]:
        return [row[1] for row in self._conn.execute(f"PRAGMA table_info({self.prefix}{table})")]

    def numbers(self, low: int, high: int) -> str:
        return (
            f"(WITH RECURSIVE n(i) AS (SELECT {low:d} UNION ALL SELECT i + 1 FROM n WHERE i < {high:d}) "
            "SELECT i FROM n) AS n"
        )

    def finish(self, tables: Sequence[str]) -> None:
        self._conn.execute("PRAGMA synchronous = FULL")
        self._conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        self._conn.close()


class PostgresSql:
    prefix = ""

    def __init__(self, url: str) -> None:
        import psycopg

        self._conn: Any = psycopg.connect(url, autocommit=True)
        self._conn.execute("SET search_path = holdfast")

    def run(self, statement: str) -> None:
        self._conn.execute(statement)

    def rows(self, statement: str) -> Sequence[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self._conn.execute(statement).fetchall()
        return found

    def columns(self, table: str) -> list[str]:
        asked = (
            "SELECT column_name FROM information_schema.columns WHERE table_schema = 'holdfast' AND table_name = %s "
            "ORDER BY ordinal_position"
        )
        return [row[0] for row in self._conn.execute(asked, (table,)).fetchall()]

    def numbers(self, low: int, high: int) -> str:
        return f"generate_series({low:d}, {high:d}) AS n(i)"

    def finish(self, tables: Sequence[str]) -> None:
        self._conn.execute("SELECT setval(pg_get_serial_sequence('items', 'id'), (SELECT max(id) FROM items))")
        self._conn.execute(f"VACUUM ANALYZE {', '.join(tables)}")
        self._conn.execute("CHECKPOINT")

    def close(self) -> None:
        self._conn.close()


@contextmanager
def _sql(url: str) -> Iterator[Sql]:
    database: Sql = SqliteSql(url) if url.startswith("sqlite") else PostgresSql(url)
    try:
        yield database
    finally:
        database.close()


# Claims ---------------------------------------------------------------------------------------------------------------


class _Undone(Exception):
    """Ends a transaction without a trace."""


def claim_ms(url: str) -> float:
    """Milliseconds that a claim of 500 takes, without its commit: it is undone, so that the next finds the same."""
    taken: list[float] = []

    def work(tx: Transaction) -> None:
        began = now()
        leases = claim(tx, worker=7, stage=1, most=BATCH)
        taken.append(1000 * (now() - began))
        if len(leases) < BATCH:
            raise SystemExit(f"a claim got {len(leases)} items instead of {BATCH}")
        raise _Undone

    with Holdfast(url) as app:
        for _ in range(CLAIMS + 1):
            try:
                app.store.write(work)
            except _Undone:
                continue
    return median(taken[1:])
