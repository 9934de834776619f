"""Keeping counters: what a process has counted is added to the sums of its role, in the database, and outlives it.

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
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from examples.fiction.database import Database
from holdfast.adopt import insert_once

log = logging.getLogger("examples.fiction")

#: How often sums are brought up to date.
EVERY_SECONDS = 1.0
#: What a loop tells beside its counters: it does not only grow.
NO_SUMS = ("waiting", "lag_seconds")


class Counting(Protocol):
    """The counters of a role here, or those of a loop."""

    def as_dict(self) -> Mapping[str, Any]: ...


@contextmanager
def kept(database: Database, role: str, counters: Counting) -> Iterator[None]:
    """Add these counters to the sums of a role while the block runs, and when it ends."""
    sums = _Sums(database, role, counters)
    ended = threading.Event()
    thread = threading.Thread(target=sums.keep, args=(ended,), name="counters", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class _Sums:
    def __init__(self, database: Database, role: str, counters: Counting) -> None:
        self._database, self._role, self._counters = database, role, counters
        self._saved: dict[str, int] = {}

    def keep(self, ended: threading.Event) -> None:
        is_last = False
        while not is_last:
            is_last = ended.wait(EVERY_SECONDS)
            try:
                self._save()
            except OperationalError as error:
                log.warning("%s: counters are not saved yet: %s", self._role, error.orig)

    def _save(self) -> None:
        now = {
            name: number for name, number in self._counters.as_dict().items()
            if isinstance(number, int) and name not in NO_SUMS
        }  # fmt: skip
        new = {name: number - self._saved.get(name, 0) for name, number in now.items()}
        with self._database.sessions.begin() as session:
            # Always in the same order, so that two processes do not wait for each other.
            for name, more in sorted(new.items()):
                if more:
                    count = self._database.tables.Count
                    own = {"role": self._role, "name": name}
                    insert_once(session, count, {**own, "number": 0}, unique_on=("role", "name"))
                    adding = sa.update(count).filter_by(**own).values(number=count.number + more)
                    session.execute(adding.execution_options(synchronize_session=False))
        self._saved = now


def sums(database: Database) -> dict[str, dict[str, int]]:
    """What every role has counted so far, by role."""
    count = database.tables.Count
    found: dict[str, dict[str, int]] = {}
    with database.sessions() as session:
        wanted = sa.select(count.role, count.name, count.number).where(count.number > 0).order_by(count.role, count.name)
        for role, name, number in session.execute(wanted):
            found.setdefault(role, {})[name] = number
    return found
