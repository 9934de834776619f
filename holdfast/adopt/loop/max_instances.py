"""Limits how many loops, across all processes and machines, hold rows of a table at the same time.

The count comes from the rows themselves: an instance counts while processing rows carry its tokens. An idle instance does
not count; a dead one counts until its rows are stale. Without a holder column, rows are counted instead: up to
`max_instances` batches of them may be processing.

Claims of loops with a limit are serialised, so that two cannot take the last place: on PostgreSQL by a transaction-level
advisory lock, which works behind a transaction pooler; on SQLite by the write lock. On other databases, two simultaneous
claims may exceed the limit until one of them is done.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from holdfast.adopt.connections import Open
from holdfast.adopt.loop.state import LoopState
from holdfast.adopt.rows.database_differences import Rows
from holdfast.adopt.table.tokens import instance_of


class Crowded(Exception):
    """The limit is reached; raised to roll back a claim that exceeded it."""


@contextmanager
def take_a_place(at: Open, loop: LoopState, n: int) -> Iterator[int]:
    """Yield how many rows may be claimed inside the block; raise Crowded if there is no room."""
    if loop.max_instances is None:
        yield n
        return
    rows = Rows(at, loop.mapping)
    if rows.dialect.name == "postgresql":
        # The key of the lock is the same in every process.
        name = hashlib.blake2b(f"holdfast.adopt {loop.mapping.name}".encode(), digest_size=8).digest()
        rows.connection.execute(sa.select(sa.func.pg_advisory_xact_lock(int.from_bytes(name, "big", signed=True))))
    room = _room(rows, loop, loop.max_instances)
    if room <= 0:
        raise Crowded
    yield min(n, room)
    # If nothing was locked before the claim, only a second count shows whether the limit was kept.
    if _room(rows, loop, loop.max_instances) < 0:
        raise Crowded


def _room(rows: Rows, loop: LoopState, most: int) -> int:
    """How many rows may be claimed; negative if too many were."""
    mapping = loop.mapping
    conditions = [mapping.in_status("processing"), *loop.where, *mapping.own_rows]
    if loop.stale_seconds is not None:
        conditions.append(sa.not_(sa.func.coalesce(rows.is_stale(loop.stale_seconds), sa.false())))
    holder = mapping.column("holder")
    if holder is None:
        asked = sa.select(sa.func.count()).select_from(mapping.table).where(*conditions)
        return most * loop.batch - int(rows.connection.execute(asked).scalar_one())
    asked = sa.select(holder).where(*conditions, holder.is_not(None)).distinct()
    tokens = rows.connection.execute(asked).scalars()
    others = {instance_of(token) for token in tokens} - {loop.identity.instance}
    return loop.batch if len(others) < most else -1
