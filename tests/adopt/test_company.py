"""Loops beside each other in one process, and handlers of the older style that do not fit: nothing hangs, nothing is lost."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from holdfast.adopt import Job, Loop, TableMapping, with_session
from holdfast.adopt.loop.loop import run_together
from holdfast.errors import UsageError
from tests.adopt.places import async_url
from tests.adopt.tables import Jobs


@pytest.mark.req("S6")
def test_several_async_loops_on_one_engine_work_together(url: str, jobs: Jobs):
    jobs.add(30)
    shared = create_async_engine(async_url(url))
    seen: list[int] = []

    async def work(job: Job) -> None:
        await asyncio.sleep(0)
        seen.append(job.key)

    def note(job: Job) -> None:
        seen.append(job.key)

    places = [(shared, work), (shared, work), (jobs.engine, note)]
    run_together(
        [
            Loop(at, jobs.mapping, handler, name=f"loop {n}", where=jobs.table.c.id % 3 == n)
            for n, (at, handler) in enumerate(places)
        ],
        drain=True,
    )
    assert sorted(seen) == list(range(1, 31))
    assert jobs.statuses() == {"completed": 30}


@pytest.mark.req("S6")
def test_loops_that_are_awaited_leave_the_threads_of_the_event_loop_to_others(jobs: Jobs):
    """There are only as many as a machine has cores, and a few; a loop keeps one for as long as it runs."""
    many = 12
    jobs.add(many)
    begun: set[int] = set()
    last: list[Loop] = []

    def work(job: Job) -> None:
        begun.add(job.key)
        if len(begun) == many:
            for one in last:
                one.stop()

    async def main() -> int:
        last.extend(
            Loop(jobs.engine, jobs.mapping, work, name=f"loop {n}", where=jobs.table.c.id == n + 1) for n in range(many)
        )
        running = [asyncio.ensure_future(one.run_async()) for one in last]
        answer = await asyncio.wait_for(asyncio.to_thread(lambda: 7), 30)
        await asyncio.wait_for(asyncio.gather(*running), 60)
        return answer

    assert asyncio.run(main()) == 7
    assert jobs.statuses() == {"completed": many}


def test_a_sync_handler_that_wants_a_session_is_refused_by_a_loop_on_an_async_engine(url: str, jobs: Jobs):
    with pytest.raises(UsageError, match="must be an `async def`"):
        Loop(create_async_engine(async_url(url)), jobs.mapping, with_session(lambda key, session: None))


class Base(DeclarativeBase):
    pass


class Counted(Base):
    __tablename__ = "counted"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="queued")
    note: Mapped[str | None]
    version: Mapped[int] = mapped_column(default=1)
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012


@pytest.mark.req("F5", "S6")
@pytest.mark.parametrize("word", ["completed", "failed"])
def test_a_handler_may_set_the_status_of_a_row_whose_version_its_model_counts(engine: Engine, word: str, caplog: Any):
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add(Counted())

    def work(key: int, session: Session) -> None:
        row = session.get(Counted, key)
        assert row is not None
        row.status = word

    with caplog.at_level(logging.WARNING, "holdfast.adopt"):
        loop = Loop(engine, TableMapping(Counted, version="version"), with_session(work))
        counters = loop.run(drain=True)
    assert (getattr(counters, word), counters.lost) == (1, 0)
    assert "map a holder column" in caplog.text
    with Session(engine) as session:
        assert session.get_one(Counted, 1).status == word
