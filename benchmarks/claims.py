"""What a claim of 500 costs, with few and with many waiting."""

from __future__ import annotations

import time

from benchmarks.workloads import pipeline
from holdfast import Holdfast
from holdfast.engine.claim import claim
from holdfast.store import Transaction

BATCH = 500
#: So many claims leave more than half of the small store waiting.
CLAIMS = 9


def prepare(url: str, waiting: int) -> None:
    """A pipeline of one stage with so many waiting items."""
    with Holdfast(url, [pipeline(url, 1, "sync").spec]) as app:
        app.register()
    (_fill_sqlite if url.startswith("sqlite") else _fill_postgres)(url, waiting)


def measure(few: str, many: str, claims: int = CLAIMS) -> dict[str, list[float]]:
    """Seconds per claim, its commit included; one here, one there, in turn."""
    taken: dict[str, list[float]] = {"few": [], "many": []}
    with Holdfast(few) as small, Holdfast(many) as large:
        for turn in range(claims + 1):
            for name, app in (("few", small), ("many", large)):
                began = time.perf_counter()
                leases = app.store.write(_claim)
                seconds = time.perf_counter() - began
                if len(leases) != BATCH:
                    raise SystemExit(f"a claim got {len(leases)} items instead of {BATCH}")
                if turn:  # the first one opens files and plans statements
                    taken[name].append(seconds)
    return taken


def _claim(tx: Transaction) -> list[object]:
    return list(claim(tx, worker=7, stage=1, most=BATCH))


_ITEMS = "(id, pipeline, key, data, priority, created_at, updated_at)"
_WAITING = "(stage, priority, item, attempts, alone, rerun)"


def _fill_sqlite(url: str, waiting: int) -> None:
    import sqlite3

    conn = sqlite3.connect(url.removeprefix("sqlite:///"))
    numbers = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {waiting:d})"
    with conn:
        conn.execute(
            f"INSERT INTO holdfast_items {_ITEMS} {numbers} SELECT i, 1, printf('item-%08d', i), '{{}}', 0, 0, 0 FROM n"
        )
        conn.execute(f"INSERT INTO holdfast_waiting {_WAITING} {numbers} SELECT 1, 0, i, 0, 0, 0 FROM n")
    conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    conn.close()


def _fill_postgres(url: str, waiting: int) -> None:
    import psycopg

    base, _, schema = url.rpartition("schema=")
    with psycopg.connect(base.rstrip("?&"), autocommit=True) as conn:
        conn.execute(f"SET search_path = {schema}")
        conn.execute(
            f"INSERT INTO items {_ITEMS} SELECT i, 1, 'item-' || lpad(i::text, 8, '0'), '{{}}', 0, 0, 0 "
            f"FROM generate_series(1, {waiting:d}) AS i"
        )
        conn.execute(
            f"INSERT INTO waiting {_WAITING} SELECT 1, 0, i, 0, 0, 0 FROM generate_series(1, {waiting:d}) AS i"
        )
        conn.execute("VACUUM ANALYZE items, waiting")
