"""Heartbeat: marks held rows as being worked on, so that they do not become stale.

A heartbeat writes only its own column. It does not change the version, which would look like an edit. One statement
renews all rows of one claim.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa

from holdfast.adopt.connections import Open, connection_of, primitive
from holdfast.adopt.rows.dialects import Key, changing, key_in, support_of
from holdfast.adopt.rows.finish import HeldRows, rows_of
from holdfast.adopt.rows.guarded_change import by_claim, fence_values, fenced
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
    for mapping, same in by_claim(rows_of(rows)):
        if "heartbeat" not in mapping.columns:
            raise UsageError(f"{mapping} has no heartbeat column; name it in its mapping with heartbeat=")
        beats = _beat(at, mapping, same, now)
        won += [dataclasses.replace(one, beat_at=beats[one.key_values]) for one in same if one.key_values in beats]
        gone += [one for one in same if one.key_values not in beats]
        forget(at, mapping, [one.key_values for one in same], ["heartbeat"])
    return Finished(tuple(won), tuple(gone))


def _beat(at: Open, mapping: TableMapping, same: Sequence[Held], at_time: datetime | None) -> dict[Key, datetime]:
    """The keys of the rows that are still held, each with the time of its last heartbeat."""
    connection = connection_of(at, mapping)
    column, own, support = mapping.columns["heartbeat"], mapping.bare_key, support_of(connection.dialect)
    kind = time_type(column)
    assert kind is not None
    fence = fenced(mapping, connection.dialect, fence_values(same[0], connection.dialect))
    columns = [*own, sa.type_coerce(mapping.target("heartbeat"), kind)]
    keys = [one.key_values for one in same]
    moment = the_time(connection.dialect, kind, at=at_time)
    beating = changing(mapping, "processing", {column.name: moment}).where(*fence)
    in_hand = sa.and_(mapping.target("status") == mapping.word("processing"), *fence)
    free = sa.select(*own).where(key_in(own, keys), in_hand).with_for_update(skip_locked=True, key_share=True)
    if support.returning:
        if support.skip_locked:
            unlocked = free.cte("hf_free").prefix_with("MATERIALIZED")
            chosen = sa.and_(*(mine == theirs for mine, theirs in zip(own, unlocked.c, strict=True)))
        else:
            chosen = key_in(own, keys)
        rows = connection.execute(beating.where(chosen).returning(*columns)).all()
    else:
        candidates = [tuple(row) for row in connection.execute(free)] if support.skip_locked else keys
        won = [key for key in candidates if connection.execute(beating.where(key_in(own, [key]))).rowcount == 1]
        rows = connection.execute(sa.select(*columns).where(key_in(own, won))).all() if won else []
    found = {tuple(row[:-1]): utc(row[-1]) for row in rows}
    missing = [key for key in keys if key not in found]
    if missing and support.skip_locked:
        # A row that a handler's own transaction has locked is skipped: waiting for it would delay all the others.
        # It cannot become stale meanwhile: requeue_stale skips locked rows, too.
        rows = connection.execute(sa.select(*columns).where(key_in(own, missing), in_hand)).all()
        found |= {tuple(row[:-1]): utc(row[-1]) for row in rows}
    return found
