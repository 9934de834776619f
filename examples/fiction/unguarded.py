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
from sqlalchemy.orm import Session

from examples.fiction import claims
from examples.fiction.counting import Counters
from examples.fiction.database import Database
from examples.fiction.models import Checkpoint, Item, Status, Task
from holdfast.adopt import Held, insert_once

log = logging.getLogger("examples.fiction")


def take_what_was_seen(database: Database, seen: Sequence[int], counters: Counters) -> int:
    """Mark these items and enqueue each, whoever has done so meanwhile; returns how many there were."""
    count = 0
    for key in seen:
        with database.sessions.begin() as session:
            marked = _mark(session, database, key)
        if marked is None:
            continue
        item, was_taken = marked
        count += 1
        with database.sessions.begin() as session:
            phase = {"item_id": key, "phase": item.row["phase"]}
            insert_once(session, Checkpoint, phase, unique_on=("item_id", "phase"))
            session.add(Task(item_id=key, **claims.written_down(item)))
        counters.add(won=1, enqueued=1, taken_twice=was_taken)
        if was_taken:
            log.warning("item %d was taken although somebody had it; the guarded claim is off", key)
    return count


def _mark(session: Session, database: Database, key: int) -> tuple[Held, bool] | None:
    """Mark an item as ours, and tell whether it was Pending no longer; None if it is gone."""
    now = datetime.now(UTC)
    guards = {"holder": f"unguarded-{secrets.token_hex(12)}", "version": Item.version + 1, "heartbeat": now}
    used: dict[str, Any] = {role: value for role, value in guards.items() if role in database.items.columns}
    marks = {database.items.columns[role].name: value for role, value in used.items()}
    marking = sa.update(Item).where(Item.id == key).values(status=Status.IN_PROGRESS, started_at=now, **marks)
    marking = marking.execution_options(synchronize_session=False)
    # What the guard would have let through is tried first: only so is it known what it would have prevented.
    told = (Item.phase, Item.version)
    row = session.execute(marking.where(Item.status == Status.PENDING).returning(*told)).first()
    was_taken = row is None
    row = row or session.execute(marking.returning(*told)).first()
    if row is None:
        return None
    version = row.version if "version" in used else None
    return Held(
        database.items, key, 1, used.get("holder"), version, started_at=now, row={"phase": row.phase}
    ), was_taken
