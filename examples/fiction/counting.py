"""Counters: what a process has done since it began, and the sums of all processes of a role, which outlive them.

    with kept(database, "weaver", weaver.counters):
        ...

The difference since the last time is added every second and at the end. A process that is killed takes with it what it
counted within that second, and no more.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from examples.fiction.database import Database
from examples.fiction.models import Count
from holdfast.adopt import insert_once

log = logging.getLogger("examples.fiction")

#: How often sums are brought up to date.
EVERY_SECONDS = 1.0
#: What a loop tells beside its counters: it does not only grow.
NO_SUMS = ("waiting", "lag_seconds")


@dataclass
class Counters:
    """Numbers that only grow."""

    #: Items that this scheduler saw waiting and got; and saw, but another one got them first.
    won: int = 0
    lost: int = 0
    #: Tasks made for items that had none.
    enqueued: int = 0
    #: With the guard off: items taken although somebody else had taken them.
    taken_twice: int = 0
    #: Items that had been silent for too long and are Pending again; and those among them that had no attempt left.
    resumed: int = 0
    exhausted: int = 0
    #: Pieces: finished; failed and to be tried again; failed for good; handed back in a stop; taken over meanwhile.
    woven: int = 0
    retried: int = 0
    failed: int = 0
    handed_back: int = 0
    taken_over: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, **numbers: int) -> None:
        with self._lock:
            for name, number in numbers.items():
                setattr(self, name, getattr(self, name) + number)

    def as_dict(self) -> dict[str, int]:
        return {one.name: getattr(self, one.name) for one in fields(self) if not one.name.startswith("_")}

    def __str__(self) -> str:
        shown = {name: number for name, number in self.as_dict().items() if number}
        return ", ".join(f"{name.replace('_', ' ')} {number}" for name, number in shown.items()) or "nothing yet"


class Counting(Protocol):
    """The counters of a role here, or those of a loop."""

    def as_dict(self) -> Mapping[str, Any]: ...


@contextmanager
def kept(database: Database, role: str, counters: Counting) -> Iterator[None]:
    """Add these counters to the sums of a role while the block runs, and when it ends."""
    ended = threading.Event()
    thread = threading.Thread(target=_keep, args=(database, role, counters, ended), name="counters", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _keep(database: Database, role: str, counters: Counting, ended: threading.Event) -> None:
    saved: dict[str, int] = {}
    is_last = False
    while not is_last:
        is_last = ended.wait(EVERY_SECONDS)
        now = {name: n for name, n in counters.as_dict().items() if isinstance(n, int) and name not in NO_SUMS}
        try:
            _add(database, role, {name: n - saved.get(name, 0) for name, n in now.items()})
            saved = now
        except OperationalError as error:
            log.warning("%s: counters are not saved yet: %s", role, error.orig)


def _add(database: Database, role: str, numbers: Mapping[str, int]) -> None:
    with database.sessions.begin() as session:
        # Always in the same order, so that two processes do not wait for each other.
        for name, more in sorted(numbers.items()):
            if more:
                insert_once(session, Count, {"role": role, "name": name, "number": 0}, unique_on=("role", "name"))
                adding = sa.update(Count).filter_by(role=role, name=name).values(number=Count.number + more)
                session.execute(adding.execution_options(synchronize_session=False))


def sums(database: Database) -> dict[str, dict[str, int]]:
    """What every role has counted so far, by role."""
    found: dict[str, dict[str, int]] = {}
    with database.sessions() as session:
        for one in session.scalars(sa.select(Count).where(Count.number > 0).order_by(Count.role, Count.name)):
            found.setdefault(one.role, {})[one.name] = one.number
    return found
