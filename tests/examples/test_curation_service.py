"""examples.curation in one process: five schedulers of different making on one loop, and what each row tells."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from examples.curation.fakes.fake_world import FakeWorld
from examples.curation.models import Business, Domain, Page, Place, Sitemap, Status
from examples.curation.service import Service
from examples.curation.settings import VARIABLES, Settings
from examples.curation.status import table, where_all_is
from holdfast.adopt import TableMapping, run_job_loop, with_session
from holdfast.errors import UsageError
from tests.examples.curation_scene import KINDS, QUICK, Scene, scene_on
from tests.support.processes import wait_for
from tests.support.slowness import slowness

README = (Path(__file__).resolve().parents[2] / "examples" / "curation" / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def scene(database: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    with scene_on(database, tmp_path, request) as scene:
        yield scene


@pytest.fixture
def troubled(database: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    """The world as it is."""
    with scene_on(database, tmp_path, request, FakeWorld()) as scene:
        scene.add_places()
        yield scene


class Running:
    """The service on an event loop, while a test looks at it from another thread; stopped when the test is done."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def __aenter__(self) -> Service:
        self._task = asyncio.create_task(self.service.run())
        return self.service

    async def __aexit__(self, *_: object) -> None:
        for loop in self.service.loops:
            loop.stop()
        await asyncio.wait_for(self._task, 30)


def while_running(service: Service, test: Any) -> None:
    """Run a test in a thread beside the service."""

    async def main() -> None:
        async with Running(service):
            await asyncio.to_thread(test)

    asyncio.run(main())


# All five -------------------------------------------------------------------------------------------------------------


@pytest.mark.req("S1", "S3", "S5", "S6", "S7")
def test_five_schedulers_share_the_loop_and_find_all_there_is(troubled: Scene, caplog: pytest.LogCaptureFixture):
    """Two engines, five kinds of status column, handlers that await and that block, old style and new."""
    caplog.set_level(logging.INFO, "holdfast.adopt")
    counters = troubled.run()
    troubled.judge()
    assert stored_words(troubled) == [
        {"COMPLETED", "ERROR"},
        {"Completed", "Error"},
        {"Completed", "Error"},
        {"Completed", "Error"},
        {"Completed", None},
    ]
    for name, one in counters.items():
        words = troubled.words(name)
        assert (one.completed, one.failed) == (words.count("completed"), words.count("failed")), name
        assert one.claimed == one.completed + one.failed + one.retried + one.released, name
        assert (one.lost, one.refused, one.recovered) == (0, 0, 0), name
        assert f"{name} " in caplog.text and f"completed {one.completed}" in str(one)
    world = troubled.world
    asked = [troubled.site.asked[world.listing(place)] for place in range(1, world.places + 1)]
    assert asked == [world.lookups(place, QUICK.attempts) for place in range(1, world.places + 1)]


def stored_words(scene: Scene) -> list[set[str | None]]:
    """What stands in the five status columns: names of an enumeration, its values, plain texts, and nothing at all."""
    columns = [(one.mapping.name, one.status.name) for one in scene.schedulers.values()]
    with scene.engine.connect() as connection:
        return [set(connection.exec_driver_sql(f"SELECT {name} FROM {place}").scalars()) for place, name in columns]


@pytest.mark.req("S6")
@pytest.mark.parametrize("colour", ["async", "sync"])
def test_one_scheduler_alone_is_one_call_with_an_id_and_a_session(scene: Scene, colour: str):
    """As every one of them was started before there was a service."""
    scene.add("page curation", 7)
    service = scene.service()
    seen: list[int] = []

    async def curate_later(page_id: int, session: Any) -> None:
        (await session.get_one(Page, page_id)).title = "later"
        seen.append(page_id)

    def curate(page_id: int, session: Any) -> None:
        session.get_one(Page, page_id).title = "now"
        seen.append(page_id)

    words = {
        "status": "curation_status",
        "queued": "Queued",
        "processing": "Processing",
        "completed": "Completed",
        "failed": "Error",
        "error": "curation_error",
    }

    async def main() -> Any:
        at, handler = (service.tasks, curate_later) if colour == "async" else (service.threads, curate)
        try:
            return await run_job_loop(at, Page, with_session(handler), **words, batch=3, poll="50ms", drain=True)
        finally:
            await service.tasks.dispose()
            service.threads.dispose()

    assert asyncio.run(main()).completed == 7
    assert sorted(seen) == list(range(1, 8))
    assert set(scene.execute(sa.select(Page.title)).scalars()) == {"later" if colour == "async" else "now"}
    assert scene.counts("page curation") == {"completed": 7}


