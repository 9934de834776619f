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

from examples.fiction.models import Status
from examples.fiction.tables import Tables
from holdfast.adopt import Held, heartbeat, where_is

#: What tells claims apart, and the task's column that carries it.
_CARRIED = {"holder": "item_holder", "version": "item_version", "started": "item_started_at"}


def written_down(item: Held) -> dict[str, Any]:
    """The columns of a task that carries this claim."""
    return {"item_holder": item.token, "item_version": item.version, "item_started_at": item.started_at}


def read(tables: Tables, task: Held) -> Held:
    """The item as its scheduler held it."""
    row = task.row
    started, version, token = row["item_started_at"], row["item_version"], row["item_holder"]
    return Held(tables.items, row["item_id"], 1, token=token, version=version, started_at=started)


def is_good(tables: Tables) -> ColumnElement[bool]:
    """Of a task: the claim it carries is the one that its item is under."""
    return sa.exists().where(tables.Item.status == Status.IN_PROGRESS, *_same(tables))


def is_waiting(tables: Tables) -> ColumnElement[bool]:
    """Of an item: a task that carries its claim has not begun."""
    return sa.exists().where(tables.Task.status == Status.PENDING, *_same(tables))


def _same(tables: Tables) -> list[ColumnElement[bool]]:
    item, task = tables.Item, tables.Task
    facts = [getattr(task, _CARRIED[role]) == tables.items.columns[role] for role in tables.items.fence]
    return [item.id == task.item_id, *facts]


def is_still_held(session: Session, item: Held) -> bool:
    """Is the item under this claim? If it has a heartbeat, it is renewed: the item has waited with its task."""
    if "heartbeat" in item.mapping.columns:
        return bool(heartbeat(session, item).won)
    return where_is(session, item) == "processing"
