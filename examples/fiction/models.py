"""The writer's own models: plan, backlog item, task, checkpoint, lore requirement, world-bible entry.

Nothing here is holdfast's: plain SQLAlchemy, in a database that may hold anything else. Four of the tables have a
status. Which columns guard that status is for the owner of the tables to choose, so `tables.py` makes the real models
from these: with or without a holder, a row version and a heartbeat.
"""

from __future__ import annotations

import enum
from datetime import datetime
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import DateTime, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, declared_attr, mapped_column

#: Times have a zone where the database knows one; on SQLite they are UTC without saying so.
Time = DateTime(timezone=True)


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


def words_of(kind: type[enum.StrEnum], name: str) -> sa.Enum:
    """A text with a CHECK, not an enumeration of the database: that could not let go of a word."""
    return sa.Enum(
        kind, native_enum=False, create_constraint=True, length=20, name=name, values_callable=lambda all_: list(all_)
    )


class Row:
    """What all of them have."""

    if TYPE_CHECKING:

        def __init__(self, **values: Any) -> None: ...

    id: Mapped[int] = mapped_column(primary_key=True, sort_order=-1)


class Plan(Row):
    """A story to be written."""

    title: Mapped[str] = mapped_column(Text)
    premise: Mapped[str] = mapped_column(Text)
    #: Words woven so far, counted in the transaction that completes a piece.
    words: Mapped[int] = mapped_column(default=0)


class Claimable(Row):
    """A row with a status, and what is known of the attempt at it."""

    status: Mapped[Status] = mapped_column(words_of(Status, "status_word"), default=Status.PENDING)
    error: Mapped[str | None] = mapped_column(Text)
    next_attempt_at: Mapped[datetime | None] = mapped_column(Time)
    started_at: Mapped[datetime | None] = mapped_column(Time)


class Item(Claimable):
    """One thing to be written: the vision of a plan, its outline, a chapter's scroll, a scene."""

    plan_id: Mapped[int]
    backlog_id: Mapped[str] = mapped_column(sa.String(100))
    phase: Mapped[Phase] = mapped_column(words_of(Phase, "phase_word"))
    position: Mapped[int]
    title: Mapped[str] = mapped_column(Text)
    #: Whatever the author likes; no process ever writes it.
    notes: Mapped[str] = mapped_column(Text, default="")
    #: The item whose text this one starts from.
    after_id: Mapped[int | None]

    @declared_attr.directive
    def __table_args__(cls) -> tuple[Any, ...]:
        return (UniqueConstraint("plan_id", "backlog_id"),)


class Task(Claimable):
    """Work that was enqueued for an item, and the claim under which it was.

    The scheduler claims the item and a weaver, another process, works on it: `item_holder`, `item_version` and
    `item_started_at` carry the claim from one to the other. Nothing but the claim keeps an item from having two tasks.
    """

    item_id: Mapped[int] = mapped_column(index=True)
    attempts: Mapped[int] = mapped_column(default=0)
    item_holder: Mapped[str | None] = mapped_column(sa.String(100))
    item_version: Mapped[int | None]
    item_started_at: Mapped[datetime | None] = mapped_column(Time)


class Checkpoint(Claimable):
    """What a phase has written; the next phase starts from it."""

    item_id: Mapped[int]
    phase: Mapped[Phase] = mapped_column(words_of(Phase, "phase_word"))
    text: Mapped[str | None] = mapped_column(Text)

    @declared_attr.directive
    def __table_args__(cls) -> tuple[Any, ...]:
        return (UniqueConstraint("item_id", "phase"),)


class Requirement(Claimable):
    """Something that a text names and the world bible must explain."""

    plan_id: Mapped[int]
    item_id: Mapped[int]
    slug: Mapped[str] = mapped_column(sa.String(200))
    attempts: Mapped[int] = mapped_column(default=0)
    #: The entry that explains it, once there is one.
    entry_id: Mapped[int | None]

    @declared_attr.directive
    def __table_args__(cls) -> tuple[Any, ...]:
        return (UniqueConstraint("item_id", "slug"),)


class Entry(Row):
    """A page of the world bible, the same for all plans."""

    slug: Mapped[str] = mapped_column(sa.String(200))
    version: Mapped[int] = mapped_column(default=1)
    text: Mapped[str] = mapped_column(Text)

    @declared_attr.directive
    def __table_args__(cls) -> tuple[Any, ...]:
        return (UniqueConstraint("slug", "version"),)


class Count:
    """How often something happened in a role, over all processes that ever had it."""

    role: Mapped[str] = mapped_column(sa.String(20), primary_key=True)
    name: Mapped[str] = mapped_column(sa.String(40), primary_key=True)
    number: Mapped[int] = mapped_column(default=0)


# Columns that guard a claim, each of them optional --------------------------------------------------------------------


class WithHolder:
    holder: Mapped[str | None] = mapped_column(sa.String(100))


class WithVersion:
    """A row version, and the ORM's as well: a session that is behind is refused when it writes."""

    version: Mapped[int] = mapped_column(default=0)

    @declared_attr.directive
    def __mapper_args__(cls) -> dict[str, Any]:
        return {"version_id_col": cls.version}


class WithHeartbeat:
    last_heartbeat: Mapped[datetime | None] = mapped_column(Time)
