"""A database, the web sites, and the service: what the tests of examples.curation play on.

with scene_on(database, tmp_path, request) as scene:
    scene.add("deep scan", 20)
    scene.run("deep scan")
    assert scene.words("deep scan") == ["completed"] * 20
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from examples.curation.engines import sync_engine
from examples.curation.fakes.fake_web import FakeWeb, serving_fake_web
from examples.curation.fakes.fake_world import SCHEMA, FakeAnswer, FakeWorld
from examples.curation.models import Base, Contact, Domain, Page, Place
from examples.curation.service import Service, schedulers
from examples.curation.settings import Settings
from examples.curation.web import Web
from holdfast.adopt import Counters
from tests.support.schemas import bare_schema

#: One scheduler with an async engine, and one with threads; both ask a site once for each of their rows.
KINDS = ("deep scan", "page curation")
QUICK = Settings(poll="50ms", first_pause=0.02, stale="60s", grace="5s", timeout=60.0)


class Calm(FakeWorld):
    """A world without trouble: every listing and every page is there, at once."""

    def answer(self, url: str, nth: int) -> FakeAnswer:
        if "/places/" in url:
            return FakeAnswer(200, json.dumps({"name": url, "website": "http://calm.example"}).encode())
        if url.endswith(".xml"):
            entries = "".join(f"<url><loc>http://calm.example/page/{page}</loc></url>" for page in range(1, 4))
            return FakeAnswer(200, f'<urlset xmlns="{SCHEMA}">{entries}</urlset>'.encode())
        return FakeAnswer(200, f"<title>A page</title>Visit us, contact desk@calm.example: {url}".encode())


class Scene:
    def __init__(self, database: str, site: FakeWeb, folder: Path) -> None:
        self.site, self.world, self.folder = site, site.world, folder
        self.settings = replace(QUICK, database=database, via=site.place)
        self.engine = sync_engine(database)
        Base.metadata.create_all(self.engine)
        self.schedulers = {one.name: one for one in schedulers(self.settings, Web())}

    # Rows -------------------------------------------------------------------------------------------------------------

    def add(self, scheduler: str, count: int, **values: Any) -> None:
        """Rows for one of the KINDS, in the order of their keys."""
        numbers = range(1, count + 1)
        with self.engine.begin() as connection:
            if scheduler == "deep scan":
                rows = [{"name": f"Place {n}", "city": "Leith", "listing": self.address(scheduler, n)} for n in numbers]
                connection.execute(sa.insert(Place), [{**row, **values} for row in rows])
            else:
                domain = connection.scalar(sa.insert(Domain).values(name="calm.example").returning(Domain.id))
                rows = [{"domain_id": domain, "url": self.address(scheduler, n)} for n in numbers]
                connection.execute(sa.insert(Page), [{**row, **values} for row in rows])

    def add_places(self) -> None:
        """The world's own."""
        with self.engine.begin() as connection:
            connection.execute(sa.insert(Place), list(self.world.rows()))

    def address(self, scheduler: str, row: int) -> str:
        return self.world.listing(row) if scheduler == "deep scan" else f"http://calm.example/page/{row}"

    def asked(self, scheduler: str, count: int) -> list[int]:
        """How often a site was asked for each row."""
        return [self.site.asked[self.address(scheduler, row)] for row in range(1, count + 1)]

    def column(self, scheduler: str, role: str) -> list[Any]:
        """One column of all rows, in the order of their keys: `status`, `attempts`, `holder` and so on."""
        mapping = self.schedulers[scheduler].mapping
        with self.engine.connect() as connection:
            return list(connection.execute(sa.select(mapping.columns[role]).order_by(*mapping.key)).scalars())

    def words(self, scheduler: str) -> list[str | None]:
        """The status of all rows, as the mapping calls it."""
        named = {value: word for word, value in self.schedulers[scheduler].mapping.words.items()}
        return [named.get(value) for value in self.column(scheduler, "status")]

    def counts(self, scheduler: str) -> dict[str | None, int]:
        return dict(Counter(self.words(scheduler)))

    def holders(self, scheduler: str) -> list[str | None]:
        """The process that holds each row, or held it last."""
        return [None if one is None else one.split("-")[0].split()[-1] for one in self.column(scheduler, "holder")]

    def held_by(self, scheduler: str, pid: int) -> list[int]:
        """The keys of the rows that a process has in its hands."""
        both = enumerate(zip(self.words(scheduler), self.holders(scheduler), strict=True), 1)
        return [key for key, (word, holder) in both if (word, holder) == ("processing", str(pid))]

    def execute(self, statement: Any) -> Any:
        with self.engine.begin() as connection:
            return connection.execute(statement)

    # The service ------------------------------------------------------------------------------------------------------

    def service(self, *names: str, **changes: Any) -> Service:
        return Service(replace(self.settings, **changes), names)

    def run(self, *names: str, **changes: Any) -> dict[str, Counters]:
        """In this process, until all is done."""
        service = self.service(*names, **changes)
        return asyncio.run(asyncio.wait_for(service.run(until_done=True), 60))

    def orders(self, *names: str, **changes: Any) -> dict[str, Any]:
        """The same for a process of its own."""
        return {"settings": asdict(replace(self.settings, **changes)), "names": names}

    def judge(self) -> None:
        """All that the world has was found, and nothing else; what cannot work says why."""
        world = self.world
        sites = sorted(
            {world.site_of(n) for n in self._numbers() if world.place_fails(n) is None and world.has_website(n)}
        )
        self._judge_places()
        names = [world.domain(site) for site in sites]
        assert sorted(self.execute(sa.select(Domain.name)).scalars()) == sorted(names)
        errors = {url: error for site in sites for url, error in world.sitemaps(site).items()}
        found = self._errors("sitemap import", "url")
        assert found.keys() == errors.keys()
        for url, error in errors.items():
            assert (found[url] is None) if error is None else (error in str(found[url])), (url, found[url])
        pages = {world.page(site, n): (site, n) for site in sites if world.has_pages(site) for n in self._pages()}
        curated = self._errors("page curation", "url")
        assert curated.keys() == pages.keys()
        assert {url for url, error in curated.items() if error} == {
            url for url, (_, n) in pages.items() if world.page_fails(n)
        }
        contacts = self.execute(sa.select(Page.url, Contact.kind, Contact.value).join(Page, Page.id == Contact.page_id))
        assert sorted(tuple(row) for row in contacts) == sorted(
            (url, *contact)
            for url, (site, n) in pages.items()
            if world.is_worth_it(n)
            for contact in world.contacts(site, n)
        )
        for scheduler in self.schedulers:
            assert set(self.words(scheduler)) <= {"completed", "failed", None}, scheduler

    def _judge_places(self) -> None:
        errors = self.column("deep scan", "error")
        for place, error in zip(self._numbers(), errors, strict=True):
            wanted = self.world.place_fails(place)
            assert (error is None) if wanted is None else (wanted in error), (place, error)
        extracted = self._errors("domain extraction", "place_id")
        assert sorted(extracted) == [n for n in self._numbers() if self.world.place_fails(n) is None]
        assert {n for n, error in extracted.items() if error} == {n for n in extracted if not self.world.has_website(n)}

    def _errors(self, scheduler: str, key: str) -> dict[Any, str | None]:
        """The error of every row that has failed; None of one that has not."""
        mapping = self.schedulers[scheduler].mapping
        asked = sa.select(mapping.table.c[key], mapping.columns["status"], mapping.columns["error"])
        with self.engine.connect() as connection:
            rows = connection.execute(asked).all()
        assert len({row[0] for row in rows}) == len(rows)
        for name, status, error in rows:
            assert (status == mapping.words["failed"]) == (error is not None), (name, status, error)
        return {name: error for name, _, error in rows}

    def _numbers(self) -> range:
        return range(1, self.world.places + 1)

    def _pages(self) -> range:
        return range(1, self.world.pages + 1)


@contextmanager
def scene_on(
    database: str, folder: Path, request: pytest.FixtureRequest, world: FakeWorld | None = None
) -> Iterator[Scene]:
    """A scene on an empty database of its own; without a world of its own, on a calm one."""
    with ExitStack() as stack:
        url = stack.enter_context(_address(database, folder, request))
        scene = Scene(url, stack.enter_context(serving_fake_web(world or Calm())), folder)
        stack.callback(scene.engine.dispose)
        yield scene


@contextmanager
def _address(database: str, folder: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    if database == "sqlite":
        yield f"sqlite:///{folder / 'curation.db'}"
        return
    with bare_schema(request.getfixturevalue("postgres")) as url:
        yield url
