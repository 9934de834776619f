"""A pipeline whose every stage leaves a note in a table of the user's own, and whose every book has one sequel.

make_notes(file)                         # the table, before anybody works
Crew(url, folder, "tests.support.noted_books:noted_books")
notes(file)                              # (key, stage, mark), as they came
"""

from __future__ import annotations

import itertools
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from holdfast import Context, Item, Pipeline
from tests.support.books import ledger

STAGES = ("fetch", "extract", "save")
SEQUEL = "-sequel"

noted_books = Pipeline("noted_books")
_numbers = itertools.count(1)


def make_notes(file: Path) -> None:
    with closing(sqlite3.connect(file, timeout=10)) as conn, conn:
        conn.execute("CREATE TABLE notes (id INTEGER PRIMARY KEY, key TEXT, stage TEXT, mark TEXT)")


def notes(file: Path) -> list[tuple[str, str, str]]:
    with closing(sqlite3.connect(file, timeout=10)) as conn:
        return conn.execute("SELECT key, stage, mark FROM notes ORDER BY id").fetchall()


def _note(connection: Any, key: str, stage: str, mark: str) -> None:
    connection.exec_driver_sql("INSERT INTO notes (key, stage, mark) VALUES (?, ?, ?)", (key, stage, mark))


def _handler(stage: str, before: str | None) -> Callable[[Item, Context], Any]:
    def handler(item: Item, ctx: Context) -> Any:
        mark = f"{os.getpid()}.{next(_numbers)}"
        seen = f"{before} {ctx.result(before)['mark']}" if before else ""
        ledger.append("start", item.key, stage, ctx.attempt, mark=mark, seen=seen)
        ctx.effect(_note, item.key, stage, mark)
        if stage == "fetch" and not item.key.endswith(SEQUEL):
            ctx.submit("noted_books", f"{item.key}{SEQUEL}")
        ledger.append("end", item.key, stage, ctx.attempt, mark=mark)
        return {"mark": mark}

    return handler


for _stage, _before in zip(STAGES, (None, *STAGES), strict=False):
    noted_books.stage(name=_stage, after=_before or ())(_handler(_stage, _before))
