"""The resumer: items that say InProgress and that nobody seems to work on go back to Pending, with task and checkpoint.

One guarded statement decides: it looks at status and age once more while it changes the row. So two resumers never
bring an item back twice, and one that meets a living weaver, which beats or finishes at that moment, leaves the item to
it. The item decides for all three rows, so that they come back together.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from sqlalchemy import ColumnElement
from sqlalchemy.orm import Session

from examples.fiction import claims
from examples.fiction.counting import Counters
from examples.fiction.database import Database
from examples.fiction.models import Checkpoint, Item, Status, Task
from holdfast import Duration, seconds
from holdfast.adopt import claim, fail, requeue_stale

log = logging.getLogger("examples.fiction")


class Resumer:
    """Brings back what has been silent for longer than `stale`."""

    def __init__(
        self, database: Database, *, stale: Duration = "2m", batch: int = 100, counters: Counters | None = None
    ) -> None:
        self._database = database
        self._stale = seconds(stale, what="stale")
        self._batch = batch
        self.counters = counters or Counters()
        #: What comes back with its item.
        self._parts = ((database.tasks, Task), (database.checkpoints, Checkpoint))

    def one_pass(self) -> int:
        """Returns how many items it brought back."""
        with self._database.sessions.begin() as session:
            idle = sa.not_(self._is_waiting_or_young())
            keys = requeue_stale(session, self._database.items, self._stale, where=idle, most=self._batch).queued
            spent = self._bring_along(session, keys) if keys else []
            self._free_what_is_left(session)
        if keys:
            self.counters.add(resumed=len(keys), exhausted=len(spent))
            log.warning(
                "resumed %d items that were silent for %s; %d have no attempt left",
                len(keys),
                f"{self._stale:g} s",
                len(spent),
            )
        return len(keys)

    def _is_waiting_or_young(self) -> ColumnElement[bool]:
        """Of an item: nobody has begun with it, or, where no heartbeat tells it, somebody has a short while ago."""
        waiting = claims.is_waiting(self._database)
        if "heartbeat" in self._database.items.columns:
            return waiting
        since = datetime.now(UTC) - timedelta(seconds=self._stale)
        young = sa.exists().where(Task.item_id == Item.id, Task.status == Status.IN_PROGRESS, Task.started_at > since)
        return sa.or_(waiting, young)

    def _bring_along(self, session: Session, keys: tuple[int, ...]) -> list[int]:
        """Task and checkpoint of these items, however old they are; returns the items whose last attempt it was.

        A weaver that is alive after all has lost its item, and so can finish none of the three.
        """
        said = f"nothing was heard of it for {self._stale:g} s: its process died, or was cut off"
        for mapping, model in self._parts:
            requeue_stale(session, mapping, 0, where=model.item_id.in_(keys), most=len(keys) * 2)
        for one, key in ((Item, Item.id), (Task, Task.item_id), (Checkpoint, Checkpoint.item_id)):
            begun = sa.update(one).where(key.in_(keys), one.status != Status.COMPLETE, one.started_at.is_not(None))
            session.execute(begun.values(error=said).execution_options(synchronize_session=False))
        failed = sa.select(Task.item_id).where(Task.item_id.in_(keys), Task.status == Status.FAILED)
        spent = sorted(set(session.scalars(failed)))
        if spent:
            # The task had no attempt left and is Failed: so are its item and its checkpoint.
            rows = claim(session, self._database.items, len(spent), where=Item.id.in_(spent))
            rows += claim(session, self._database.checkpoints, len(spent), where=Checkpoint.item_id.in_(spent))
            fail(session, rows, said)
        return spent

    def _free_what_is_left(self, session: Session) -> None:
        """Tasks and checkpoints that somebody died with after the item had been taken from them."""
        for mapping, model in self._parts:
            in_work = sa.exists().where(Item.id == model.item_id, Item.status == Status.IN_PROGRESS)
            requeue_stale(session, mapping, self._stale, where=sa.not_(in_work), most=self._batch)
