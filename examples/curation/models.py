"""The tables of the service, as they grew: no two of them keep their status alike, and none belongs to holdfast.

    places → businesses → domains, sitemaps → pages → contacts

Each table names its columns after the scheduler that works it off. `pages` has two of them, with columns for each.
"""

from __future__ import annotations

import enum
from datetime import UTC, datetime

from sqlalchemy import CheckConstraint, DateTime, Enum, ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


def _now() -> datetime:
    return datetime.now(UTC)


class Base(DeclarativeBase):
    type_annotation_map = {datetime: DateTime(timezone=True), str: Text}  # noqa: RUF012 - as SQLAlchemy wants it


class Status(enum.StrEnum):
    """The words of all five schedulers; each table stores them in its own way."""

    QUEUED = "Queued"
    PROCESSING = "Processing"
    COMPLETED = "Completed"
    ERROR = "Error"


#: What they mean, for a mapping.
WORDS = {
    "queued": Status.QUEUED,
    "processing": Status.PROCESSING,
    "completed": Status.COMPLETED,
    "failed": Status.ERROR,
}
_LISTED = ", ".join(f"'{word}'" for word in Status)


class Place(Base):
    """A place on a map; a deep scan looks up its listing, which costs money."""

    __tablename__ = "places"
    __table_args__ = (Index("ix_places_queued", "deep_scan_status", "priority", "id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    city: Mapped[str]
    priority: Mapped[int] = mapped_column(default=0)
    #: The address of its listing.
    listing: Mapped[str]
    phone: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(default=_now)
    #: Stored by its names, in an enumeration of the database where it has them.
    deep_scan_status: Mapped[Status] = mapped_column(Enum(Status, name="scan_status"), default=Status.QUEUED)
    deep_scan_error: Mapped[str | None]
    deep_scan_attempts: Mapped[int] = mapped_column(default=0)
    deep_scan_next_at: Mapped[datetime | None]
    deep_scan_by: Mapped[str | None] = mapped_column(String(80))
    deep_scan_started_at: Mapped[datetime | None]
    deep_scan_beat_at: Mapped[datetime | None]


class Business(Base):
    """What a deep scan found; its web site's domain is extracted. A number counted up guards it, and no token."""

    __tablename__ = "businesses"

    id: Mapped[int] = mapped_column(primary_key=True)
    place_id: Mapped[int] = mapped_column(ForeignKey("places.id"), unique=True)
    name: Mapped[str]
    website: Mapped[str | None]
    domain_id: Mapped[int | None] = mapped_column(ForeignKey("domains.id"))
    #: Stored by its values.
    extraction_status: Mapped[Status] = mapped_column(
        Enum(
            Status, values_callable=list, native_enum=False, create_constraint=True, name="extraction_status", length=20
        ),
        default=Status.QUEUED,
    )
    extraction_error: Mapped[str | None] = mapped_column(String(200))
    extraction_attempts: Mapped[int] = mapped_column(default=0)
    version: Mapped[int] = mapped_column(default=0)
    updated_at: Mapped[datetime] = mapped_column(default=_now)


class Domain(Base):
    """A web site, once."""

    __tablename__ = "domains"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)


class Sitemap(Base):
    """A sitemap or an index of sitemaps, to be imported."""

    __tablename__ = "sitemaps"
    __table_args__ = (CheckConstraint(f"import_status IN ({_LISTED})", name="import_status_is_known"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    domain_id: Mapped[int] = mapped_column(ForeignKey("domains.id"))
    url: Mapped[str] = mapped_column(unique=True)
    #: How many indexes lie above it.
    depth: Mapped[int] = mapped_column(default=0)
    #: What it listed: pages, or other sitemaps.
    listed: Mapped[int | None]
    created_at: Mapped[datetime] = mapped_column(default=_now)
    import_status: Mapped[str] = mapped_column(String(20), default=Status.QUEUED)
    import_error: Mapped[str | None]
    import_attempts: Mapped[int] = mapped_column(default=0)
    import_next_at: Mapped[datetime | None]
    import_by: Mapped[str | None] = mapped_column(String(80))
    import_beat_at: Mapped[datetime | None]


class Page(Base):
    """A page: first its curation, which fetches and scores it; then, if it is worth it, the service that uses it."""

    __tablename__ = "pages"

    id: Mapped[int] = mapped_column(primary_key=True)
    domain_id: Mapped[int] = mapped_column(ForeignKey("domains.id"))
    url: Mapped[str] = mapped_column(unique=True)
    last_modified: Mapped[str | None]
    title: Mapped[str | None]
    text: Mapped[str | None]
    score: Mapped[int | None]
    created_at: Mapped[datetime] = mapped_column(default=_now)
    curation_status: Mapped[str] = mapped_column(String(20), default=Status.QUEUED)
    curation_error: Mapped[str | None]
    curation_attempts: Mapped[int] = mapped_column(default=0)
    curation_next_at: Mapped[datetime | None]
    curation_by: Mapped[str | None] = mapped_column(String(80))
    curation_beat_at: Mapped[datetime | None]
    #: None until a curation has found the page worth it.
    service_status: Mapped[str | None] = mapped_column(String(20))
    service_error: Mapped[str | None]
    service_attempts: Mapped[int] = mapped_column(default=0)
    service_started_at: Mapped[datetime | None]


class Contact(Base):
    """An address or a number found on a page."""

    __tablename__ = "contacts"
    __table_args__ = (UniqueConstraint("page_id", "kind", "value"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    page_id: Mapped[int] = mapped_column(ForeignKey("pages.id"))
    kind: Mapped[str]
    value: Mapped[str]
