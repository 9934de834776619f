"""Rows per second of a loop over a user's own table, beside the same statements issued by hand; on both databases.

    python -m benchmarks.adopt [--rows 3000] [--rounds 5] [--only sqlite|postgres]

The handler does nothing. By hand means: the texts and values that the loop itself sends, on the driver's own connection,
in the same transactions: a claim of ten rows, and a completion for each of them. Rounds are interleaved; the ratio is that
of the medians.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Column, DateTime, Engine, Integer, MetaData, Table, Text

from benchmarks.databases import databases
from holdfast.adopt import Loop, TableMapping

BATCH = 10
WARM_UP = 50

Statement = tuple[str, Any]


class Ground:
    """A table that is filled again for every round."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        times = [Column(name, DateTime(timezone=True)) for name in ("heartbeat", "started", "next_attempt")]
        self.table = Table(
            "jobs",
            MetaData(),
            Column("id", Integer, primary_key=True),
            Column("status", Text, nullable=False),
            Column("attempts", Integer),
            Column("holder", Text),
            Column("error", Text),
            *times,
            Column("title", Text),
        )
        self.mapping = TableMapping(
            self.table,
            attempts="attempts",
            holder="holder",
            error="error",
            heartbeat="heartbeat",
            started="started",
            next_attempt="next_attempt",
        )
        self.table.create(engine)
        sa.Index("queued_jobs", self.table.c.id, **_partial(self.table)).create(engine)

    def fill(self, rows: int) -> None:
        with self.engine.begin() as connection:
            connection.execute(self.table.delete())
            connection.execute(self.table.insert(), [{"status": "queued", "title": f"job {n}"} for n in range(rows)])
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(
                sa.text("VACUUM ANALYZE jobs" if self.engine.dialect.name == "postgresql" else "ANALYZE")
            )

    def left(self) -> int:
        with self.engine.connect() as connection:
            asked = sa.select(sa.func.count()).select_from(self.table).where(self.table.c.status != "completed")
            return connection.execute(asked).scalar_one()


def _partial(table: Table) -> dict[str, Any]:
    queued = sa.text("status = 'queued'")
    return {"postgresql_where": queued, "sqlite_where": queued}


def by_loop(ground: Ground, rows: int) -> float:
    """Seconds that a loop takes."""
    ground.fill(rows)
    loop = Loop(ground.engine, ground.mapping, lambda job: None, batch=BATCH, stale_after=None)
    began = time.perf_counter()
    loop.run(drain=True)
    took = time.perf_counter() - began
    assert ground.left() == 0
    return took


def by_hand(ground: Ground, rows: int, claim: Statement, complete: Statement) -> float:
    """Seconds that the same statements take on the driver's connection."""
    ground.fill(rows)
    with ground.engine.connect() as held:
        raw: Any = held.connection.driver_connection
        cursor = raw.cursor()
        began = time.perf_counter()
        while True:
            cursor.execute(*claim)
            taken = cursor.fetchall()
            raw.commit()
            if not taken:
                break
            for row in taken:
                cursor.execute(complete[0], _with_key(complete[1], row))
                raw.commit()
        took = time.perf_counter() - began
    assert ground.left() == 0
    return took


def _with_key(values: Any, row: Any) -> Any:
    """The completion's values, for another row."""
    if isinstance(values, dict):
        return {name: (row[0] if value == "KEY" else value) for name, value in values.items()}
    return tuple(row[0] if value == "KEY" else value for value in values)


def learn(ground: Ground) -> tuple[Statement, Statement]:
    """What the loop sends: its claim, and a completion with a mark in the place of the key."""
    seen: list[Statement] = []

    def note(connection: Any, cursor: Any, statement: str, values: Any, *_: Any) -> None:
        if "UPDATE" in statement:
            seen.append((statement, values))

    ground.fill(1)
    with ground.engine.connect() as connection:
        [key] = connection.execute(sa.select(ground.table.c.id)).scalars()
    sa.event.listen(ground.engine, "before_cursor_execute", note)
    Loop(ground.engine, ground.mapping, lambda job: None, batch=BATCH, stale_after=None).run(drain=True)
    sa.event.remove(ground.engine, "before_cursor_execute", note)
    claims = [one for one in seen if "LIMIT" in one[0] and "next_attempt" in one[0] and BATCH in _values(one[1])]
    [complete] = [one for one in seen if "LIMIT" not in one[0]]
    return claims[0], (complete[0], _marked(complete[1], key))


def _values(values: Any) -> list[Any]:
    return list(values.values()) if isinstance(values, dict) else list(values)


def _marked(values: Any, key: Any) -> Any:
    """The key's place; it is the last value that equals it, after whatever the statement sets."""
    if isinstance(values, dict):
        name = next(name for name in reversed(values) if name == "hf_key0" and values[name] == key)
        return {**values, name: "KEY"}
    place = max(at for at, value in enumerate(values) if value == key and not isinstance(value, bool))
    return (*values[:place], "KEY", *values[place + 1 :])


def measure(engine: Engine, rows: int, rounds: int, say: Callable[[str], None] = print) -> float:
    """The loop's rate as a share of that by hand."""
    ground = Ground(engine)
    claim, complete = learn(ground)
    by_loop(ground, WARM_UP)
    by_hand(ground, WARM_UP, claim, complete)
    loops, hands = [], []
    for _ in range(rounds):
        hands.append(by_hand(ground, rows, claim, complete))
        loops.append(by_loop(ground, rows))
    ratio = median(hands) / median(loops)
    say(
        f"{engine.dialect.name}: by hand {rows / median(hands):,.0f} rows/s, loop {rows / median(loops):,.0f} rows/s, "
        f"ratio {ratio:.2f}"
    )
    return ratio


@contextmanager
def engine_for(url: str) -> Iterator[Engine]:
    """An engine on an address of `benchmarks.databases`."""
    if url.startswith("sqlite"):
        engine = sa.create_engine(url)
        sa.event.listen(engine, "connect", lambda conn, _: conn.execute("PRAGMA journal_mode = WAL"))
    else:
        engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1))
    try:
        yield engine
    finally:
        engine.dispose()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adopt")
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["sqlite", "postgres"])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--postgres", help="the address of a server to use instead of one of its own")
    options = parser.parse_args()
    with databases(options.only, options.folder, options.postgres) as chosen:
        for database in chosen:
            url = database.fresh()
            with engine_for(url) as engine:
                print(database.title)
                measure(engine, options.rows, options.rounds)
            database.drop(url)


if __name__ == "__main__":
    main()
