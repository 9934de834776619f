"""A service of five schedulers from before holdfast, each ticked by a clock, each with one call of `run_job_loop`.

    Forked("tests.adopt.older_service", ["--url", …, "--calls", FILE], os.environ)

Its tables have a status and an error for each scheduler, and nothing else that would tell who works on a row. Handlers get
an id and a session, from whichever kind of factory their author preferred, and see to their transactions themselves. Each
call of a handler leaves a line in FILE. Only the import of `run_job_loop` is not as it was.
"""

from __future__ import annotations

import argparse
import asyncio
import enum
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Engine, Enum, String, Text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from holdfast.adopt.compat import run_job_loop
from tests.adopt.places import async_url, engine_on


class Status(enum.Enum):
    QUEUED = "Queued"
    PROCESSING = "Processing"
    COMPLETED = "Completed"
    ERROR = "Error"


class Base(DeclarativeBase):
    type_annotation_map = {str: Text, Status: Enum(Status, name="job_status")}  # noqa: RUF012


class Place(Base):
    __tablename__ = "places"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    deep_scan_status: Mapped[Status] = mapped_column(default=Status.QUEUED)
    deep_scan_error: Mapped[str | None]


class Domain(Base):
    __tablename__ = "domains"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    extraction_status: Mapped[Status] = mapped_column(default=Status.QUEUED)
    extraction_error: Mapped[str | None]


class SitemapFile(Base):
    __tablename__ = "sitemap_files"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    status: Mapped[str] = mapped_column(String(20), default="Queued")
    processing_error: Mapped[str | None]


class Page(Base):
    """Two schedulers work on it."""

    __tablename__ = "pages"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    title: Mapped[str | None]
    curation_status: Mapped[Status] = mapped_column(default=Status.QUEUED)
    curation_error: Mapped[str | None]
    service_status: Mapped[Status] = mapped_column(default=Status.QUEUED)
    service_error: Mapped[str | None]


#: Each scheduler with the status and the error it works by.
COLUMNS: dict[str, tuple[Any, Any]] = {
    "deep scan": (Place.deep_scan_status, Place.deep_scan_error),
    "domain extraction": (Domain.extraction_status, Domain.extraction_error),
    "sitemap import": (SitemapFile.status, SitemapFile.processing_error),
    "page curation": (Page.curation_status, Page.curation_error),
    "page service": (Page.service_status, Page.service_error),
}
BATCH = 4


