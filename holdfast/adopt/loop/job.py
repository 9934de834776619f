"""A job: one claimed row in the hands of a handler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import Engine, event
from sqlalchemy.orm import Session, sessionmaker

from holdfast.adopt.connections import check_user_code
from holdfast.adopt.database_errors import MOST_AGAIN, kind_of
from holdfast.adopt.loop.steps import Effect
from holdfast.adopt.pooler import unprepared
from holdfast.adopt.table.held_row import Held, lost
from holdfast.model import functions
from holdfast.store.database_errors import ErrorKind

if TYPE_CHECKING:
    from holdfast.adopt.connections import Place


class Job:
    """What a handler gets: the row as it was claimed, and ways to write together with its completion."""

    def __init__(self, held: Held, place: Place, is_stopping: Callable[[], bool]) -> None:
        self.held = held
        self._place = place
        self._is_stopping = is_stopping
        self.effects: list[Effect] = []
        self.values: dict[str, Any] = {}
        #: The heartbeat found that the row is no longer this job's; whatever it still does will not be saved.
        self.lost = False

    @property
    def key(self) -> Any:
        """The primary key: a value, or a tuple where it has several columns."""
        return self.held.key

    @property
    def row(self) -> Mapping[str, Any]:
        """The row as it was right after the claim."""
        return self.held.row

    @property
    def attempt(self) -> int:
        return self.held.attempt

    @property
    def stopping(self) -> bool:
        """The loop was asked to stop: come to an end soon, or be handed back."""
        return self._is_stopping()

    def check(self) -> None:
        """Raise LeaseLost if the row is lost; for handlers that are about to do something dear."""
        if self.lost:
            raise lost([self.held], "nothing was saved")

    def effect(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        """Call this in the transaction that completes the row, with its Connection or Session first; not at all if the row
        is lost or the handler raises. It may run again if that transaction loses a race."""
        self.effects.append(Effect(function, arguments, named))

    def set(self, **values: Any) -> None:
        """Write these columns of the row when it is completed."""
        self.values.update(values)

    def session(self) -> Any:
        """A Session of the handler's own, or an AsyncSession if the loop's engine is async; for use with `with`."""
        session = self._session()
        event.listen(getattr(session, "sync_session", session), "after_begin", lambda *begun: unprepared(begun[-1]))
        return session

    def _session(self) -> Any:
        if isinstance(self._place, Engine):
            return Session(self._place)
        if isinstance(self._place, sessionmaker) or not hasattr(self._place, "sync_engine"):
            return cast(Any, self._place)()
        from sqlalchemy.ext.asyncio import AsyncSession

        return AsyncSession(cast(Any, self._place))


def with_session(handler: Callable[..., Any], sessions: Callable[[], Any] | None = None) -> Callable[[Job], Any]:
    """Let a handler in the older style, called with the key and a session, serve a loop.

    The session is committed when the handler returns and rolled back when it raises. A transaction that lost a race
    inside the database is begun again with a new session, a few times. A handler that sets the row's status itself may go
    on doing so; one that sets it back to queued lets it wait like a retry. `sessions` opens the sessions, where the loop's
    own engine is not to: a function that returns one, or a context manager around one.
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
