"""The show: three processes of the service on one database, one of them killed while it holds rows."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from examples.curation.engines import sync_engine
from examples.curation.fakes.fake_web import FakeWeb, serving_fake_web
from examples.curation.fakes.fake_world import FakeWorld
from examples.curation.models import Place, Status
from examples.curation.service import Service, create_tables
from examples.curation.settings import Settings
from examples.curation.status import table, where_all_is
from holdfast import UsageError

ROOT = Path(__file__).resolve().parents[2]
#: Longer than any run of it.
PATIENCE_SECONDS = 180.0


def demo(database: str | None, places: int = 20, processes: int = 3) -> None:
    world = FakeWorld(places=places, sites=12)
    with tempfile.TemporaryDirectory(prefix="curation-") as folder, serving_fake_web(world, delay_seconds=0.1) as web:
        url = database or f"sqlite:///{folder}/curation.db"
        print(f"{world.places} places, on {url}; their sites are answered by http://{web.place}")
        add_places(url, world)
        _run(url, web, processes)
        shown = Service(Settings(database=url))
        found = where_all_is(shown.threads, shown.schedulers)
        shown.threads.dispose()
    print(f"\n{table(found)}\n")
    numbers = range(1, world.places + 1)
    asked = sum(web.asked[world.listing(place)] for place in numbers)
    needed = sum(world.lookups(place, Settings().attempts) for place in numbers)
    print(
        f"Listings were looked up {asked} times; without the kill it is {needed}, with those that the site refuses at first."
    )
    left = sum(one.open for one in found)
    print("Nothing is left queued or processing." if not left else f"{left} rows are left: this is a bug.")
    if left:
        raise SystemExit(1)


def add_places(database: str, world: FakeWorld) -> None:
    """Make the tables, and queue the world's places; only in an empty database."""
    create_tables(database)
    engine = sync_engine(database)
    try:
        with engine.begin() as connection:
            if connection.scalar(sa.select(sa.func.count()).select_from(Place)):
                raise UsageError(f"{database}: there are places already; name an empty database")
            connection.execute(sa.insert(Place), list(world.rows()))
    finally:
        engine.dispose()


def _run(url: str, web: FakeWeb, count: int) -> None:
    """Run the service until all is done."""
    engine = sync_engine(url)
    web.pause()
    with _processes(url, web, count) as running:
        print(f"{count} processes: {', '.join(str(one.pid) for one in running)}")
        victim, held = _wait_until_one_holds(engine, running)
        victim.kill()
        victim.wait()
        print(f"kill -9 {victim.pid}, which held {held} places; they come back when they have been silent for 3 s")
        web.go_on()
        codes = [one.wait(PATIENCE_SECONDS) for one in running if one is not victim]
    engine.dispose()
    if any(codes):
        raise SystemExit(f"a process ended with {codes}")


@contextmanager
def _processes(url: str, web: FakeWeb, count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "CURATION_DATABASE": url,
        "CURATION_VIA": web.place,
        "CURATION_STALE": "3s",
        "CURATION_POLL": "200ms",
        "CURATION_FIRST_PAUSE": "0.2",
        "CURATION_BATCH": "5",
        "CURATION_CONCURRENCY": "2",
    }
    command = [sys.executable, "-m", "examples.curation", "run", "--until-done", "--quiet"]
    running = [subprocess.Popen(command, env=environment) for _ in range(count)]
    try:
        yield running
    finally:
        for one in running:
            if one.poll() is None:
                one.kill()
            one.wait()


def _wait_until_one_holds(
    engine: sa.Engine, running: list[subprocess.Popen[bytes]]
) -> tuple[subprocess.Popen[bytes], int]:
    """The first process that holds places, and how many. Its number is in the name of its loop, with which the token of
    every claim begins."""
    holders = sa.select(Place.deep_scan_by).where(Place.deep_scan_status == Status.PROCESSING)
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < give_up_at and all(one.poll() is None for one in running):
        with engine.connect() as connection:
            tokens = [str(token) for token in connection.scalars(holders)]
        for one in running:
            if held := sum(token.startswith(f"deep scan {one.pid}-") for token in tokens):
                return one, held
        time.sleep(0.02)
    raise SystemExit("no process has claimed anything; is the database writable?")