class Service:
    """The five schedulers, each a tick."""

    def __init__(self, url: str, calls: Path) -> None:
        self.engine = engine_on(url)
        self.tasks = create_async_engine(
            async_url(url), **({"connect_args": {"timeout": 30}} if "sqlite" in url else {})
        )
        self.sessions = sessionmaker(self.engine)
        self.async_sessions = async_sessionmaker(self.tasks)
        self._calls = calls

    # Where sessions come from -----------------------------------------------------------------------------------------

    @contextmanager
    def get_session(self) -> Iterator[Session]:
        with self.sessions() as session:
            yield session

    @asynccontextmanager
    async def get_background_session(self) -> AsyncIterator[AsyncSession]:
        async with AsyncSession(self.tasks) as session:
            yield session

    # What is done for a row -------------------------------------------------------------------------------------------

    async def scan_place(self, place_id: int, session: AsyncSession) -> None:
        async with session.begin():
            place = await session.get_one(Place, place_id)
            self._call("deep scan", place)

    async def extract_domain(self, domain_id: int, session: AsyncSession) -> None:
        """Sets the status itself, as many of its kind do."""
        domain = await session.get_one(Domain, domain_id)
        try:
            self._call("domain extraction", domain)
            domain.extraction_status = Status.COMPLETED
        except ValueError as error:
            domain.extraction_status, domain.extraction_error = Status.ERROR, f"ValueError: {error}"
        await session.commit()

    def import_sitemap(self, sitemap_id: int, session: Session) -> None:
        self._call("sitemap import", session.get_one(SitemapFile, sitemap_id))

    def curate_page(self, page_id: int, session: Session) -> None:
        page = session.get_one(Page, page_id)
        page.title = f"About {page.name}"
        self._call("page curation", page)

    async def process_page(self, page_id: int, session: AsyncSession) -> None:
        self._call("page service", await session.get_one(Page, page_id))

    def _call(self, what: str, row: Any) -> None:
        with self._calls.open("a") as file:
            file.write(f"{what} {row.id} {os.getpid()}\n")
        if row.name == "bad":
            raise ValueError(f"no answer for {row.id}")

    # The schedulers ---------------------------------------------------------------------------------------------------

    async def deep_scan_tick(self) -> None:
        await run_job_loop(
            model=Place,
            status_field_name="deep_scan_status",
            queued_status=Status.QUEUED,
            processing_status=Status.PROCESSING,
            completed_status=Status.COMPLETED,
            failed_status=Status.ERROR,
            processing_function=self.scan_place,
            batch_size=BATCH,
            error_field_name="deep_scan_error",
            session_factory=self.async_sessions,
        )

    async def domain_extraction_tick(self) -> None:
        await run_job_loop(
            model=Domain,
            status_field_name="extraction_status",
            queued_status=Status.QUEUED,
            processing_status=Status.PROCESSING,
            completed_status=Status.COMPLETED,
            failed_status=Status.ERROR,
            processing_function=self.extract_domain,
            batch_size=BATCH,
            error_field_name="extraction_error",
            session_factory=self.get_background_session,
        )

    def sitemap_import_tick(self) -> None:
        run_job_loop(
            model=SitemapFile,
            status_field_name="status",
            queued_status="Queued",
            processing_status="Processing",
            completed_status="Completed",
            failed_status="Error",
            processing_function=self.import_sitemap,
            batch_size=BATCH,
            error_field_name="processing_error",
            session_factory=self.sessions,
        )

    def page_curation_tick(self) -> None:
        run_job_loop(
            model=Page,
            status_field_name="curation_status",
            queued_status=Status.QUEUED,
            processing_status=Status.PROCESSING,
            completed_status=Status.COMPLETED,
            failed_status=Status.ERROR,
            processing_function=self.curate_page,
            batch_size=BATCH,
            error_field_name="curation_error",
            session_factory=self.get_session,
        )

    async def page_service_tick(self) -> None:
        await run_job_loop(
            model=Page,
            status_field_name="service_status",
            queued_status=Status.QUEUED,
            processing_status=Status.PROCESSING,
            completed_status=Status.COMPLETED,
            failed_status=Status.ERROR,
            processing_function=self.process_page,
            batch_size=BATCH,
            error_field_name="service_error",
            session_factory=lambda: AsyncSession(self.tasks),
        )

    async def tick(self) -> None:
        """All five, as their clock would call them."""
        await asyncio.gather(self.deep_scan_tick(), self.domain_extraction_tick(), self.page_service_tick())
        await asyncio.to_thread(self.sitemap_import_tick)
        await asyncio.to_thread(self.page_curation_tick)

    async def run(self) -> None:
        while queued(self.engine):
            await self.tick()
        await self.tasks.dispose()


def queued(engine: Engine) -> int:
    with engine.connect() as connection:
        return sum(
            connection.execute(
                sa.select(sa.func.count()).where(
                    status == ("Queued" if status is SitemapFile.status else Status.QUEUED)
                )
            ).scalar_one()
            for status, _ in COLUMNS.values()
        )


def prepare() -> None:
    import aiosqlite  # noqa: F401
    import sqlalchemy.dialects.postgresql.psycopg
    import sqlalchemy.dialects.sqlite.aiosqlite  # noqa: F401


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--calls", type=Path, required=True)
    options = parser.parse_args()
    asyncio.run(Service(options.url, options.calls).run())
