"""The limit of an export: one statement, one cursor, and a line of JSON for each row; JSON that is stored stays text."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import msgspec

from benchmarks.board import now
from benchmarks.child import Facts, Order, cpu_seconds, most_memory_mb

#: Rows that are fetched at a time.
FETCHED = 1_000
TEXT = """SELECT i.key, s.name, o.state, o.result, i.data, o.error, o.cost, o.version, o.attempts, o.started_at, o.ended_at
FROM {0}outcomes o JOIN {0}items i ON i.id = o.item JOIN {0}stages s ON s.id = o.stage WHERE o.state = 'done'
ORDER BY o.item, o.stage"""

_to_json = msgspec.json.Encoder().encode


def export(order: Order) -> Facts:
    with tempfile.TemporaryFile() as out, _rows(order.url) as cursor:
        order.ready()
        spent, began = cpu_seconds(), now()
        rows = 0
        while some := cursor.fetchmany(FETCHED):
            out.write(b"\n".join(map(_to_json, some)))
            out.write(b"\n")
            rows += len(some)
        if rows != order.items:
            raise SystemExit(f"{rows} rows were read instead of {order.items}")
        return {"seconds": now() - began, "cpu_seconds": cpu_seconds() - spent, "memory_mb": most_memory_mb()}


@contextmanager
def _rows(url: str) -> Iterator[Any]:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
            yield file.execute(TEXT.format("holdfast_"))
        return
    import psycopg

    with psycopg.connect(url) as connection:
        connection.execute("SET search_path = holdfast")
        with connection.cursor("rows") as cursor:
            cursor.execute(TEXT.format(""))
            yield cursor
