"""A job: one claimed row, as the handler sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.orm import Session

from holdfast.adopt.connections import Place, check_user_code, unprepared
from holdfast.adopt.loop.transact import Effect
from holdfast.adopt.sqlalchemy_errors import MOST_AGAIN, kind_of
from holdfast.adopt.table.held_row import Held, lost
from holdfast.model import functions
from holdfast.store.database_errors import ErrorKind


class Job:
    """The handler's argument: the claimed row, and ways to write in the transaction that completes it."""

    def __init__(self, held: Held, place: Place, is_stopping: Callable[[], bool]) -> None:
        self.held = held
        self._place = place
        self._is_stopping = is_stopping
        self.effects: list[Effect] = []
        self.values: dict[str, Any] = {}
        #: The heartbeat found that the row is no longer held by this job: its outcome will not be saved.
        self.lost = False

    @property
    def key(self) -> Any:
        """The primary key: a value, or a tuple if it has several columns."""
        return self.held.key

    @property
    def row(self) -> Mapping[str, Any]:
        """The row right after the claim."""
        return self.held.row

    @property
    def attempt(self) -> int:
        return self.held.attempt

    @property
    def stopping(self) -> bool:
        """Whether the loop was asked to stop: return soon, or the row is handed back."""
        return self._is_stopping()

    def check(self) -> None:
        """Raise LeaseLost if the row is lost. Call it before an expensive operation."""
        if self.lost:
            raise lost([self.held], "nothing was saved")

    def effect(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        """Call this in the transaction that completes the row, with its Connection or Session as first argument.

        It is not called if the row is lost or the handler raises. It may be called again if the transaction is retried.
        """
        self.effects.append(Effect(function, arguments, named))

    def set(self, **values: Any) -> None:
        """Write these columns of the row when it is completed."""
        self.values.update(values)

    def session(self) -> Any:
        """A new Session for the handler, or an AsyncSession if the loop's engine is async. Use it in a `with` block."""
        place: Any = self._place
        if isinstance(place, Engine):
            session: Any = Session(place)
        elif hasattr(place, "sync_engine"):
            from sqlalchemy.ext.asyncio import AsyncSession

            session = AsyncSession(place)
        else:
            session = place()
        event.listen(getattr(session, "sync_session", session), "after_begin", lambda *begun: unprepared(begun[-1]))
        return session


def with_session(handler: Callable[..., Any], sessions: Callable[[], Any] | None = None) -> Callable[[Job], Any]:
    """Adapt a handler that takes the key and a session.

    The session is committed when the handler returns and rolled back when it raises. If the transaction loses a race
    inside the database, the handler is called again with a new session, a few times. The handler may set the row's status
    itself; a row that it sets back to queued waits like a retry. `sessions` opens the sessions instead of the loop's
    engine: a function that returns a session, or a context manager around one.
    """

    def opened(job: Job) -> Any:
        return job.session() if sessions is None else sessions()

    if functions.is_async(handler):

        @wraps(handler)
        async def call_async(job: Job) -> Any:
            for left in range(MOST_AGAIN, -1, -1):
                try:
                    place = opened(job)
                    if not hasattr(place, "__aenter__"):
                        with place as session:
                            answer = await handler(job.key, session)
                            _commit(session)
                            return answer
                    async with place as session:
                        answer = await handler(job.key, session)
                        await session.run_sync(_commit)
                        return answer
                except Exception as error:
                    if left == 0 or kind_of(error) is not ErrorKind.CONFLICT:
                        raise
            raise AssertionError

        call_async.gets_session = True  # type: ignore[attr-defined]
        return call_async

    @wraps(handler)
    def call(job: Job) -> Any:
        for left in range(MOST_AGAIN, -1, -1):
            try:
                with opened(job) as session:
                    answer = handler(job.key, session)
                    _commit(session)
                    return answer
            except Exception as error:
                if left == 0 or kind_of(error) is not ErrorKind.CONFLICT:
                    raise
        raise AssertionError

    call.gets_session = call.wants_sync_session = True  # type: ignore[attr-defined]
    return call


def _commit(session: Session) -> None:
    if session.in_transaction():
        check_user_code(session)
    session.commit()
