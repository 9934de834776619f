"""The unguarded claim: reads queued rows, then takes them even if another process has claimed them in between.

Used with `guarded=False` only: to rule out the guarded claim as the cause of a problem, and to count the double claims it
would have prevented. Two processes with unguarded claims process some rows twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import sqlalchemy as sa

from holdfast.adopt.connections import Open, connection_of
from holdfast.adopt.rows.claim import (
    OrderBy,
    RowShape,
    Where,
    claimable,
    conditions_of,
    marks,
    order_of,
    returned_columns,
)
from holdfast.adopt.rows.dialects import Choice, bare, key_in, key_of
from holdfast.adopt.table.held_row import Held
from holdfast.adopt.table.mapping import Name, TableMapping
from holdfast.adopt.table.times import now
from holdfast.adopt.table.tokens import LoopIdentity

Keys = list[tuple[Any, ...]]


def look(at: Open, mapping: TableMapping, n: int, where: Where, order_by: OrderBy) -> Keys:
    """The keys of queued rows, read without locks."""
    connection = connection_of(at, mapping)
    choice = Choice(
        "queued", claimable(connection.dialect, mapping, conditions_of(where)), n, order_of(mapping, order_by)
    )
    return [tuple(row) for row in connection.execute(choice.select(mapping))]


def take_anyway(
    at: Open, mapping: TableMapping, keys: Keys, who: LoopIdentity, columns: Sequence[Name] | None
) -> tuple[list[Held], int]:
    """Claim these rows unconditionally. Also return how many of them were no longer queued."""
    connection = connection_of(at, mapping)
    target = bare(mapping)
    token = who.token(mapping.columns["holder"]) if "holder" in mapping.columns else None
    values = marks(mapping, partial(now, connection.dialect), token)
    # Lock first, then count: the rows that are no longer queued are those that a guard would have skipped.
    still = (
        sa.select(sa.func.count())
        .select_from(target)
        .where(key_in(mapping, keys), target.c[mapping.columns["status"].name] == mapping.word("queued"))
    )
    if connection.dialect.name != "sqlite":
        locked = sa.select(*(target.c[column.name] for column in mapping.key)).where(key_in(mapping, keys))
        connection.execute(locked.with_for_update()).all()
        queued = connection.execute(still).scalar_one()
        connection.execute(target.update().where(key_in(mapping, keys)).values(values))
    else:
        # An UPDATE takes SQLite's write lock even if it changes nothing.
        connection.execute(target.update().where(sa.false()).values(values))
        queued = connection.execute(still).scalar_one()
        connection.execute(target.update().where(key_in(mapping, keys)).values(values))
    own = [target.c[column.name].label(f"hf_key{at}") for at, column in enumerate(mapping.key)]
    read = sa.select(*own, *returned_columns(mapping, columns)).where(key_in(mapping, keys))
    places = {key: place for place, key in enumerate(keys)}
    rows = sorted(connection.execute(read), key=lambda row: places[key_of(mapping, row)])
    shape = RowShape.of(mapping, columns)
    return [shape.held(mapping, row, token) for row in rows], len(rows) - queued
