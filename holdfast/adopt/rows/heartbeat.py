"""Heartbeat: marks held rows as being worked on, so that they do not become stale.

A heartbeat writes only its own column. It does not change the version, which would look like an edit. One statement
renews all rows of one claim.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa

from holdfast.adopt.connections import Open, primitive
from holdfast.adopt.rows.database_differences import Choice, Rows
from holdfast.adopt.rows.finish import HeldRows, by_claim, rows_of
from holdfast.adopt.rows.sql import Key, key_in
from holdfast.adopt.table.held_row import Finished, Held
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
        beats = _beat(Rows(at, mapping, now), same)
        won += [dataclasses.replace(one, beat_at=beats[one.key_values]) for one in same if one.key_values in beats]
        gone += [one for one in same if one.key_values not in beats]
    return Finished(tuple(won), tuple(gone))


def _beat(rows: Rows, same: Sequence[Held]) -> dict[Key, datetime]:
    """The keys of the rows that are still held, each with the time of its last heartbeat."""
    mapping, fence = rows.mapping, rows.fence_values(same[0])
    column = mapping.columns["heartbeat"]
    kind = time_type(column)
    assert kind is not None
    beat = sa.type_coerce(mapping.target("heartbeat"), kind).label("hf_beat")
    keys = [one.key_values for one in same]
    mine = Choice("processing", [key_in(mapping.key, keys), *rows.fenced(fence, bare=False)], len(keys))
    found = rows.move(mine, {column.name: rows.now(kind)}, [beat])
    if rows.support.skip_locked and len(found) < len(keys):
        # A row that a handler's own transaction has locked is skipped: waiting for it would delay all the others.
        # It cannot become stale meanwhile: requeue_stale skips locked rows, too.
        renewed = {rows.key_of(row) for row in found}
        is_held = [mapping.target("status") == mapping.word("processing"), *rows.fenced(fence)]
        found += rows.read([key for key in keys if key not in renewed], [beat], *is_held)
    rows.forget(keys, ["heartbeat"])
    return {rows.key_of(row): utc(row._mapping["hf_beat"]) for row in found}
