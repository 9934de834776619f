"""Transactions of a loop: with effects, in a single statement, and retried after transient errors."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

from sqlalchemy import Engine
from sqlalchemy.util import await_only

from holdfast.adopt.connections import Open, Place, check_user_code, is_async
from holdfast.adopt.sqlalchemy_errors import MOST_AGAIN, kind_of
from holdfast.errors import UsageError
from holdfast.store.database_errors import ErrorKind

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Effect:
    """A function of the user's, called with the Connection or Session of a transaction."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, place: Any) -> Any:
        return self.function(place, *self.arguments, **self.named)


def transact(at: Place, work: Callable[[Open], T], effects: Sequence[Effect] = ()) -> T:
    """Run the work and then the effects in one new transaction, and commit."""
    with _begun(at) as (place, users_place):
        answer = work(place)
        for effect in effects:
            if inspect.isawaitable(waiting := effect(users_place)):
                if not is_async(at):
                    if inspect.iscoroutine(waiting):
                        waiting.close()
                    raise UsageError(f"{effect.function!r} is async, and the engine is not; give it an async engine")
                await_only(waiting)
        if effects:
            check_user_code(place)
        return answer


@contextmanager
def _begun(at: Any) -> Iterator[tuple[Open, Any]]:
    """A new transaction: for the loop's own statements, and in the form that the user's functions expect."""
    if not is_async(at):
        with at.begin() as place:
            yield place, place
    elif hasattr(at, "sync_engine"):
        from sqlalchemy.ext.asyncio import AsyncConnection

        with at.sync_engine.begin() as connection:
            yield connection, AsyncConnection(at, connection)
    else:
        session = at()
        with session.sync_session as place, place.begin():
            yield place, session


def transact_once(engine: Engine, work: Callable[[Open], T]) -> T:
    """Run work that is a single statement."""
    return transact(for_single_statements(engine), work)


@lru_cache(maxsize=100)
def for_single_statements(engine: Engine) -> Engine:
    """The engine for transactions of one statement. PostgreSQL needs no BEGIN and COMMIT for it, and no process that is
    frozen between two of them keeps others from the row.
    """
    return engine.execution_options(isolation_level="AUTOCOMMIT") if engine.dialect.name == "postgresql" else engine


def patiently(
    transaction: Callable[[], T], may_wait: Callable[[BaseException], bool], sleep: Callable[[float], None]
) -> T:
    """Run a transaction, and retry it after transient errors: after a lost race almost at once, a few times; after others
    with backoff, while `may_wait` allows it."""
    lost_races = 0
    delay = 0.02
    while True:
        try:
            return transaction()
        except Exception as error:
            kind = kind_of(error)
            if kind is ErrorKind.CONFLICT:
                lost_races += 1
                if lost_races > MOST_AGAIN:
                    raise
                pause = random.uniform(0.0, 0.05)
            elif kind in (ErrorKind.PASSING, ErrorKind.MOVED) and may_wait(error):
                pause = random.uniform(delay / 2, delay)
                delay = min(2 * delay, 2.0)
            else:
                raise
        sleep(pause)