@pytest.mark.req("S6")
def test_a_scheduler_of_the_service_can_be_started_alone(scene: Scene):
    scene.add("deep scan", 5)
    assert scene.service("deep scan").run_one(drain=True).completed == 5
    assert scene.counts("domain extraction") == {"queued": 5}


# Rows that go wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.req("S3", "S5")
def test_one_bad_row_does_not_spoil_its_batch(troubled: Scene):
    """Of one batch of twenty: one whose listing is no JSON, one that never answers well, and eighteen good ones."""
    counters = troubled.run("deep scan", batch=20)["deep scan"]
    assert [n for n, word in enumerate(troubled.words("deep scan"), 1) if word == "failed"] == [8, 14]
    errors = troubled.column("deep scan", "error")
    assert "places/8.json: not JSON" in errors[7] and "places/14.json: the site answered 500" in errors[13]
    assert [error for n, error in enumerate(errors, 1) if n not in (8, 14)] == [None] * 18
    attempts = troubled.column("deep scan", "attempts")
    # Never good, twice; bad for ever, once; asked to come again, not counted; refused at first, one more.
    assert {n: attempts[n - 1] for n in (14, 8, 3, 6, 1)} == {14: QUICK.attempts, 8: 1, 3: 1, 6: 2, 1: 1}
    assert (counters.completed, counters.failed, counters.retried) == (18, 2, 2 + 3)
    # On a busy machine rows that waited behind slow ones are handed back, too.
    assert counters.released >= 2


@pytest.mark.req("S3")
def test_what_a_bad_row_wrote_before_it_failed_is_rolled_back(scene: Scene):
    """A handler in the older style has one session; what it did in it happens with all the rest, or not at all."""
    scene.add("page curation", 6)
    mapping: TableMapping = scene.schedulers["page curation"].mapping

    def curate(page_id: int, session: Any) -> None:
        session.add(Domain(name=f"of-page-{page_id}.example"))
        session.flush()
        if page_id == 3:
            session.add(Domain(name="of-page-1.example"))  # there is one already
            session.flush()
        if page_id == 5:
            raise ValueError("page 5")

    counters: Any = run_job_loop(scene.engine, mapping, with_session(curate), retry=None, batch=6, drain=True)
    assert scene.words("page curation") == ["completed", "completed", "failed", "completed", "failed", "completed"]
    errors = scene.column("page curation", "error")
    assert "unique" in errors[2].lower() and errors[4] == "ValueError: page 5"
    names = set(scene.execute(sa.select(Domain.name)).scalars())
    assert names == {"calm.example", *(f"of-page-{n}.example" for n in (1, 2, 4, 6))}
    assert (counters.completed, counters.failed) == (4, 2)


@pytest.mark.req("S5")
def test_an_error_is_cut_to_what_its_column_holds_and_gone_when_the_row_is_done(scene: Scene):
    scene.add("deep scan", 2)
    long = "http://" + "x" * 400
    rows = [{"place_id": n, "name": "x", "website": url} for n, url in ((1, long), (2, "calm.example"))]
    scene.execute(sa.insert(Business).values(rows))
    scene.execute(sa.update(Business).values(extraction_error="from before"))
    scene.run("domain extraction")
    errors = scene.column("domain extraction", "error")
    assert errors[0].startswith("Permanent: 'http://xxx") and len(errors[0]) == 200
    assert errors[1] is None
    assert scene.words("domain extraction") == ["failed", "completed"]


