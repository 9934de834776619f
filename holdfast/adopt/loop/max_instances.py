"""Instances: how many loops, over all processes and machines, may hold rows of a table at a time.

No table of ours keeps count. The rows do: an instance is there while rows that are processing carry its tokens. One that
holds nothing does not count; one that died counts until its rows are stale. Without a holder column rows are counted
instead, and `max_instances` batches of them may be in processing.

Claims of loops with such a limit take turns, so that two cannot both be the last one in: with a transaction's advisory
lock on PostgreSQL, which a pooler in transaction mode may stand between; by the writer's lock on SQLite. On other
databases two that claim at the same instant may exceed the limit until one of them is done.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import sqlalchemy as sa

from holdfast.adopt.connections import Open, connection_of
from holdfast.adopt.rows.stale import is_stale
from holdfast.adopt.table.tokens import instance_of

if TYPE_CHECKING:
    from holdfast.adopt.loop.loop import Loop


class Crowded(Exception):
    """As many instances as may are at work; raised to undo a claim that went too far."""


@contextmanager
def take_a_place(at: Open, loop: Loop, n: int) -> Iterator[int]:
    """Claim inside this, up to as many rows as it says; raises Crowded if there is no room."""
    if loop.max_instances is None:
        yield n
        return
    connection = connection_of(at, loop.mapping)
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_number(loop.mapping.name))))
    room = _room(at, loop, loop.max_instances)
    if room <= 0:
        raise Crowded
    yield min(n, room)
    # Where nothing was locked before the claim, only now is it certain who is in.
    if _room(at, loop, loop.max_instances) < 0:
        raise Crowded


def _room(at: Open, loop: Loop, most: int) -> int:
    """How many rows may be claimed; less than none if too many were."""
    mapping = loop.mapping
    connection = connection_of(at, mapping)
    conditions = [mapping.columns["status"] == mapping.word("processing"), *loop.where]
    if mapping.own_rows is not None:
        conditions.append(mapping.own_rows)
    if loop.stale_seconds is not None:
        conditions.append(
            sa.not_(sa.func.coalesce(is_stale(mapping, connection.dialect, loop.stale_seconds), sa.false()))
        )
    holder = mapping.column("holder")
    if holder is None:
        count = connection.execute(
            sa.select(sa.func.count()).select_from(mapping.table).where(*conditions)
        ).scalar_one()
        return most * loop.batch - int(count)
    tokens = connection.execute(sa.select(holder).where(*conditions, holder.is_not(None)).distinct()).scalars()
    others = {instance_of(token) for token in tokens} - {loop.identity.instance}
    return loop.batch if len(others) < most else -1


def _number(name: str) -> int:
    """A number for an advisory lock, the same in every process."""
    return int.from_bytes(
        hashlib.blake2b(f"holdfast.adopt {name}".encode(), digest_size=8).digest(), "big", signed=True
    )
