"""A snapshot of a store: the state and results of every item, and every row of the user's own tables. No process writes to it
any more."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from holdfast import schema
from holdfast.answers.event import LoggedEvent
from holdfast.app import Holdfast
from holdfast.errors import UsageError
from holdfast.model.money import micros
from holdfast.model.states import FINISHED
from holdfast.store.kind import kind_of_address
from holdfast.store.postgres_address import read_url
from holdfast.store.sqlite_files import file_of

PAGE = 1000

#: The values of a row, in a form that can be compared and counted.
RowValues = tuple[Any, ...]
#: Pipeline and key; pipeline, key and stage.
ItemName = tuple[str, str]
StageName = tuple[str, str, str]


@dataclass(slots=True)
class TableSnapshot:
    """One table: its columns, and how often each row occurs."""

    columns: list[str]
    rows: Counter[RowValues] = field(default_factory=Counter)

    def without(self, names: Sequence[str]) -> TableSnapshot:
        kept = [at for at, name in enumerate(self.columns) if name not in names]
        rows: Counter[RowValues] = Counter()
        for row, n in self.rows.items():
            rows[tuple(row[at] for at in kept)] += n
        return TableSnapshot([self.columns[at] for at in kept], rows)


@dataclass(slots=True)
class Snapshot:
    """Everything that a crash test compares."""

    #: The data of every item, and for each stage its state, result and error.
    items: dict[ItemName, Any]
    stages: dict[StageName, tuple[str, Any, str | None]]
    tables: dict[str, TableSnapshot]
    #: Rows with a dangling foreign key, by table.
    dangling: Counter[str]
    #: By stage: what was charged, and how often a call was in doubt.
    costs: Counter[str]
    doubts: Counter[str]
    #: Inconsistencies in holdfast's own tables.
    wrong: list[str]

    @property
    def progress(self) -> frozenset[tuple[str, ...]]:
        """Which stages of which items have ended, and how. The rows of the user's tables depend on this alone."""
        return frozenset((*name, state) for name, (state, _, _) in self.stages.items() if state in FINISHED)


def take(url: str, tables: Sequence[str] | None, blobs: str | None = None) -> Snapshot:
    """Take a snapshot. `tables` are the user's tables to include; None for all. `blobs` is where content is kept."""
    with Holdfast(url, blobs=blobs, create=False) as app:
        items, stages = _items(app)
        costs, doubts = Counter[str](), Counter[str]()
        for one in app.costs(("pipeline", "stage")).sums:
            costs[f"{one.pipeline}/{one.stage}"] += micros(one.costs)
        for kind in ("in_doubt", "resolved"):
            doubts.update(f"{event.pipeline}/{event.stage}" for event in _events(app, kind))
        wrong = app.check()
    own = read_tables(url, tables)
    dangling = _dangling(url)
    return Snapshot(items, stages, own, dangling, costs, doubts, wrong)


# What holdfast keeps --------------------------------------------------------------------------------------------------


def _items(app: Holdfast) -> tuple[dict[ItemName, Any], dict[StageName, Any]]:
    items: dict[ItemName, Any] = {}
    stages: dict[StageName, Any] = {}
    after = 0
    while page := app.items(after=after, most=PAGE):
        after = page[-1].id
        for row in page:
            name = (row.pipeline, row.key)
            shown = app.show(row.key, row.pipeline)
            items[name] = shown.data
            for one in shown.stages:
                stages[*name, one.stage] = (one.state, one.result, one.error)
    return items, stages


def _events(app: Holdfast, event: str) -> Iterator[LoggedEvent]:
    after = 0
    while page := app.events(event=event, after=after, most=PAGE):
        yield from page
        after = page[-1].id


# The user's tables ----------------------------------------------------------------------------------------------------


def read_tables(url: str, wanted: Sequence[str] | None = None) -> dict[str, TableSnapshot]:
    """The user's tables of these names, or all of them: every table of the database but holdfast's own."""
    with closing(_connect(url)) as connection:
        lite = kind_of_address(url) == "sqlite"
        there = _in_sqlite(connection) if lite else _in_postgres(connection, read_url(url)[1])
        missing = [name for name in wanted or () if name not in there]
        if missing:
            known = ", ".join(sorted(there)) or "none"
            raise UsageError(
                f"there is no table {missing[0]!r} in the copy of the store; the tables there are: {known}. The file, or "
                f"--setup, must make it, or --template must have it"
            )
        return {name: _read(connection, there[name]) for name in (there if wanted is None else wanted)}


def _dangling(url: str) -> Counter[str]:
    """Dangling foreign keys. PostgreSQL always enforces them; SQLite only if it is asked to."""
    if kind_of_address(url) != "sqlite":
        return Counter()
    with closing(_connect(url)) as connection:
        return Counter(str(row[0]) for row in connection.execute("PRAGMA foreign_key_check"))


def _connect(url: str) -> Any:
    if kind_of_address(url) == "sqlite":
        return sqlite3.connect(file_of(url))
    import psycopg

    return psycopg.connect(read_url(url)[0])


def _in_sqlite(connection: Any) -> dict[str, str]:
    """The user's tables by name, each as it is written in a statement."""
    names = connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite!_%' ESCAPE '!'"
    )
    return {name: _quoted(name) for (name,) in names.fetchall() if name not in _ours()}


def _in_postgres(connection: Any, ours: str) -> dict[str, str]:
    """The same. Tables in the schema `public`, and those beside holdfast's if the name is free, have no prefix."""
    there = connection.execute(
        "SELECT schemaname, tablename FROM pg_tables "
        "WHERE schemaname <> 'information_schema' AND schemaname NOT LIKE 'pg!_%' ESCAPE '!'"
    ).fetchall()
    own = [(place, name) for place, name in there if place != ours or f"holdfast_{name}" not in _ours()]
    plain = {name: place for place, name in own if place == ours} | {
        name: place for place, name in own if place == "public"
    }
    return {
        name if plain.get(name) == place else f"{place}.{name}": f"{_quoted(place)}.{_quoted(name)}"
        for place, name in own
    }


@cache
def _ours() -> frozenset[str]:
    return frozenset(re.findall(r"CREATE TABLE (holdfast_\w+)", "".join(one.text for one in schema.migrations())))


def _quoted(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def _read(connection: Any, table: str) -> TableSnapshot:
    answer = connection.execute(f"SELECT * FROM {table}")
    columns = [column[0] for column in answer.description]
    return TableSnapshot(columns, Counter(tuple(_plain(value) for value in row) for row in answer.fetchall()))


def _plain(value: Any) -> Any:
    """A value that can be compared and hashed."""
    if value is None or isinstance(value, (bool, int, str, bytes)):
        return value
    return bytes(value) if isinstance(value, (bytearray, memoryview)) else repr(value)
