"""The claim as it was before: read what is Pending, mark it InProgress, enqueue it; three steps, and no guard in any.

Two schedulers that read the same items both mark and both enqueue them. It is kept behind a switch, so that whoever
suspects the guarded claim of harm can go back, and it counts what the guard would have prevented.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session, sessionmaker

from examples.fiction import claims
from examples.fiction.counting import Counters
from examples.fiction.models import Status
from examples.fiction.tables import Tables
from holdfast.adopt import Held, insert_once

log = logging.getLogger("examples.fiction")


def take_what_was_seen(
    sessions: sessionmaker[Session], tables: Tables, seen: Sequence[int], counters: Counters
) -> int:
    """Mark these items and enqueue each, whoever has done so meanwhile; returns how many there were."""
    count = 0
    for key in seen:
        with sessions.begin() as session:
            marked = _mark(session, tables, key)
        if marked is None:
            continue
        item, was_taken = marked
        count += 1
        with sessions.begin() as session:
            phase = {"item_id": key, "phase": item.row["phase"]}
            insert_once(session, tables.Checkpoint, phase, unique_on=("item_id", "phase"))
            session.add(tables.Task(item_id=key, **claims.written_down(item)))
        counters.add(won=1, enqueued=1, taken_twice=was_taken)
        if was_taken:
            log.warning("item %d was taken although somebody had it; the guarded claim is off", key)
    return count


def _mark(session: Session, tables: Tables, key: int) -> tuple[Held, bool] | None:
    """Mark an item as ours, and tell whether it was Pending no longer; None if it is gone."""
    item: Any = tables.Item
    guards = tables.guards
    now = datetime.now(UTC)
    marks: dict[str, Any] = {"status": Status.IN_PROGRESS, "started_at": now}
    if guards.holder:
        marks["holder"] = f"unguarded-{secrets.token_hex(12)}"
    if guards.version:
        marks["version"] = item.version + 1
    if guards.heartbeat:
        marks["last_heartbeat"] = now
    told = [item.phase, *([item.version] if guards.version else [])]
    marking = sa.update(item).where(item.id == key).values(**marks).returning(*told)
    marking = marking.execution_options(synchronize_session=False)
    # What the guard would have let through is tried first: only so is it known what it would have prevented.
    row = session.execute(marking.where(item.status == Status.PENDING)).first()
    was_taken = row is None
    row = row or session.execute(marking).first()
    if row is None:
        return None
    version = row.version if guards.version else None
    held = Held(tables.items, key, 1, marks.get("holder"), version, started_at=now, row={"phase": row.phase})
    return held, was_taken
