"""The resumer: items that say InProgress and that nobody seems to work on go back to Pending, with task and checkpoint.

One guarded statement decides: it looks at status and age once more while it changes the row. So two resumers never
bring an item back twice, and one that meets a living weaver, which beats or finishes at that moment, leaves the item to
it. The item decides for all three rows, so that they come back together.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement
from sqlalchemy.orm import Session

from examples.fiction import claims
from examples.fiction.counting import Counters
from examples.fiction.database import Database
from examples.fiction.models import Claimable, Status
from holdfast import Duration, seconds
from holdfast.adopt import claim, fail, requeue_stale

log = logging.getLogger("examples.fiction")


class Resumer:
    """Brings back what has been silent for longer than `stale`."""

    def __init__(self, database: Database, *, stale: Duration = "2m", batch: int = 100) -> None:
        self._sessions = database.sessions
        self._tables = database.tables
        self._stale = seconds(stale, what="stale")
        self._batch = batch
        self.counters = Counters()

    def one_pass(self) -> int:
        """Returns how many items it brought back."""
        with self._sessions.begin() as session:
            idle = sa.not_(self._is_waiting_or_young())
            keys = requeue_stale(session, self._tables.items, self._stale, where=idle, most=self._batch).queued
            spent = self._bring_along(session, keys) if keys else []
            self._free_what_is_left(session)
        if keys:
            self.counters.add(resumed=len(keys), exhausted=len(spent))
            log.warning("resumed %d items that were silent for %s; %d have no attempt left",
                        len(keys), f"{self._stale:g} s", len(spent))  # fmt: skip
        return len(keys)

    def _is_waiting_or_young(self) -> ColumnElement[bool]:
        """Of an item: nobody has begun with it, or, where no heartbeat tells it, somebody has a short while ago."""
        waiting, task = claims.is_waiting(self._tables), self._tables.Task
        if self._tables.guards.heartbeat:
            return waiting
        since = datetime.now(UTC) - timedelta(seconds=self._stale)
        own = task.item_id == self._tables.Item.id
        return sa.or_(waiting, sa.exists().where(own, task.status == Status.IN_PROGRESS, task.started_at > since))

    def _bring_along(self, session: Session, keys: tuple[int, ...]) -> list[int]:
        """Task and checkpoint of these items, however old they are; returns the items whose last attempt it was.

        A weaver that is alive after all has lost its item, and so can finish none of the three.
        """
        tables = self._tables
        said = f"nothing was heard of it for {self._stale:g} s: its process died, or was cut off"
        for mapping, model in ((tables.tasks, tables.Task), (tables.checkpoints, tables.Checkpoint)):
            requeue_stale(session, mapping, 0, where=model.item_id.in_(keys), most=len(keys) * 2)
        owners: dict[type[Claimable], Any] = {
            tables.Item: tables.Item.id, tables.Task: tables.Task.item_id, tables.Checkpoint: tables.Checkpoint.item_id
        }  # fmt: skip
        for one, item in owners.items():
            begun = sa.update(one).where(item.in_(keys), one.status != Status.COMPLETE, one.started_at.is_not(None))
            session.execute(begun.values(error=said).execution_options(synchronize_session=False))
        task = tables.Task
        failed = sa.select(task.item_id).where(task.item_id.in_(keys), task.status == Status.FAILED)
        spent = sorted(set(session.scalars(failed)))
        if spent:
            # The task had no attempt left and is Failed: so are its item and its checkpoint.
            rows = claim(session, tables.items, len(spent), where=tables.Item.id.in_(spent))
            rows += claim(session, tables.checkpoints, len(spent), where=tables.Checkpoint.item_id.in_(spent))
            fail(session, rows, said)
        return spent

    def _free_what_is_left(self, session: Session) -> None:
        """Tasks and checkpoints that somebody died with after the item had been taken from them."""
        tables = self._tables
        for mapping, model in ((tables.tasks, tables.Task), (tables.checkpoints, tables.Checkpoint)):
            in_work = sa.exists().where(tables.Item.id == model.item_id, tables.Item.status == Status.IN_PROGRESS)
            requeue_stale(session, mapping, self._stale, where=sa.not_(in_work), most=self._batch)
