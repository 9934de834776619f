"""The unguarded claim: takes rows that were seen queued, even if another process has claimed them in between.

Used with `guarded=False` only: to rule out the guarded claim as the cause of a problem, and to count the double claims it
would have prevented. Two processes with unguarded claims process some rows twice.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from holdfast.adopt.connections import Open, connection_of
from holdfast.adopt.rows.claim import marks, row_reader
from holdfast.adopt.rows.dialects import Key, key_in, read_back
from holdfast.adopt.table.held_row import Held
from holdfast.adopt.table.mapping import Name, TableMapping
from holdfast.adopt.table.tokens import LoopIdentity


def claim_unguarded(
    at: Open, mapping: TableMapping, keys: Sequence[Key], who: LoopIdentity, columns: tuple[Name, ...] | None
) -> tuple[list[Held], int]:
    """Claim these rows unconditionally. Also return how many of them were no longer queued."""
    connection, reader = connection_of(at, mapping), row_reader(mapping, columns)
    status, chosen = mapping.target("status"), key_in(mapping.bare_key, keys)
    # Lock first, then count: the rows that are no longer queued are those that a guard would have skipped.
    connection.execute(mapping.bare.update().where(chosen).values({mapping.columns["status"].name: status}))
    still = sa.select(sa.func.count()).select_from(mapping.bare).where(chosen, status == mapping.word("queued"))
    queued = connection.execute(still).scalar_one()
    token = who.token(mapping.column("holder"))
    connection.execute(mapping.bare.update().where(chosen).values(marks(mapping, connection.dialect, token)))
    rows = read_back(connection, mapping, keys, reader.columns)
    return [reader.held(row, token) for row in rows], len(rows) - queued
