"""The tables as they are in one database: models with the guarding columns it has, and what holdfast must know of them.

    tables = make_tables(Guards(version=False))
    tables.metadata.create_all(engine)
    claim(engine, tables.items, 10)

A mapping names the columns of a model that holdfast may read and write. It writes no others.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, TypeVar, cast

from sqlalchemy import Engine, ForeignKey, MetaData
from sqlalchemy.orm import DeclarativeBase, MappedColumn, mapped_column

from examples.fiction.models import (
    Checkpoint,
    Count,
    Entry,
    Item,
    Plan,
    Requirement,
    Status,
    Task,
    WithHeartbeat,
    WithHolder,
    WithVersion,
)
from holdfast import UsageError
from holdfast.adopt import TableMapping

T = TypeVar("T")

#: How often a piece, or a page of the world bible, is tried.
MOST_ATTEMPTS = 5


@dataclass(frozen=True)
class Guards:
    """Which of the optional columns the tables have."""

    holder: bool = True
    version: bool = True
    heartbeat: bool = True

    @classmethod
    def read(cls, text: str) -> Guards:
        """From a list such as `holder,heartbeat`, or `none`."""
        known = [one.name for one in fields(cls)]
        named = {word.strip() for word in text.split(",")} - {"", "none"}
        if named - set(known):
            raise UsageError(
                f"columns {', '.join(sorted(named - set(known)))}: there are {', '.join(known)}; or write none"
            )
        return cls(**{name: name in named for name in known})

    def __str__(self) -> str:
        return ",".join(one.name for one in fields(self) if getattr(self, one.name)) or "none"


@dataclass(frozen=True, eq=False)
class Tables:
    """Models, and the mappings of those that have a status."""

    guards: Guards
    metadata: MetaData
    Plan: type[Plan]
    Item: type[Item]
    Task: type[Task]
    Checkpoint: type[Checkpoint]
    Requirement: type[Requirement]
    Entry: type[Entry]
    Count: type[Count]
    items: TableMapping
    tasks: TableMapping
    checkpoints: TableMapping
    requirements: TableMapping

    @property
    def mappings(self) -> tuple[TableMapping, ...]:
        return self.items, self.tasks, self.checkpoints, self.requirements

    def check(self, engine: Engine) -> None:
        """Raise DefinitionError if the tables in the database are not like these; nothing is written."""
        for mapping in self.mappings:
            mapping.check(engine)


#: Of tables that were made for this from the start.
ALL = Guards()


@lru_cache(maxsize=20)
def make_tables(guards: Guards = ALL, prefix: str = "", most_attempts: int = MOST_ATTEMPTS) -> Tables:
    """Models with these guarding columns, in tables whose names begin with the prefix."""

    class Base(DeclarativeBase):
        pass

    extra = [
        mixin
        for mixin, wanted in (
            (WithHolder, guards.holder), (WithVersion, guards.version), (WithHeartbeat, guards.heartbeat)
        ) if wanted
    ]  # fmt: skip

    def made(kind: type[T], name: str, *mixins: Any, **references: MappedColumn[Any]) -> type[T]:
        content = {"__tablename__": prefix + name, **references}
        return cast("type[T]", type(kind.__name__, (kind, *mixins, Base), content))

    def to(name: str, **settings: Any) -> MappedColumn[Any]:
        # Whoever removes an item, or gives it another key, means its task and checkpoint as well.
        return mapped_column(ForeignKey(f"{prefix}{name}.id", ondelete="CASCADE", onupdate="CASCADE"), **settings)

    plan = made(Plan, "plans")
    item = made(
        Item, "backlog_items", *extra, plan_id=to("plans"), after_id=to("backlog_items", nullable=True)
    )
    task = made(Task, "tasks", *extra, item_id=to("backlog_items", index=True))
    checkpoint = made(Checkpoint, "checkpoints", *extra, item_id=to("backlog_items"))
    entry = made(Entry, "world_bible_entries")
    requirement = made(
        Requirement, "lore_requirements", *extra, plan_id=to("plans"), item_id=to("backlog_items"),
        entry_id=mapped_column(ForeignKey(f"{prefix}world_bible_entries.id"), nullable=True),
    )  # fmt: skip

    def mapping(model: Any, **more: Any) -> TableMapping:
        chosen = {
            "holder": guards.holder and "holder", "version": guards.version and "version",
            "heartbeat": guards.heartbeat and "last_heartbeat",
        }  # fmt: skip
        return TableMapping(
            model, queued=Status.PENDING, processing=Status.IN_PROGRESS, completed=Status.COMPLETE,
            failed=Status.FAILED, error="error", next_attempt="next_attempt_at", started="started_at",
            **{role: column for role, column in chosen.items() if column}, **more,
        )  # fmt: skip

    counted = {"attempts": "attempts", "max_attempts": most_attempts}
    return Tables(
        guards, Base.metadata, plan, item, task, checkpoint, requirement, entry, made(Count, "counters"),
        # An item is tried as often as its task is: to enqueue it is not yet an attempt.
        items=mapping(item), tasks=mapping(task, **counted), checkpoints=mapping(checkpoint),
        requirements=mapping(requirement, **counted),
    )  # fmt: skip