@pytest.mark.req("S5")
@pytest.mark.parametrize("name", ["deep scan", "domain extraction", "sitemap import", "page curation", "page service"])
def test_whatever_columns_tell_of_its_age_a_stale_row_comes_back(scene: Scene, name: str):
    """By a heartbeat, by when it was started, by when it was updated: each of the five has something."""
    fill(scene)
    mapping = scene.schedulers[name].mapping
    old = datetime.now(UTC) - timedelta(hours=1)
    times = {mapping.columns[role].name: old for role in ("heartbeat", "started", "updated") if role in mapping.columns}
    assert times
    processing = {mapping.columns["status"].name: mapping.words["processing"], mapping.columns["attempts"].name: 1}
    scene.execute(sa.update(mapping.table).values(**processing, **times))
    if name == "page service":
        scene.execute(sa.update(Page).values(curation_status="Completed"))
    counters = scene.run(name)[name]
    assert (counters.recovered, counters.completed) == (1, 1)
    assert scene.words(name) == ["completed"]
    assert scene.column(name, "attempts") == [2]


def fill(scene: Scene) -> None:
    """One row in every table."""
    scene.add("deep scan", 1)
    scene.add("page curation", 1)  # and its domain, the first one
    scene.execute(sa.insert(Business).values(place_id=1, name="x", website="http://calm.example"))
    scene.execute(sa.insert(Sitemap).values(domain_id=1, url="http://calm.example/sitemap.xml"))


# Settings, logs, counters ---------------------------------------------------------------------------------------------


@pytest.mark.req("S4")
def test_batch_order_and_filter_are_settings(scene: Scene):
    scene.add("deep scan", 12)
    scene.execute(sa.update(Place).where(Place.id.in_([5, 6, 7, 8])).values(city="Whitby"))
    scene.execute(sa.update(Place).where(Place.id == 7).values(priority=9))
    scene.site.pause()

    def test() -> None:
        wait_for(lambda: scene.counts("deep scan") == {"processing": 3, "queued": 9})
        assert [n for n, word in enumerate(scene.words("deep scan"), 1) if word == "processing"] == [5, 6, 7]
        scene.site.go_on()
        wait_for(lambda: scene.counts("deep scan") == {"completed": 4, "queued": 8})

    while_running(scene.service("deep scan", batch=3, concurrency=1, city="Whitby"), test)
    assert [n for n, asked in enumerate(scene.asked("deep scan", 12), 1) if asked] == [5, 6, 7, 8]
    assert next(iter(scene.site.asked)) == scene.world.listing(7)


@pytest.mark.req("S4")
def test_every_setting_is_a_variable_and_reaches_the_loops(tmp_path: Path):
    given = {
        "BATCH": "7",
        "CONCURRENCY": "2",
        "POLL": "90s",
        "MAX_INSTANCES": "3",
        "STALE": "45s",
        "GRACE": "1m",
        "REPORT": "5m",
        "GUARDED": "off",
        "ATTEMPTS": "9",
        "DATABASE": f"sqlite:///{tmp_path}/x.db",
    }
    service = Service(Settings.read({f"CURATION_{name}": value for name, value in given.items()}))
    assert {name.removeprefix("CURATION") for name in VARIABLES.values()} == set(re.findall(r"(_[A-Z_]+)`", README))
    for loop in service.loops:
        found = (
            loop.batch,
            loop.concurrency,
            loop.poll_seconds,
            loop.max_instances,
            loop.stale_seconds,
            loop.grace_seconds,
            loop.report_seconds,
            loop.guarded,
            loop.mapping.limit,
        )
        assert found == (7, 2, 90.0, 3, 45.0, 60.0, 300.0, False, 9)


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("CURATION_BATCH", "many", "CURATION_BATCH='many'"),
        ("CURATION_GUARDED", "maybe", "write on or off"),
        ("CURATION_BATCH", "0", "batch=0 must be a number from 1"),
        ("CURATION_STALE", "soon", "stale_after"),
        ("CURATION_DATABASE", "oracle://x", "none of sqlite, postgresql"),
    ],
)
def test_a_setting_that_cannot_work_is_told(variable: str, value: str, said: str):
    with pytest.raises(UsageError, match=said):
        Service(Settings.read({variable: value}))


