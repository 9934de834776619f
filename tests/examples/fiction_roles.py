"""The roles of examples.fiction as tests run them: with gates to wait at, places to die at, and a ledger.

An order names a role, a database, and what is special:

    meet        [mine, other]: after the first look, tell the other and wait for it
    die_at      die at the n-th: of `enqueue`, in the scheduler's transaction; of `save`, in the weaver's; of `link`,
                in the fulfiller's
    gate        the storyteller waits for this file; `blind`: without asking whether it may go on; `late`: and then
                raises
    ledger      a file that is told of every text that is begun
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from examples.fiction import lore
from examples.fiction.database import Database
from examples.fiction.fakes.fake_storyteller import FakeStoryteller, NotInTheMood
from examples.fiction.resumer import Resumer
from examples.fiction.running import Stop, keep_going
from examples.fiction.scheduler import Scheduler
from examples.fiction.status import is_explained, is_finished
from examples.fiction.storyteller import Between, Prompt
from examples.fiction.weaver import Piece, Weaver
from holdfast.adopt import Held
from tests.examples.fiction_scene import GUARDS, open_database

POLL_SECONDS = 0.05
#: What a process says when it hears signals.
READY = "ready"


def prepare() -> None:
    import sqlalchemy.dialects.postgresql.psycopg
    import sqlalchemy.dialects.sqlite  # noqa: F401

    for guards in GUARDS:
        open_database("sqlite://", guards, 5)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    print(json.dumps(play(json.loads(sys.argv[1]))))


def play(order: dict[str, Any]) -> dict[str, Any]:
    """Run a role to its end; returns its counters."""
    database = open_database(**order["made_with"])
    with Stop(order.get("grace", 5.0)).on_signals() as stop:
        print(READY, flush=True)
        return {"scheduler": schedule, "resumer": resume, "weaver": weave, "fulfiller": fulfil}[order["role"]](
            order, database, stop
        )


def schedule(order: dict[str, Any], database: Database, stop: Stop) -> dict[str, Any]:
    role = _Scheduler(order, database, batch=order.get("batch", 10), guarded=order.get("guarded", True))
    _go(order, role.one_pass, stop, database)
    return role.counters.as_dict()


def resume(order: dict[str, Any], database: Database, stop: Stop) -> dict[str, Any]:
    role = Resumer(database, stale=order["stale"], batch=order.get("batch", 100))
    if "meet" in order:
        _meet(*order["meet"])
    _go(order, role.one_pass, stop, database)
    return role.counters.as_dict()


def weave(order: dict[str, Any], database: Database, stop: Stop) -> dict[str, Any]:
    role = _Weaver(
        order,
        database,
        _teller(order),
        retry=order.get("retry", 0.05),
        beat=order.get("beat", 0.1),
        stop=stop,
    )
    _go(order, role.one_pass, stop, database)
    return role.counters.as_dict()


def fulfil(order: dict[str, Any], database: Database, stop: Stop) -> dict[str, Any]:
    if "die_at" in order:
        lore.link = _Deadly(order["die_at"]["link"], lore.link)  # type: ignore[assignment]
    loop = lore.fulfiller(
        database,
        _teller(order),
        stale=order.get("stale", 1.0),
        retry=0.02,
        poll=order.get("poll", POLL_SECONDS),
        batch=3,
        guarded=order.get("guarded", True),
        concurrency=order.get("concurrency", 2),
        grace=order.get("grace", 5.0),
        name=f"fulfiller {os.getpid()}",
    )
    if "meet" in order:
        _meet(*order["meet"])
    if not order.get("drain", True):
        loop.run()
        return loop.counters.as_dict()
    while not loop.stopping and not stop.asked:
        loop.run(drain=True)
        if is_explained(database) or order.get("passes"):
            break
        stop.wait(POLL_SECONDS)
    return loop.counters.as_dict()


def _go(order: dict[str, Any], one_pass: Any, stop: Stop, database: Database) -> None:
    if "passes" in order:
        for _ in range(order["passes"]):
            one_pass()
        return
    kinds = {"item": lambda: is_finished(database), "idle": lambda: True}
    is_done = kinds[order.get("until", "item")] if order.get("drain", True) else None
    keep_going(one_pass, stop, poll_seconds=order.get("poll", POLL_SECONDS), is_done=is_done)


class _Scheduler(Scheduler):
    def __init__(self, order: dict[str, Any], *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._meet = order.get("meet")
        self._left = order.get("die_at", {}).get("enqueue", 0)

    def look(self) -> list[int]:
        seen = super().look()
        if self._meet:
            _meet(*self._meet)
            self._meet = None
        return seen

    def enqueue(self, session: Session, item: Held) -> bool:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().enqueue(session, item)


class _Weaver(Weaver):
    def __init__(self, order: dict[str, Any], *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._left = order.get("die_at", {}).get("save", 0)

    def _save(self, session: Session, piece: Piece, text: str) -> None:
        super()._save(session, piece, text)
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class _Deadly:
    """A function after whose n-th call the process is dead."""

    def __init__(self, nth: int, function: Any) -> None:
        self._left, self._function = nth, function

    def __call__(self, *arguments: Any) -> None:
        self._function(*arguments)
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Teller(FakeStoryteller):
    """Tells a ledger, and waits where it is told to."""

    ledger: Path | None = None
    gate: Path | None = None
    is_blind: bool = False
    is_late: bool = False
    #: How far, in each direction, the pace of a text may be off.
    jitter: float = 0.0

    def tell(self, prompt: Prompt, between: Between) -> str:
        self._note(prompt.title)
        self._wait(between)
        if self.is_late:
            raise NotInTheMood("late")
        if self.jitter:
            # Not for ever: a machine under load would be too late every time.
            if prompt.attempt <= 3:
                time.sleep(self.pace_seconds * random.uniform(1 - self.jitter, 1 + self.jitter))
            return FakeStoryteller(0, self.fail_one_in).tell(prompt, lambda: None)
        return super().tell(prompt, (lambda: None) if self.is_blind else between)

    def explain(self, slug: str, attempt: int) -> str:
        self._note(slug)
        self._wait(lambda: None)
        return super().explain(slug, attempt)

    def _note(self, what: str) -> None:
        if self.ledger is not None:
            with self.ledger.open("a") as file:
                file.write(f"{os.getpid()} {what}\n")

    def _wait(self, between: Between) -> None:
        while self.gate is not None and not self.gate.exists():
            if not self.is_blind:
                between()
            time.sleep(0.01)


def _teller(order: dict[str, Any]) -> Teller:
    return Teller(
        order.get("pace", 0.0),
        order.get("fail_one_in", 0),
        *(Path(order[name]) if name in order else None for name in ("ledger", "gate")),
        is_blind=order.get("blind", False),
        is_late=order.get("late", False),
        jitter=order.get("jitter", 0.0),
    )


def _meet(mine: str, *others: str) -> None:
    Path(mine).touch()
    while not all(Path(other).exists() for other in others):
        time.sleep(0.002)
