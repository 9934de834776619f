"""The loop as older programs call it: their names, their sessions, one batch per call."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker

from holdfast.adopt import Loop, claim, compat
from holdfast.errors import UsageError
from tests.adopt import older_service as older
from tests.adopt.older_service import BATCH, COLUMNS, Base, Domain, Page, Place, Service, SitemapFile
from tests.adopt.tables import Jobs
from tests.support.mother import Forked
from tests.support.processes import STUCK_SECONDS

ROWS = 30
THEIRS = {
    "model",
    "status_field_name",
    "queued_status",
    "processing_status",
    "completed_status",
    "failed_status",
    "processing_function",
    "batch_size",
    "error_field_name",
    "session_factory",
}


@pytest.fixture
def service(url: str, engine: Engine, tmp_path: Path) -> Service:
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        for model in (Place, Domain, SitemapFile, Page):
            session.add_all([model(name="bad" if n % 10 == 0 else f"row {n}") for n in range(1, ROWS + 1)])
        session.commit()
    return Service(url, tmp_path / "calls")


def standing(engine: Engine) -> dict[str, Counter[str]]:
    with engine.connect() as connection:
        return {
            name: Counter(str(getattr(one, "value", one)) for one in connection.execute(sa.select(status)).scalars())
            for name, (status, _) in COLUMNS.items()
        }


@pytest.mark.req("S1", "S2", "S3", "S7")
def test_five_older_schedulers_in_two_processes_process_every_row_once(
    service: Service, engine: Engine, url: str, tmp_path: Path
):
    """Nothing of theirs was changed but an import."""
    said = tmp_path / "said"
    with said.open("wb") as file:
        arguments = ["--url", url, "--calls", str(tmp_path / "calls")]
        both = [Forked("tests.adopt.older_service", arguments, os.environ, stdout=file) for _ in range(2)]
    assert [one.wait(STUCK_SECONDS) for one in both] == [0, 0], said.read_text()
    bad = ROWS // 10
    assert standing(engine) == {key: Counter(Completed=ROWS - bad, Error=bad) for key in COLUMNS}
    calls = Counter(line.rpartition(" ")[0] for line in (tmp_path / "calls").read_text().splitlines())
    assert calls == {f"{name} {n}": 1 for name in COLUMNS for n in range(1, ROWS + 1)}
    with engine.connect() as connection:
        for status, error in COLUMNS.values():
            failed = "Error" if status is SitemapFile.status else older.Status.ERROR
            assert set(connection.execute(sa.select(error).where(status == failed)).scalars()) == {
                f"ValueError: no answer for {n}" for n in (10, 20, 30)
            }
        titles = connection.execute(sa.select(sa.func.count(Page.title))).scalar_one()
    assert titles == ROWS - bad, "what a failed handler wrote was rolled back"
    assert said.read_text().count("is deprecated") == 2, "once per process"


@pytest.mark.req("S1", "S4")
def test_a_call_works_off_one_batch_and_returns(service: Service, engine: Engine):
    async def tick() -> None:
        await service.tick()
        await service.tasks.dispose()

    asyncio.run(tick())
    assert standing(engine) == {key: Counter(Completed=BATCH, Queued=ROWS - BATCH) for key in COLUMNS}


@pytest.mark.req("S1")
def test_it_takes_the_names_of_older_programs_and_no_others():
    assert inspect.signature(compat.run_job_loop).parameters.keys() == THEIRS


@pytest.mark.req("S1", "S7")
def test_it_says_once_that_it_is_there_to_come_over_with(service: Service, caplog: pytest.LogCaptureFixture):
    compat._advise_once.cache_clear()
    with caplog.at_level(logging.WARNING, "holdfast.adopt"):
        for _ in range(3):
            service.sitemap_import_tick()
    assert sum("is deprecated" in line for line in caplog.messages) == 1


@pytest.mark.req("S1")
def test_a_function_that_cannot_use_the_sessions_is_refused(service: Service):
    words: Any = {
        "model": SitemapFile,
        "status_field_name": "status",
        "queued_status": "Queued",
        "processing_status": "Processing",
        "completed_status": "Completed",
        "failed_status": "Error",
        "processing_function": service.import_sitemap,
    }
    for sessions in (service.async_sessions, service.get_background_session):
        with pytest.raises(UsageError, match="async"):
            compat.run_job_loop(**words, session_factory=sessions)


# A loop that runs once ------------------------------------------------------------------------------------------------


@pytest.mark.req("S4")
@pytest.mark.parametrize("is_async", [False, True])
def test_a_loop_that_runs_once_ends_after_one_batch_or_when_there_is_none(jobs: Jobs, is_async: bool):
    async def later(job: Any) -> None:
        await asyncio.sleep(0)

    jobs.add(7)
    loop = Loop(jobs.engine, jobs.mapping, later if is_async else lambda job: None, batch=3, concurrency=2)
    claimed = [loop.run(once=True).claimed for _ in range(4)]
    assert claimed == [3, 6, 7, 7]
    assert jobs.statuses() == {"completed": 7}


@pytest.mark.req("S4", "S5")
def test_a_loop_that_runs_once_takes_a_row_on_its_last_attempt_alone(engine: Engine):
    jobs = Jobs(engine, max_attempts=2)
    jobs.add(2, {"attempts": 1}, {"attempts": 1})
    loop = Loop(engine, jobs.mapping, lambda job: None, batch=3)
    assert [loop.run(once=True).claimed for _ in range(4)] == [2, 3, 4, 4]


@pytest.mark.req("S5")
def test_a_loop_that_runs_once_brings_back_what_is_stale_first(jobs: Jobs):
    from datetime import UTC, datetime

    jobs.add(1)
    claim(jobs.engine, jobs.mapping, now=datetime(2024, 5, 1, tzinfo=UTC))
    counters = Loop(sessionmaker(jobs.engine), jobs.mapping, lambda job: None).run(once=True)
    assert (counters.recovered, counters.completed) == (1, 1)
