"""Standing: where everything is, for people and for programs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import sqlalchemy as sa

from examples.fiction.database import Database
from examples.fiction.keeping import sums
from examples.fiction.models import Status
from examples.fiction.scheduler import is_ready


def standing(database: Database) -> dict[str, Any]:
    """Plans with their items, tasks and lore, and what was counted so far, as plain values."""
    tables = database.tables
    with database.sessions() as session:
        plans: list[dict[str, Any]] = [
            {
                "plan": plan.id, "title": plan.title, "words": plan.words, "items": [], "lore": {},
            } for plan in session.scalars(sa.select(tables.Plan).order_by(tables.Plan.id))
        ]  # fmt: skip
        by_key = {plan["plan"]: plan for plan in plans}
        task, item = tables.Task, tables.Item
        wanted = sa.select(item, task).outerjoin(task, task.item_id == item.id).order_by(item.plan_id, item.id, task.id)
        for one, its_task in session.execute(wanted):
            by_key[one.plan_id]["items"].append({
                "item": one.id, "backlog_id": one.backlog_id, "phase": str(one.phase), "status": str(one.status),
                "task": None if its_task is None else str(its_task.status),
                "attempts": 0 if its_task is None else its_task.attempts, "error": one.error, "notes": one.notes,
            })  # fmt: skip
        own = tables.Requirement
        counted = sa.select(own.plan_id, own.status, sa.func.count()).group_by(own.plan_id, own.status)
        for plan_id, status, count in session.execute(counted):
            by_key[plan_id]["lore"][str(status)] = count
        entries = session.scalar(sa.select(sa.func.count()).select_from(tables.Entry))
    return {"plans": plans, "world_bible_entries": entries, "counters": sums(database)}


def is_finished(database: Database) -> bool:
    """Is there no item to be written, now or later? One that waits for an item that has failed is not."""
    item = database.tables.Item
    waits = sa.and_(item.status == Status.PENDING, is_ready(database.tables))
    return _is_none(database, sa.select(item.id).where(sa.or_(item.status == Status.IN_PROGRESS, waits)))


def is_explained(database: Database) -> bool:
    """Is there no item to be written, and no requirement without an entry?"""
    own = database.tables.Requirement
    waits = own.status.in_((Status.PENDING, Status.IN_PROGRESS))
    return is_finished(database) and _is_none(database, sa.select(own.id).where(waits))


def _is_none(database: Database, wanted: sa.Select[Any]) -> bool:
    with database.sessions() as session:
        return session.execute(wanted.limit(1)).first() is None


def story(database: Database, plan: int) -> str:
    """The scenes that are there, in order."""
    tables = database.tables
    wanted = (
        sa.select(tables.Checkpoint.text).join(tables.Item, tables.Item.id == tables.Checkpoint.item_id)
        .where(tables.Item.plan_id == plan, tables.Checkpoint.phase == "Scene", tables.Checkpoint.text.is_not(None))
        .order_by(tables.Item.id)
    )  # fmt: skip
    with database.sessions() as session:
        return "\n\n\n".join(text for text in session.scalars(wanted) if text)


def shown(found: dict[str, Any]) -> str:
    """The same as `standing`, as lines."""
    lines = []
    for plan in found["plans"]:
        count = Counter(item["status"] for item in plan["items"])
        told = ", ".join(f"{number} {status}" for status, number in sorted(count.items()))
        lines.append(f"plan {plan['plan']}: {plan['title']} ({told}; {plan['words']} words)")
        for item in plan["items"]:
            tried = f"attempt {item['attempts']}" if item["attempts"] else ""
            line = f"  {item['item']:>4} {item['backlog_id']:12} {item['status']:11} {tried:10} {item['error'] or ''}"
            lines.append(line.rstrip())
        lore = ", ".join(f"{number} {status}" for status, number in sorted(plan["lore"].items()))
        lines.append(f"  lore: {lore or 'nothing named yet'}")
    lines.append(f"world bible: {found['world_bible_entries']} entries")
    for role, counted in found["counters"].items():
        told = ", ".join(f"{name} {number}" for name, number in counted.items())
        lines.append(f"{role}s so far: {told.replace('_', ' ')}")
    return "\n".join(lines)
