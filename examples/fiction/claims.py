"""A claim that travels: the scheduler claims an item, and the task it enqueues carries the claim to a weaver.

What a claim writes into the item (a token, a version, a time: whatever tells claims apart in these tables) is written
into the task as well. From it the weaver makes the same held row that the scheduler had. Should the item have been
taken back meanwhile, the two differ, and the task is worth nothing until the scheduler has claimed the item again.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement
from sqlalchemy.orm import Session

from examples.fiction.database import Database
from examples.fiction.models import Item, Status, Task
from holdfast.adopt import Held, heartbeat, where_is

#: What tells claims apart, and the task's column that carries it.
_CARRIED = {"holder": "item_holder", "version": "item_version", "started": "item_started_at"}


def written_down(item: Held) -> dict[str, Any]:
    """The columns of a task that carries this claim."""
    return {"item_holder": item.token, "item_version": item.version, "item_started_at": item.started_at}


def read(database: Database, task: Held) -> Held:
    """The item as its scheduler held it."""
    row = task.row
    carried = {"token": row["item_holder"], "version": row["item_version"], "started_at": row["item_started_at"]}
    return Held(database.items, row["item_id"], 1, **carried)


def is_good(database: Database) -> ColumnElement[bool]:
    """Of a task: the claim it carries is the one that its item is under."""
    return sa.exists().where(Item.status == Status.IN_PROGRESS, *_same(database))


def is_waiting(database: Database) -> ColumnElement[bool]:
    """Of an item: a task that carries its claim has not begun."""
    return sa.exists().where(Task.status == Status.PENDING, *_same(database))


def _same(database: Database) -> list[ColumnElement[bool]]:
    items = database.items
    return [Item.id == Task.item_id, *(getattr(Task, _CARRIED[role]) == items.columns[role] for role in items.fence)]


def is_still_held(session: Session, item: Held) -> bool:
    """Is the item under this claim? If it has a heartbeat, it is renewed: the item has waited with its task."""
    if "heartbeat" in item.mapping.columns:
        return bool(heartbeat(session, item).won)
    return where_is(session, item) == "processing"