def test_a_scheduler_that_there_is_not_is_told():
    with pytest.raises(UsageError, match="'deep scans' is none of: deep scan, "):
        Service(Settings(), ["deep scans"])


@pytest.mark.req("S7")
@pytest.mark.parametrize("kind", KINDS)
def test_each_loop_logs_what_it_does_and_how_far_it_lags(scene: Scene, kind: str, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "holdfast.adopt")
    scene.add(kind, 15, created_at=datetime.now(UTC) - timedelta(minutes=5))
    scene.site.pause()
    service = scene.service(kind, report="50ms")
    [loop] = service.loops

    def test() -> None:
        wait_for(lambda: loop.counters.waiting == 5)
        assert 299 < (loop.counters.lag_seconds or 0) < 300 + 100 * slowness()
        [shown] = where_all_is(scene.engine, service.schedulers)
        assert (shown.waiting, shown.counts["processing"], shown.open) == (5, 10, 15)
        assert 299 < (shown.lag_seconds or 0) < 300 + 100 * slowness()
        scene.site.go_on()
        wait_for(lambda: loop.counters.completed == 15)
        wait_for(lambda: loop.counters.waiting == 0)

    while_running(service, test)
    assert f"{loop.name}: claimed 10" in caplog.text and f"{loop.name}: claimed 5" in caplog.text
    assert "waiting 5, lag seconds 3" in caplog.text
    assert loop.counters.as_dict()["claimed"] == 15


@pytest.mark.req("S7")
def test_the_table_for_people_shows_words_lag_and_errors(scene: Scene):
    scene.add("deep scan", 20, created_at=datetime.now(UTC) - timedelta(seconds=90))
    error = {"deep_scan_status": Status.ERROR, "deep_scan_error": "Permanent: closed"}
    scene.execute(sa.update(Place).where(Place.id <= 2).values(error))
    scene.execute(sa.update(Place).where(Place.id > 13).values(deep_scan_status=Status.COMPLETED))
    shown = table(where_all_is(scene.engine, list(scene.schedulers.values()))).splitlines()
    [line] = [line.split() for line in shown if line.startswith("deep scan")]
    assert line[:6] == ["deep", "scan", "11", "0", "7", "2"] and 90 <= int(line[6]) < 200
    assert "    row 1: Permanent: closed" in shown


def test_if_one_loop_breaks_the_service_ends_with_its_error(scene: Scene):
    """Nobody goes on half dead: not one of five schedulers, and not a service that looks alive."""
    scene.add("deep scan", 1)
    with scene.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE pages RENAME COLUMN service_attempts TO tries")
    with pytest.raises(Exception, match="service_attempts"):
        scene.run()


def test_two_businesses_with_one_web_site_find_it_once(scene: Scene):
    scene.add("deep scan", 2)
    sites = ("http://www.Old-Mill.example/", "old-mill.example:80/x?y")
    rows = [{"place_id": n, "name": "x", "website": site} for n, site in enumerate(sites, 1)]
    scene.execute(sa.insert(Business).values(rows))
    scene.run("domain extraction")
    [domain] = scene.execute(sa.select(Domain.id, Domain.name)).all()
    assert domain.name == "old-mill.example"
    assert list(scene.execute(sa.select(Sitemap.url)).scalars()) == ["http://old-mill.example/sitemap.xml"]
    found = scene.execute(sa.select(Business.domain_id, Business.extraction_status)).all()
    assert found == [(domain.id, Status.COMPLETED)] * 2
