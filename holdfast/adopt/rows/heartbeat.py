"""Heartbeat: marks held rows as being worked on, so that they do not become stale.

A heartbeat writes only its own column. It does not change the version, which would look like an edit. One statement
renews all rows of one claim.
"""

from __future__ import annotations

import dataclasses
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from holdfast.adopt.connections import Open, connection_of, primitive
from holdfast.adopt.rows.claim import written
from holdfast.adopt.rows.dialects import bare, changing, key_in, way_of
from holdfast.adopt.rows.finish import HeldRows, rows_of
from holdfast.adopt.rows.guarded_change import by_fence, by_mapping, stands
from holdfast.adopt.rows.sessions import forget
from holdfast.adopt.table.held_row import Finished, Held
from holdfast.adopt.table.mapping import TableMapping
from holdfast.adopt.table.times import now as the_time
from holdfast.adopt.table.times import time_type, utc
from holdfast.errors import UsageError


@primitive
def heartbeat(at: Open, rows: HeldRows, *, now: datetime | None = None) -> Finished:
    """Renew held rows. `won` has the rows that are still held, to be used from now on; `lost` has the others.

    A row that another transaction has locked is skipped, and counts as held until the next heartbeat. Raises UsageError
    for rows of a table without a heartbeat column.
    """
    won: list[Held] = []
    gone: list[Held] = []
    for mapping, group in by_mapping(rows_of(rows)).items():
        if "heartbeat" not in mapping.columns:
            raise UsageError(f"{mapping} has no heartbeat column; name it in its mapping with heartbeat=")
        for same in by_fence(group):
            beats = _beat(at, mapping, same, now)
            won += [dataclasses.replace(one, beat_at=beats[one.key_values]) for one in same if one.key_values in beats]
            gone += [one for one in same if one.key_values not in beats]
        forget(at, mapping, [one.key for one in group], written(mapping, "heartbeat"))
    return Finished(tuple(won), tuple(gone))


def _beat(
    at: Open, mapping: TableMapping, same: list[Held], at_time: datetime | None
) -> dict[tuple[Any, ...], datetime]:
    """The keys of the rows that are still held, each with the time of its last heartbeat."""
    connection = connection_of(at, mapping)
    target, column = bare(mapping), mapping.columns["heartbeat"]
    kind = time_type(column)
    assert kind is not None
    fence = stands(mapping, connection.dialect, same[0])
    own = [target.c[one.name] for one in mapping.key]
    told = [*own, sa.type_coerce(target.c[column.name], kind)]
    keys = [one.key_values for one in same]
    beating = changing(mapping, "processing", {column.name: the_time(connection.dialect, kind, at=at_time)}).where(
        *fence
    )
    in_hand = sa.and_(target.c[mapping.columns["status"].name] == mapping.word("processing"), *fence)
    free = sa.select(*own).where(key_in(mapping, keys), in_hand).with_for_update(skip_locked=True, key_share=True)
    way = way_of(connection.dialect)
    if way == "locked and returned":
        unlocked = free.cte("hf_free").prefix_with("MATERIALIZED")
        same_row = [mine == theirs for mine, theirs in zip(own, unlocked.c, strict=True)]
        rows = connection.execute(beating.where(*same_row).returning(*told)).all()
    elif way == "returned":
        rows = connection.execute(beating.where(key_in(mapping, keys)).returning(*told)).all()
    else:
        candidates = [tuple(row) for row in connection.execute(free)] if way == "locked" else keys
        won = [key for key in candidates if connection.execute(beating.where(key_in(mapping, [key]))).rowcount == 1]
        rows = connection.execute(sa.select(*told).where(key_in(mapping, won))).all() if won else []
    found = {tuple(row)[:-1]: utc(row[-1]) for row in rows}
    missing = [key for key in keys if key not in found]
    if missing and way.startswith("locked"):
        # A row that a handler's own transaction has locked is skipped: waiting for it would delay all the others.
        # It cannot become stale meanwhile: requeue_stale skips locked rows, too.
        rows = connection.execute(sa.select(*told).where(key_in(mapping, missing), in_hand)).all()
        found |= {tuple(row)[:-1]: utc(row[-1]) for row in rows}
    return found
