"""Strays: rows in our tables that something other than holdfast must have written: their item or stage does not exist, or their
text is not the JSON that we write.

Another program, an old backup or a person at a database shell may have written them. A stray that blocks work is removed from
its table, with an event that says which row it was and why, and the rest continues; `db check` finds all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from holdfast.engine.claim import Lease
from holdfast.engine.layout import layout
from holdfast.engine.memos import LOWEST, all_memos
from holdfast.model import codec, shapes
from holdfast.model.log_lines import logger
from holdfast.model.plausible import LAST, MOST, MOST_ALONE
from holdfast.model.states import State
from holdfast.store import Store, Transaction

log = logger("holdfast.store")

StoredRow = Sequence[Any]

#: How many rows at the head of a queue are checked.
HEAD = 100
#: How many are reported, or set aside, at a time.
CHUNK = 1000
#: Tables in which a repair searches for rows that belong to no item or no alert.
LOST = ("children", "chains", "deliveries")
#: How many rows of a table are read at a time, by their numbers.
STRETCH = 2000


# In the way of work ---------------------------------------------------------------------------------------------------


def without_strays(tx: Transaction, table: str, rows: Sequence[StoredRow], columns: Sequence[str]) -> list[StoredRow]:
    """Of rows that were taken out of a table: those whose stage and item exist. The others are recorded and dropped."""
    stage, item = columns.index("stage"), columns.index("item")
    known = layout(tx).stages
    numbers = sorted({row[item] for row in rows})
    there = {number for (number,) in tx.run("existing_items", items=numbers)} if numbers else set()
    ended = _ended_among(tx, table, rows, columns)
    kept = []
    for row in rows:
        is_ended = (row[item], row[stage]) in ended
        if row[stage] in known and row[item] in there and not is_ended:
            kept.append(row)
        else:
            set_aside(tx, table, dict(zip(columns, row, strict=False)), _why(row[stage], row[item], known, is_ended))
    return kept


def _ended_among(
    tx: Transaction, table: str, rows: Sequence[StoredRow], columns: Sequence[str]
) -> set[tuple[int, int]]:
    """Items and stages of leases that would end for a second time, although nobody has asked for a rerun."""
    if table != "leases":
        return set()  # they are found when their attempt ends
    stage, item, rerun = (columns.index(name) for name in ("stage", "item", "rerun"))
    first = {(row[item], row[stage]) for row in rows if not row[rerun]}
    if not first:
        return set()
    items, stages = ({place[n] for place in first} for n in (0, 1))
    return first & {(row[0], row[1]) for row in tx.run("ended_among", items=sorted(items), stages=sorted(stages))}


def take_if_ended(tx: Transaction, lease: Lease) -> bool:
    """Set aside the lease of an attempt whose stage has an outcome already, although it is no rerun: its end could never be
    saved. Whether it was one."""
    if lease.rerun or not tx.run("ended_among", items=[lease.item], stages=[lease.stage]):
        return False
    for row in tx.records("take_from_leases", stage=lease.stage, item=lease.item):
        set_aside(tx, "leases", row, _why(lease.stage, lease.item, layout(tx).stages, True))
        # It was never counted before it was claimed.
        tx.count(lease.stage, State.IN_PROGRESS, -1)
        tx.count(lease.stage, State.PENDING, 1)
    return True


def find_in_queues(tx: Transaction, stages: Sequence[int]) -> list[int]:
    """The stages with a row without an item at the head of their queue: no claim would ever take it."""
    return [stage for (stage,) in tx.run("has_stray_waiting", stages=list(stages), most=HEAD)]


def take_from_queues(tx: Transaction, stages: Sequence[int]) -> None:
    """Set those aside."""
    for stage in stages:
        for item, attempts in tx.run("take_stray_waiting", stage=stage, most=HEAD):
            set_aside(tx, "waiting", {"stage": stage, "item": item, "attempts": attempts}, f"there is no item {item}")


# Everywhere -----------------------------------------------------------------------------------------------------------


def find(tx: Transaction, progress: Callable[[str, int], None] | None = None) -> list[str]:
    """Every stray, each as a sentence, up to a limit. Reads every row."""
    known = layout(tx).stages
    rows = tx.run("stray_rows", most=CHUNK)
    return [*_described(rows, known), *_lost(tx), *_impossible(tx), *_unreadable(tx, progress)]


def _lost(tx: Transaction) -> list[str]:
    return [
        f"{table} {number}: there is no {what} {target}"
        for statement in ("rows_of_nothing", "derived_rows_of_nothing")
        for table, number, what, target in tx.run(statement, most=CHUNK)
    ]


def _impossible(tx: Transaction) -> list[str]:
    rows = tx.run("impossible_numbers", most=CHUNK, most_often=MOST, most_alone=MOST_ALONE, last=LAST)
    return [f"{table} {number}: its {column} cannot be {value}" for table, number, column, value in rows]


def repair(reader: Store, writer: Store) -> list[str]:
    """Remove rows without an item or a stage, and those of stages that have ended; return what they were. Unreadable values are
    left alone: they may be all that is left of something, and only a person can say what it was.

    The tables are only read while searching, so others can write. A stray stays one: numbers are never reused.
    """
    done: list[str] = []
    while True:
        rows = reader.read(lambda tx: tx.run("stray_rows", most=CHUNK))
        done += writer.write(partial(_take, rows=rows)) if rows else []
        if len(rows) < CHUNK:
            break
    for table in LOST:
        while lost := writer.write(partial(_take_lost, table=table)):
            done += lost
    return done


def _take(tx: Transaction, rows: Sequence[StoredRow]) -> list[str]:
    known = layout(tx).stages
    for table, stage, item, is_there in rows:
        for row in tx.records(f"take_from_{table}", stage=stage, item=item):
            set_aside(tx, table, row, _why(stage, item, known, is_there))
    return _described(rows, known)


def _take_lost(tx: Transaction, table: str) -> list[str]:
    rows = tx.records(f"take_lost_{table}", most=CHUNK)
    for row in rows:
        set_aside(tx, table, row, "what it belongs to does not exist")
    return [f"{table} {next(iter(row.values()))}: what it belongs to does not exist" for row in rows]


def _unreadable(tx: Transaction, progress: Callable[[str, int], None] | None) -> Iterator[str]:
    [(items, calls, events)] = tx.run("last_numbers")
    last = {"items": items, "outcomes": items, "calls": calls, "events": events, "chains": items}
    for table, columns in shapes.LARGE.items():
        for rows in _stretches(tx, table):
            yield from _bad_texts(table, columns, rows)
            if progress is not None:
                progress(table, min(rows[-1][0], last[table] or 0))
        if progress is not None:
            progress(table, last[table] or 0)
    yield from _unreadable_memos(tx, progress)
    for table, columns in shapes.SMALL.items():
        yield from _bad_texts(table, columns, tx.run(f"texts_of_{table}"))


def _stretches(tx: Transaction, table: str) -> Iterator[Sequence[StoredRow]]:
    """All rows of a large table, so many at a time. Not by ranges of numbers: one row may have a number far above the rest."""
    after = LOWEST
    while True:
        if table == "outcomes":
            [(until,)] = tx.run("numbers_of_outcomes", after=after, most=STRETCH)
            if until is None:
                return
            yield [*tx.run("texts_of_outcomes", after=after, until=until), (until, None, None)]
            after = until
        else:
            rows = tx.run(f"texts_of_{table}", after=after, most=STRETCH)
            if not rows:
                return
            yield rows
            after = rows[-1][0]


def _unreadable_memos(tx: Transaction, progress: Callable[[str, int], None] | None) -> Iterator[str]:
    read = 0
    for rows in all_memos(tx, "texts_of_memos", STRETCH):
        yield from _bad_texts("memos", {"value": object}, rows)
        read += len(rows)
        if progress is not None:
            progress("memos", read)


def _bad_texts(table: str, columns: Mapping[str, Any], rows: Iterable[StoredRow]) -> Iterator[str]:
    for number, *texts in rows:
        for (column, shape), text in zip(columns.items(), texts, strict=True):
            if text is not None and not codec.is_json(text, shape):
                yield f"{table} {number}: its {column} cannot be read"


def _described(rows: Iterable[StoredRow], known: Mapping[int, object]) -> list[str]:
    return [
        f"{table}, item {item}, stage {stage}: {_why(stage, item, known, is_there)}"
        for table, stage, item, is_there in rows
    ]


def _why(stage: int, item: int, known: Mapping[int, object], is_there: object) -> str:
    """Why a row is a stray: it has no stage; or its item is there, and is through with this stage; or it is not."""
    if stage not in known:
        return f"there is no stage {stage}"
    return "this stage has ended, and nobody has asked for a rerun" if is_there else f"there is no item {item}"


def set_aside(tx: Transaction, table: str, row: dict[str, Any], why: str) -> None:
    """Record a row that was removed from its table."""
    log.warning("a row of %s is set aside: %s", table, why)
    tx.record("row_set_aside", table=table, row=row, why=why)
