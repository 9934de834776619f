"""The backlog: how many rows could be claimed now, and how long the oldest has been waiting."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa

from holdfast.adopt.connections import Open, connection_of, primitive
from holdfast.adopt.rows.claim import Where, claimable, conditions_of
from holdfast.adopt.table.mapping import TableMapping
from holdfast.adopt.table.times import aware, comparable, utc
from holdfast.adopt.table.times import now as the_time


class Waiting(NamedTuple):
    rows: int
    #: Seconds since the oldest became due, was created, or was last updated; None without such a column.
    oldest_seconds: float | None


@primitive
def waiting(at: Open, mapping: TableMapping, *, where: Where = None, now: datetime | None = None) -> Waiting:
    """Count the rows that could be claimed now. Scans all of them: do not call it often."""
    connection = connection_of(at, mapping)
    dialect = connection.dialect
    roles = [role for role in ("next_attempt", "created", "updated") if role in mapping.columns]
    times = [comparable(dialect, mapping.columns[role]) for role in roles]
    since = sa.func.coalesce(*times) if len(times) > 1 else times[0] if times else sa.null()
    oldest = sa.type_coerce(sa.func.min(since), aware(dialect)) if times else sa.null()
    asked = sa.select(
        sa.func.count(), oldest, sa.type_coerce(the_time(dialect, aware(dialect), at=now), aware(dialect))
    )
    asked = asked.select_from(mapping.table).where(
        mapping.in_status("queued"), *claimable(dialect, mapping, conditions_of(where), now), *mapping.own_rows
    )
    count, first, moment = connection.execute(asked).one()
    return Waiting(count, None if first is None else max(0.0, (utc(moment) - utc(first)).total_seconds()))
