"""The writer's own models: plan, backlog item, task, checkpoint, lore requirement, world-bible entry.

Nothing here is holdfast's: plain SQLAlchemy, in a database that may hold anything else.
"""

from __future__ import annotations

import enum
from datetime import datetime
from typing import Annotated, Any

import sqlalchemy as sa
from sqlalchemy import DateTime, ForeignKey, String, Text, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, declared_attr, mapped_column


class Status(enum.StrEnum):
    PENDING = "Pending"
    IN_PROGRESS = "InProgress"
    COMPLETE = "Complete"
    FAILED = "Failed"


class Phase(enum.StrEnum):
    """What a backlog item is about, from the whole to the smallest part."""

    VISION = "Vision"
    OUTLINE = "Outline"
    SCROLL = "Scroll"
    SCENE = "Scene"


def _words(kind: type[enum.StrEnum], name: str) -> sa.Enum:
    """A text with a CHECK, not an enumeration of the database: that could not let go of a word."""
    return sa.Enum(kind, native_enum=False, create_constraint=True, length=20, name=name, values_callable=list)


class Base(DeclarativeBase):
    type_annotation_map = {  # noqa: RUF012 - as SQLAlchemy wants it
        #: Times have a zone where the database knows one; on SQLite they are UTC without saying so.
        datetime: DateTime(timezone=True),
        str: Text,
        Phase: _words(Phase, "phase_word"),
        Status: _words(Status, "status_word"),
    }


def _to(column: str) -> Any:
    # Whoever removes an item, or gives it another key, means its task and checkpoint as well.
    return mapped_column(ForeignKey(column, ondelete="CASCADE", onupdate="CASCADE"))


PlanId = Annotated[int, _to("plans.id")]
ItemId = Annotated[int, _to("backlog_items.id")]


class Plan(Base):
    """A story to be written."""

    __tablename__ = "plans"

    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str]
    premise: Mapped[str]
    #: Words woven so far, counted in the transaction that completes a piece.
    words: Mapped[int] = mapped_column(default=0)


class Claimable:
    """What all rows with a status have: what is known of the attempt at it, and the columns that guard a claim."""

    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[Status] = mapped_column(default=Status.PENDING)
    error: Mapped[str | None]
    next_attempt_at: Mapped[datetime | None]
    started_at: Mapped[datetime | None]
    holder: Mapped[str | None] = mapped_column(String(100))
    version: Mapped[int] = mapped_column(default=0)
    last_heartbeat: Mapped[datetime | None]

    @declared_attr.directive
    def __mapper_args__(cls) -> dict[str, Any]:
        """The version is the ORM's as well: a session that is behind is refused when it writes."""
        return {"version_id_col": cls.version}


class Item(Claimable, Base):
    """One thing to be written: the vision of a plan, its outline, a chapter's scroll, a scene."""

    __tablename__ = "backlog_items"
    __table_args__ = (UniqueConstraint("plan_id", "backlog_id"),)

    plan_id: Mapped[PlanId]
    backlog_id: Mapped[str] = mapped_column(String(100))
    phase: Mapped[Phase]
    position: Mapped[int]
    title: Mapped[str]
    #: Whatever the author likes; no process ever writes it.
    notes: Mapped[str] = mapped_column(default="")
    #: The item whose text this one starts from.
    after_id: Mapped[ItemId | None]


class Task(Claimable, Base):
    """Work that was enqueued for an item, and the claim under which it was.

    The scheduler claims the item and a weaver, another process, works on it: `item_holder`, `item_version` and
    `item_started_at` carry the claim from one to the other. Nothing but the claim keeps an item from having two tasks.
    """

    __tablename__ = "tasks"

    item_id: Mapped[ItemId] = mapped_column(index=True)
    attempts: Mapped[int] = mapped_column(default=0)
    item_holder: Mapped[str | None] = mapped_column(String(100))
    item_version: Mapped[int | None]
    item_started_at: Mapped[datetime | None]


class Checkpoint(Claimable, Base):
    """What a phase has written; the next phase starts from it."""

    __tablename__ = "checkpoints"
    __table_args__ = (UniqueConstraint("item_id", "phase"),)

    item_id: Mapped[ItemId]
    phase: Mapped[Phase]
    text: Mapped[str | None]


class Requirement(Claimable, Base):
    """Something that a text names and the world bible must explain."""

    __tablename__ = "lore_requirements"
    __table_args__ = (UniqueConstraint("item_id", "slug"),)

    plan_id: Mapped[PlanId]
    item_id: Mapped[ItemId]
    slug: Mapped[str] = mapped_column(String(200))
    attempts: Mapped[int] = mapped_column(default=0)
    #: The entry that explains it, once there is one.
    entry_id: Mapped[int | None] = mapped_column(ForeignKey("world_bible_entries.id"))


class Entry(Base):
    """A page of the world bible, the same for all plans."""

    __tablename__ = "world_bible_entries"
    __table_args__ = (UniqueConstraint("slug", "version"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    slug: Mapped[str] = mapped_column(String(200))
    version: Mapped[int] = mapped_column(default=1)
    text: Mapped[str]


class Count(Base):
    """How often something happened in a role, over all processes that ever had it."""

    __tablename__ = "counters"

    role: Mapped[str] = mapped_column(String(20), primary_key=True)
    name: Mapped[str] = mapped_column(String(40), primary_key=True)
    number: Mapped[int] = mapped_column(default=0)
