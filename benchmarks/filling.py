"""Stores with very many items, made by statements over sets, and the cost of a claim in them.

One item is brought into the wanted state by holdfast itself; its rows are then multiplied, whatever columns they have, and
the counts with them. So a filled store looks as if so many items had come there one by one.
"""

from __future__ import annotations

from statistics import median
from typing import Any, NamedTuple

from benchmarks.board import now
from benchmarks.child import Order
from benchmarks.sql import Sql, opened
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

#: Columns that say when something happened.
TIMES = ("created_at", "updated_at", "started_at", "ended_at", "at", "since")
#: More than there are copies of a block.
NUMBERS = 1_000_000_000


class Block(NamedTuple):
    """Items whose numbers follow one another, of which there are to be many."""

    first: int
    items: int = 1
    #: How much later the next of them was added and worked on.
    apart_us: int = 0
    #: So many numbers between them and their copies belong to others.
    skipped: int = 0


def fill(order: Order) -> None:
    """Make a store of one stage with so many items that are `waiting`, `delayed`, `done` or `told` (done, with events)."""
    _one_item(order)
    with opened(order.url) as database:
        items: list[int] = [row[0] for row in database.rows(f"SELECT id FROM {database.prefix}items")]
        if len(items) != 1:
            raise SystemExit(f"a store to be filled must be empty; this one has {len(items)} items")
        for table, column in TABLES:
            multiply(database, table, column, Block(items[0]), order.items)
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


def multiply(database: Sql, table: str, column: str, block: Block, copies: int) -> None:
    """Let there be so many of the rows of a block of items, each with its own items, in the order of items."""
    columns = database.columns(table)
    own_number = column != "id" and columns[0] == "id"
    copied = [name for name in columns if not (own_number and name == "id")]
    moved = {name: f"{name} + i * {block.apart_us:d}" for name in TIMES} if block.apart_us else {}
    values = {name: moved.get(name, name) for name in copied} | {
        column: f"{column} + {block.skipped:d} + i * {block.items:d}"
    }
    if table == "items":
        # Of one length, so that keys have the order of items.
        values["key"] = f"key || '-' || substr(CAST({NUMBERS:d} + i AS TEXT), 2)"
    names = ", ".join(copied)
    wanted = ", ".join(values[name] for name in copied)
    # Copied first: the rows of a block are nowhere near each other in every table.
    database.run(
        f"CREATE TEMPORARY TABLE seed AS SELECT * FROM {database.prefix}{table} "
        f"WHERE {column} >= {block.first:d} AND {column} < {block.first + block.items:d}"
    )
    step = max(1, STEP // block.items)
    for low in range(1, copies, step):
        high = min(low + step, copies) - 1
        database.run(
            f"INSERT INTO {database.prefix}{table} ({names}) SELECT {wanted} "
            f"FROM {database.numbers(low, high)} CROSS JOIN seed ORDER BY i"
        )
    database.run("DROP TABLE seed")


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
