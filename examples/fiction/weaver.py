"""The weaver: takes a task, and with it its item and its checkpoint, and writes the text.

The three rows are held together. When the text is there all of them are Complete, and with them, in one transaction,
the text, the count of words and the requirements for the world bible. When the storyteller raises, all three leave
InProgress together, with the error. A weaver that is killed leaves them to the resumer.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import ColumnElement
from sqlalchemy.orm import Session

from examples.fiction import claims
from examples.fiction.counting import Counters
from examples.fiction.database import Database
from examples.fiction.models import Checkpoint, Item, Plan, Requirement, Status, Task
from examples.fiction.running import Stop
from examples.fiction.storyteller import Prompt, Storyteller, things_named
from holdfast import Backoff, Duration, LeaseLost, RetryLater
from holdfast.adopt import Held, Unit, claim, held, insert_once

log = logging.getLogger("examples.fiction")


@dataclass(frozen=True)
class Piece:
    """Three rows in hand, and what is to be written."""

    item: Held
    task: Held
    checkpoint: Held
    prompt: Prompt
    plan_id: int

    @property
    def rows(self) -> tuple[Held, ...]:
        # The item comes first, everywhere: whoever has it has the others.
        return self.item, self.task, self.checkpoint


class Weaver:
    """Works on one piece at a time."""

    def __init__(
        self,
        database: Database,
        storyteller: Storyteller,
        *,
        retry: Backoff | Duration | None = "5s",
        beat: Duration = "10s",
        stop: Stop | None = None,
        name: str = "weaver",
    ) -> None:
        self._database = database
        self._sessions = database.sessions
        self._storyteller = storyteller
        self._retry = retry
        self._beat = beat
        self._stop = stop or Stop()
        self._name = name
        self.counters = Counters()

    def one_pass(self) -> int:
        """Weave a piece, if there is one; what went wrong is in its rows, in the log and in the counters."""
        piece = self.take()
        if piece is None:
            return 0
        try:
            self.weave(piece)
        except LeaseLost as error:
            self.counters.add(taken_over=1)
            log.warning("%s: %s", self._name, error)
        except RetryLater:
            self.counters.add(handed_back=1)
            log.info("%s: stopping, handed back %r", self._name, piece.prompt.title)
        except Exception as error:
            how = self._where(piece)
            self.counters.add(**{how: 1})
            log.warning("%s: %r, attempt %d %s: %s", self._name, piece.prompt.title, piece.task.attempt, how, error)
        return 1

    def take(self) -> Piece | None:
        """Claim a task whose claim of its item is good, and its checkpoint: all three, or none."""
        with self._sessions() as session, session.begin() as transaction:
            found = claim(session, self._database.tasks, where=_can_be_woven(self._database), holder=self._name)
            if not found:
                return None
            [task] = found
            item = claims.read(self._database, task)
            here = Checkpoint.item_id == item.key
            checkpoints = claim(session, self._database.checkpoints, where=here, holder=self._name)
            if not checkpoints or not claims.is_still_held(session, item):
                transaction.rollback()
                return None
            return self._piece(session, item, task, checkpoints[0])

    def weave(self, piece: Piece) -> None:
        """Write the text of a piece; raises what the storyteller raises, after the rows were let go of."""
        with held(self._sessions, piece.rows, retry=self._retry, beat=self._beat) as unit:
            text = self._storyteller.tell(piece.prompt, lambda: self._go_on(unit))
            unit.set(piece.checkpoint, text=text)
            unit.effect(self._save, piece, text)
        self.counters.add(woven=1)
        log.info("%s: wove %r", self._name, piece.prompt.title)

    def _go_on(self, unit: Unit) -> None:
        """Between paragraphs: raise if the rows are somebody else's by now, or if it is time to stop."""
        unit.check()
        if self._stop.is_over:
            raise RetryLater(0, "the weaver was asked to stop")

    def _save(self, session: Session, piece: Piece, text: str) -> None:
        """What is written together with the completion of the three rows."""
        for slug in things_named(text):
            wanted = {"plan_id": piece.plan_id, "item_id": piece.item.key, "slug": slug}
            insert_once(session, Requirement, wanted, unique_on=("item_id", "slug"))
        # Schedulers without a guard may have enqueued the item twice; one text is enough.
        twins = sa.update(Task).where(
            Task.item_id == piece.item.key, Task.status == Status.PENDING, Task.id != piece.task.key
        )
        session.execute(twins.values(status=Status.COMPLETE, error="another task of the same item was woven"))
        session.execute(sa.update(Plan).where(Plan.id == piece.plan_id).values(words=Plan.words + len(text.split())))

    def _piece(self, session: Session, item: Held, task: Held, checkpoint: Held) -> Piece:
        found = session.get_one(Item, item.key)
        plan = session.get_one(Plan, found.plan_id)
        before = session.scalar(sa.select(Checkpoint.text).where(Checkpoint.item_id == found.after_id)) or ""
        prompt = Prompt(found.phase, found.title, plan.premise, before, task.attempt)
        return Piece(item, task, checkpoint, prompt, plan.id)

    def _where(self, piece: Piece) -> str:
        with self._sessions() as session:
            status = session.scalar(sa.select(Task.status).where(Task.id == piece.task.key))
        return "failed" if status is Status.FAILED else "retried"


def _can_be_woven(database: Database) -> ColumnElement[bool]:
    """Of a task: it carries a good claim, and nobody works on its checkpoint."""
    free = sa.exists().where(Checkpoint.item_id == Task.item_id, Checkpoint.status == Status.PENDING)
    return sa.and_(claims.is_good(database), free)
