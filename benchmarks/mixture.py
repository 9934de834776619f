"""A store as it looks after weeks of work: items in every state at three stages, with failures, costs and a history.

Twenty items are worked on by holdfast itself; `filling.py` multiplies them. What is kept by time and not by item (attempts by
minute, money by day) is there for weeks, however many items there are: `db check` finds that these sums have no calls.
"""

from __future__ import annotations

from typing import Any

from benchmarks.filling import LATER_SECONDS, TIMES, Block, multiply
from benchmarks.sql import Sql, opened
from holdfast import Holdfast, Permanent, Pipeline, RetryLater, Skip
from holdfast.engine.claim import claim
from holdfast.engine.layout import layout
from holdfast.engine.on_hold import hold
from holdfast.store import Transaction

NAME = "books"
#: Keys are addresses of 150 characters, as the pages of a web site have them: with this, a number, and that of the copy.
ADDRESS = "https://library.example/catalogue/" + "shelves/of-the-reading-room/by-year/".ljust(98, "x") + "/book"
BLOCK, WORKED_ON = 20, 16
#: Over how long the items were added: the newest of them are of today.
DAYS = 10
DAY_US = 86_400_000_000
#: How many are in progress: what workers have in hand does not grow with the store.
HELD = 100
#: Attempts by minute are kept for two weeks: each minute for four hours, then by quarters of an hour.
MINUTES, QUARTERS = 240, 14 * 96
MONEY_DAYS = 30
TABLES = (
    ("items", "id"),
    ("waiting", "item"),
    ("delayed", "item"),
    ("holds", "item"),
    ("outcomes", "item"),
    ("calls", "item"),
    ("changed", "item"),
    ("events", "item"),
)


def fill(url: str, items: int) -> None:
    """Make a store with so many items: a multiple of twenty."""
    made = pipeline(url)
    with Holdfast(url, [made.spec]) as app:
        app.add(NAME, [{"key": key(n), "n": n} for n in range(WORKED_ON)])
        _work(app)
        app.add(NAME, [{"key": key(n), "n": n} for n in range(WORKED_ON, BLOCK)])
        app.retry(key=key(10), stage="read", states=["done"], by="ada", reason="to be read again")
        app.cancel(key=key(16), by="ada", reason="not wanted")
        app.pause(NAME, by="ada", reason="a look")
        app.resume(NAME, by="ada", reason="looked")
        first = min(one.id for one in app.items(most=BLOCK))
        app.store.write(lambda tx: hold(tx, _stage(tx, "fetch"), [first + BLOCK - 1], "person", "which edition?"))
    with opened(url) as database:
        _multiply(database, first, items // BLOCK)
    with Holdfast(url, create=False) as app:
        app.store.write(lambda tx: claim(tx, worker=7, stage=_stage(tx, "fetch"), most=HELD))


def key(number: int) -> str:
    """The key of an item of the block."""
    return f"{ADDRESS}-{number:02d}"


def pipeline(url: str) -> Pipeline:
    """Books are fetched, read and printed; which of them goes wrong, and how, is said by its number in the block."""
    made = Pipeline(NAME, store=url)

    @made.stage(max_attempts=1)
    async def fetch(item: Any, ctx: Any) -> dict[str, Any]:
        if item.data["n"] == 13:
            raise Permanent("there is no such book")
        if item.data["n"] == 14:
            raise ConnectionError("the library does not answer")
        return {"pages": 320, "title": f"The title of {item.key}"}

    @made.stage(after=fetch)
    async def read(item: Any, ctx: Any) -> Any:
        ctx.cost("0.002", facts={"model": "reader-1", "tokens_in": 800, "tokens_out": 90})
        if item.data["n"] == 9:
            return Skip("nothing to read in it")
        if item.data["n"] == 12:
            return RetryLater(after=LATER_SECONDS)
        if item.data["n"] == 15:
            raise Permanent(f"page 7 of {item.key} is torn")
        return {"summary": "It is about a voyage. " * 5}

    @made.stage(after=read, name="print", max_attempts=1)
    async def print_it(item: Any, ctx: Any) -> None:
        if item.data["n"] == 11:
            raise RuntimeError("the press is out of ink")

    return made


def _work(app: Holdfast) -> None:
    """Until everything that can end has ended: all but the one to be retried later."""
    worker = app.worker()

    def look() -> None:
        stages = app.status().pipelines[0].stages
        if [sum(stage.states.values()) for stage in stages] == [16, 14, 12] and all(
            not {"pending", "in_progress"} & stage.states.keys() for stage in stages
        ):
            worker.stop()

    worker.run(on_tick=look, tick_seconds=0.05)


def _stage(tx: Transaction, name: str) -> int:
    return next(row.id for row in layout(tx).stages.values() if row.name == name)


def _multiply(database: Sql, first: int, copies: int) -> None:
    block = Block(first, BLOCK, DAYS * DAY_US // copies)
    prefix = database.prefix
    for table, column in TABLES:
        for name in {*TIMES} & {*database.columns(table)}:
            database.run(f"UPDATE {prefix}{table} SET {name} = {name} - {DAYS * DAY_US} WHERE {column} >= {first:d}")
        multiply(database, table, column, block, copies)
    for table, sums in {
        "counts": ("n", "total_us"),
        "versions": ("n",),
        "error_groups": ("n", "amount"),
        "money": ("payments", "amount", "tokens_in", "tokens_out", "tokens_cached", "tokens_reasoning"),
    }.items():
        values = ", ".join(f"{name} = {name} * {copies:d}" for name in sums)
        database.run(f"UPDATE {prefix}{table} SET {values} WHERE stage <> 0")
    if database.columns("grouped"):
        # SQLite has this table instead of an index, and holdfast writes it.
        database.run(
            f"INSERT INTO {prefix}grouped (error_group, item, stage) SELECT error_group, item, stage "
            f"FROM {prefix}outcomes WHERE error_group IS NOT NULL ON CONFLICT DO NOTHING"
        )
    _over_time(database)
    database.finish([table for table, _ in TABLES])


def _over_time(database: Sql) -> None:
    prefix = database.prefix
    [(newest,)] = database.rows(f"SELECT MAX(minute) FROM {prefix}minutes")
    database.run(
        f"CREATE TEMPORARY TABLE last AS SELECT stage, MAX(counts) AS counts FROM {prefix}minutes GROUP BY stage"
    )
    earlier = {
        f"{newest:d} - i": database.numbers(1, MINUTES),
        f"({newest:d} / 15 - i) * 15": database.numbers(MINUTES // 15 + 2, QUARTERS),
    }
    for minute, numbers in earlier.items():
        database.run(
            f"INSERT INTO {prefix}minutes (minute, stage, slot, counts) "
            f"SELECT {minute}, stage, 0, counts FROM {numbers} CROSS JOIN last"
        )
    columns = [name for name in database.columns("money") if name != "day"]
    database.run(
        f"INSERT INTO {prefix}money (day, {', '.join(columns)}) SELECT day - i, {', '.join(columns)} "
        f"FROM {prefix}money CROSS JOIN {database.numbers(1, MONEY_DAYS)}"
    )
