"""Strays: rows in our tables that something other than holdfast must have written: their item or stage does not exist, or their
text is not the JSON that we write.

Another program, an old backup or a person at a database shell may have written them. A stray that blocks work is removed from
its table, with an event that says which row it was and why, and the rest continues; `db check` finds all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from holdfast.engine.layout import layout
from holdfast.engine.memos import all_memos
from holdfast.model import codec
from holdfast.model.log_lines import logger
from holdfast.store import Store, Transaction

log = logger("holdfast.store")

StoredRow = Sequence[Any]

#: How many rows at the head of a queue are checked.
HEAD = 100
#: How many are reported, or set aside, at a time.
CHUNK = 1000
#: How many rows of a table are read at a time, by their numbers.
STRETCH = 2000

#: Text columns of the tables that are read in chunks by number, and of the small ones; each with the type of its JSON value.
_LARGE: Mapping[str, Mapping[str, type]] = {
    "items": {"data": dict},
    "outcomes": {"result": object},
    "calls": {"facts": dict, "value": object},
    "events": {"data": dict},
}
_SMALL: Mapping[str, Mapping[str, type]] = {
    "workers": {"stages": list, "versions": dict, "facts": dict},
    "stages": {"after": list, "compatible": list, "resources": list, "formerly": list},
    "pipelines": {"guards": dict, "tuned": dict, "provenance": list},
    "resources": {"spec": dict, "tuned": dict},
    "minutes": {"counts": dict},
    "actions": {"filter": dict, "place": dict, "preview": object, "counts": dict},
}


# In the way of work ---------------------------------------------------------------------------------------------------


def without_strays(tx: Transaction, table: str, rows: Sequence[StoredRow], columns: Sequence[str]) -> list[StoredRow]:
    """Of rows that were taken out of a table: those whose stage and item exist. The others are recorded and dropped."""
    stage, item = columns.index("stage"), columns.index("item")
    known = layout(tx).stages
    numbers = sorted({row[item] for row in rows})
    there = {number for (number,) in tx.run("existing_items", items=numbers)} if numbers else set()
    kept = []
    for row in rows:
        if row[stage] in known and row[item] in there:
            kept.append(row)
        else:
            _set_aside(tx, table, dict(zip(columns, row, strict=False)), _why(row[stage], row[item], known))
    return kept


def find_in_queues(tx: Transaction, stages: Sequence[int]) -> list[int]:
    """The stages with a row without an item at the head of their queue: no claim would ever take it."""
    return [stage for (stage,) in tx.run("has_stray_waiting", stages=list(stages), most=HEAD)]


def take_from_queues(tx: Transaction, stages: Sequence[int]) -> None:
    """Set those aside."""
    for stage in stages:
        for item, attempts in tx.run("take_stray_waiting", stage=stage, most=HEAD):
            _set_aside(tx, "waiting", {"stage": stage, "item": item, "attempts": attempts}, f"there is no item {item}")


# Everywhere -----------------------------------------------------------------------------------------------------------


def find(tx: Transaction, progress: Callable[[str, int], None] | None = None) -> list[str]:
    """Every stray, each as a sentence, up to a limit. Reads every row."""
    known = layout(tx).stages
    rows = tx.run("stray_rows", most=CHUNK)
    return [_described(table, stage, item, known) for table, stage, item in rows] + list(_unreadable(tx, progress))


def repair(reader: Store, writer: Store) -> list[str]:
    """Remove rows without an item or a stage; return what they were. Unreadable values are left alone: they may be all that is
    left of something, and only a person can say what it was.

    The tables are only read while searching, so others can write. A stray stays one: numbers are never reused.
    """
    done: list[str] = []
    while True:
        rows = reader.read(lambda tx: tx.run("stray_rows", most=CHUNK))
        done += writer.write(partial(_take, rows=rows)) if rows else []
        if len(rows) < CHUNK:
            return done


def _take(tx: Transaction, rows: Sequence[StoredRow]) -> list[str]:
    known = layout(tx).stages
    for table, stage, item in rows:
        for row in tx.records(f"take_from_{table}", stage=stage, item=item):
            _set_aside(tx, table, row, _why(stage, item, known))
    return [_described(table, stage, item, known) for table, stage, item in rows]


def _unreadable(tx: Transaction, progress: Callable[[str, int], None] | None) -> Iterator[str]:
    [(items, calls, events)] = tx.run("last_numbers")
    last = {"items": items, "outcomes": items, "calls": calls, "events": events}
    for table, columns in _LARGE.items():
        for after in range(0, last[table] or 0, STRETCH):
            yield from _bad_texts(table, columns, tx.run(f"texts_of_{table}", after=after, until=after + STRETCH))
            if progress is not None:
                progress(table, min(after + STRETCH, last[table] or 0))
    yield from _unreadable_memos(tx, progress)
    for table, columns in _SMALL.items():
        yield from _bad_texts(table, columns, tx.run(f"texts_of_{table}"))


def _unreadable_memos(tx: Transaction, progress: Callable[[str, int], None] | None) -> Iterator[str]:
    read = 0
    for rows in all_memos(tx, "texts_of_memos", STRETCH):
        yield from _bad_texts("memos", {"value": object}, rows)
        read += len(rows)
        if progress is not None:
            progress("memos", read)


def _bad_texts(table: str, columns: Mapping[str, type], rows: Iterable[StoredRow]) -> Iterator[str]:
    for number, *texts in rows:
        for (column, kind), text in zip(columns.items(), texts, strict=True):
            if text is not None and not codec.is_json(text, kind):
                yield f"{table} {number}: its {column} cannot be read"


def _described(table: str, stage: int, item: int, known: Mapping[int, object]) -> str:
    return f"{table}, item {item}, stage {stage}: {_why(stage, item, known)}"


def _why(stage: int, item: int, known: Mapping[int, object]) -> str:
    return f"there is no stage {stage}" if stage not in known else f"there is no item {item}"


def _set_aside(tx: Transaction, table: str, row: dict[str, Any], why: str) -> None:
    log.warning("a row of %s is set aside: %s", table, why)
    tx.record("row_set_aside", table=table, row=row, why=why)
