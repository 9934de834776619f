"""`run_job_loop` in its older form: one argument per column and status word, one batch per call.

    await run_job_loop(
        model=Page, status_field_name="curation_status", queued_status=Status.QUEUED, …,
        processing_function=curate_page, batch_size=10, error_field_name="curation_error", session_factory=sessions,
    )

Lets older programs migrate by changing only an import. Underneath is a `Loop`: claims are guarded, and each row's outcome
is a transaction of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import lru_cache
from typing import Any

from holdfast.adopt.connections import engine_of, makes_transactions
from holdfast.adopt.loop.counters import Counters
from holdfast.adopt.loop.job import with_session
from holdfast.adopt.loop.loop import Loop
from holdfast.adopt.table.mapping import TableMapping
from holdfast.errors import UsageError
from holdfast.model import functions
from holdfast.model.log_lines import logger

log = logger("holdfast.adopt")


def run_job_loop(
    *,
    model: Any,
    status_field_name: str,
    queued_status: Any,
    processing_status: Any,
    completed_status: Any,
    failed_status: Any,
    processing_function: Callable[..., Any],
    session_factory: Any,
    batch_size: int = 10,
    error_field_name: str | None = None,
) -> Counters | Coroutine[Any, Any, Counters]:
    """Claim one batch, call `processing_function(id, session)` for each row, and return when all calls have ended.

    Await the result if the function is async. `session_factory` is a sessionmaker, an async_sessionmaker, or any function
    that returns a session or a context manager around one.
    """
    _advise_once()
    mapping = _mapping(
        model, status_field_name, queued_status, processing_status, completed_status, failed_status, error_field_name
    )
    if functions.is_async(processing_function):
        return _run_async(mapping, processing_function, session_factory, batch_size)
    place = session_factory
    if not makes_transactions(place):
        opened = session_factory()
        if not hasattr(opened, "__enter__"):
            raise UsageError(f"{mapping}: the sessions are async, so the processing function must be an `async def`")
        with opened as session:
            place = engine_of(session, mapping)
    return _loop(place, mapping, processing_function, session_factory, batch_size).run(once=True, signals=False)


async def _run_async(mapping: TableMapping, function: Callable[..., Any], sessions: Any, batch: int) -> Counters:
    place = sessions
    if not makes_transactions(place):
        opened = sessions()
        if hasattr(opened, "__aenter__"):
            from sqlalchemy.ext.asyncio import AsyncEngine

            async with opened as session:
                place = AsyncEngine(engine_of(session.sync_session, mapping))
        else:
            with opened as session:
                place = engine_of(session, mapping)
    return await _loop(place, mapping, function, sessions, batch).run_async(once=True)


def _loop(place: Any, mapping: TableMapping, function: Callable[..., Any], sessions: Any, batch: int) -> Loop:
    handler = with_session(function, None if place is sessions else sessions)
    return Loop(place, mapping, handler, batch=batch, name=f"{mapping.name}.{mapping.columns['status'].name}")


@lru_cache(maxsize=100)
def _mapping(
    model: Any, status: str, queued: Any, processing: Any, completed: Any, failed: Any, error: Any
) -> TableMapping:
    """Cached: a mapping builds its statements once, and equal calls share it."""
    return TableMapping(
        model, status=status, queued=queued, processing=processing, completed=completed, failed=failed, error=error
    )


@lru_cache(maxsize=1)
def _advise_once() -> None:
    log.warning(
        "run_job_loop of holdfast.adopt.compat is deprecated, and only helps to migrate: use a TableMapping and a Loop, which "
        "also recover the rows of dead processes. The guide to your own tables has a table of old and new names"
    )
