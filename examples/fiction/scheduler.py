"""The scheduler: items that are ready go from Pending to InProgress, and for each of them work is enqueued.

Claim and task are one transaction. Whoever comes second claims nothing and enqueues nothing; a scheduler that is killed
in between has done neither. Any number of them may run.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime

import sqlalchemy as sa
from sqlalchemy import ColumnElement
from sqlalchemy.orm import Session, aliased

from examples.fiction import claims
from examples.fiction.counting import Counters
from examples.fiction.database import Database
from examples.fiction.models import Checkpoint, Item, Status, Task
from examples.fiction.unguarded import take_what_was_seen
from holdfast.adopt import Held, claim, insert_once

log = logging.getLogger("examples.fiction")


class Scheduler:
    """Looks for items that are ready, claims what it saw, and enqueues what it got."""

    def __init__(self, database: Database, *, batch: int = 10, guarded: bool = True, name: str = "scheduler") -> None:
        self._database = database
        self._sessions = database.sessions
        self._batch = batch
        self._guarded = guarded
        self._name = name
        self.counters = Counters()

    def one_pass(self) -> int:
        """Returns how many items it got; if there were some, more may be ready."""
        seen = self.look()
        return self.take(seen) if seen else 0

    def look(self) -> list[int]:
        """Keys of items that are ready; nothing is locked, and others may see the same."""
        due = sa.or_(Item.next_attempt_at.is_(None), Item.next_attempt_at <= datetime.now(UTC))
        wanted = sa.select(Item.id).where(Item.status == Status.PENDING, due, is_ready())
        with self._sessions() as session:
            return list(session.scalars(wanted.order_by(Item.position, Item.id).limit(self._batch)))

    def take(self, seen: Sequence[int]) -> int:
        """Claim those of them that are still to be had, and enqueue work for these; returns how many it was."""
        if not self._guarded:
            count = take_what_was_seen(self._database, seen, self.counters)
            log.info("%s: took %d items without a guard", self._name, count)
            return count
        with self._sessions.begin() as session:
            won = claim(session, self._database.items, len(seen), where=Item.id.in_(seen), holder=self._name)
            new = sum(self.enqueue(session, one) for one in won)
        self.counters.add(won=len(won), lost=len(seen) - len(won), enqueued=new)
        log.info("%s: claimed %d items of %d seen, %d tasks are new", self._name, len(won), len(seen), new)
        return len(won)

    def enqueue(self, session: Session, item: Held) -> bool:
        """Give the item's task the claim to carry, in the transaction of the claim; True if it had none yet."""
        phase = {"item_id": item.key, "phase": item.row["phase"]}
        checkpoint, _ = insert_once(session, Checkpoint, phase, unique_on=("item_id", "phase"))
        known = session.execute(
            sa.select(Task.id, Task.status).where(Task.item_id == item.key).order_by(Task.id).limit(1)
        ).first()
        if known is None:
            session.add(Task(item_id=item.key, **claims.written_down(item)))
            return True
        again = {"status": Status.PENDING, "attempts": 0, "next_attempt_at": None}
        # An item that had failed and was sent back by its author brings its task and checkpoint along.
        revived = again if known.status in (Status.FAILED, Status.COMPLETE) else {}
        session.execute(sa.update(Task).where(Task.id == known.id).values(**claims.written_down(item), **revived))
        if checkpoint.status in (Status.FAILED, Status.COMPLETE):
            checkpoint.status = Status.PENDING
        return False


def is_ready() -> ColumnElement[bool]:
    """Of an item: the one it starts from, if any, is Complete."""
    before = aliased(Item)
    done = sa.exists().where(before.id == Item.after_id, before.status == Status.COMPLETE)
    return sa.or_(Item.after_id.is_(None), done)
