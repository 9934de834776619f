"""The service: five schedulers, one loop, one event loop; in as many processes as are started.

    service = Service(Settings.read())
    asyncio.run(service.run())

SIGTERM and SIGINT end it: handlers in hand finish within the grace, all else is handed back. If one of the loops breaks,
the others are stopped, and its error is raised: nobody goes on half dead.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker

from examples.curation.deep_scan import deep_scan
from examples.curation.domain_extraction import domain_extraction
from examples.curation.engines import async_engine, sync_engine
from examples.curation.models import Base
from examples.curation.page_curation import page_curation
from examples.curation.page_service import page_service
from examples.curation.scheduler import Scheduler
from examples.curation.settings import Settings
from examples.curation.sitemap_import import sitemap_import
from examples.curation.web import Web
from holdfast import UsageError
from holdfast.adopt import Counters, Loop, run_job_loop

log = logging.getLogger("examples.curation")

#: How often a service that is to end when all is done looks whether it is.
LOOK_SECONDS = 0.1


class Service:
    """The schedulers, their engines, and their loops."""

    def __init__(self, settings: Settings, only: Sequence[str] = ()) -> None:
        self.settings = settings
        self.threads: Engine = sync_engine(settings.database)
        self.tasks: AsyncEngine = async_engine(settings.database)
        every = schedulers(settings, Web(settings.via, settings.timeout))
        unknown = [name for name in only if name not in {one.name for one in every}]
        if unknown:
            raise UsageError(f"{unknown[0]!r} is none of: {', '.join(one.name for one in every)}")
        self.schedulers = [one for one in every if not only or one.name in only]
        self.loops = [
            Loop(self._at(one), one.mapping, one.handler, **one.settings(settings)) for one in self.schedulers
        ]

    def _at(self, scheduler: Scheduler) -> Any:
        # Sessions for those that await: what their effects write may use the models.
        return async_sessionmaker(self.tasks) if scheduler.is_async else self.threads

    async def run(self, *, until_done: bool = False) -> dict[str, Counters]:
        """Work until stopped, or until no row of any scheduler is queued or processing; returns the counters."""
        # Every request to a site takes one of these while it lasts.
        most = len(self.loops) * self.settings.concurrency
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(most, thread_name_prefix="curation"))
        watch = [self._stop_when_done()] if until_done else []
        try:
            with _stopping_on_signals(self.loops):
                ended = await asyncio.gather(*map(self._run, self.loops), *watch, return_exceptions=True)
        finally:
            self.threads.dispose()
            await self.tasks.dispose()
        for error in ended:
            if isinstance(error, BaseException):
                raise error
        return {one.name: loop.counters for one, loop in zip(self.schedulers, self.loops, strict=True)}

    async def _run(self, loop: Loop) -> None:
        try:
            await loop.run_async()
        finally:
            self._stop_those_that_run()
        log.info("%s: %s", loop.name, loop.counters)

    def run_one(self, **settings: Any) -> Any:
        """One scheduler alone, in the single call that each of them used to be started with."""
        [only] = self.schedulers
        return run_job_loop(self._at(only), only.mapping, only.handler, **{**only.settings(self.settings), **settings})

    async def _stop_when_done(self) -> None:
        left = 1
        while left and not any(one.stopping for one in self.loops):
            await asyncio.sleep(LOOK_SECONDS)
            try:
                async with self.tasks.connect() as connection:
                    left = await connection.scalar(self._open_rows())
            except sa.exc.DBAPIError as error:
                log.warning("whether all is done cannot be seen, and is looked at again: %s", error.orig)
        self._stop_those_that_run()

    def _open_rows(self) -> sa.Select[Any]:
        """How many rows are queued or processing, of all schedulers, as of one instant."""
        counts = [
            sa.select(sa.func.count())
            .select_from(one.mapping.table)
            .where(one.status.in_([one.mapping.words["queued"], one.mapping.words["processing"]]))
            .scalar_subquery()
            for one in self.schedulers
        ]
        return sa.select(sum(counts, sa.literal(0)))

    def _stop_those_that_run(self) -> None:
        for one in self.loops:
            if not one.stopping:
                one.stop()


def loops() -> list[Loop]:
    """The five loops, for `holdfast check examples.curation.service:loops`; nothing is connected to."""
    return Service(Settings.read()).loops


def schedulers(settings: Settings, web: Web) -> list[Scheduler]:
    """The five, in the order in which rows come by them."""
    return [
        deep_scan(settings, web),
        domain_extraction(settings, web),
        sitemap_import(settings, web),
        page_curation(settings, web),
        page_service(settings),
    ]


def create_tables(database: str) -> None:
    engine = sync_engine(database)
    Base.metadata.create_all(engine)
    engine.dispose()


@contextmanager
def _stopping_on_signals(loops: Sequence[Loop]) -> Iterator[None]:
    """The first one asks all loops to stop; the second tells them to hurry."""

    def stop() -> None:
        for one in loops:
            one.stop()

    events = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        events.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            events.remove_signal_handler(number)
