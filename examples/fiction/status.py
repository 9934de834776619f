"""Where everything is, for people and for programs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import sqlalchemy as sa

from examples.fiction.counting import sums
from examples.fiction.database import Database
from examples.fiction.models import Checkpoint, Entry, Item, Phase, Plan, Requirement, Status, Task
from examples.fiction.scheduler import is_ready


def status(database: Database) -> dict[str, Any]:
    """Plans with their items, tasks and lore, and what was counted so far, as plain values."""
    with database.sessions() as session:
        plans: dict[int, dict[str, Any]] = {
            plan.id: {"plan": plan.id, "title": plan.title, "words": plan.words, "items": [], "lore": {}}
            for plan in session.scalars(sa.select(Plan).order_by(Plan.id))
        }
        wanted = sa.select(Item, Task).outerjoin(Task, Task.item_id == Item.id).order_by(Item.plan_id, Item.id, Task.id)
        for one, task in session.execute(wanted):
            plans[one.plan_id]["items"].append(
                {
                    "item": one.id,
                    "backlog_id": one.backlog_id,
                    "phase": one.phase,
                    "status": one.status,
                    "task": task and task.status,
                    "attempts": task.attempts if task else 0,
                    "error": one.error,
                    "notes": one.notes,
                }
            )
        own = Requirement
        counted = sa.select(own.plan_id, own.status, sa.func.count()).group_by(own.plan_id, own.status)
        for plan_id, status, count in session.execute(counted):
            plans[plan_id]["lore"][status] = count
        entries = session.scalar(sa.select(sa.func.count()).select_from(Entry))
    return {"plans": [*plans.values()], "world_bible_entries": entries, "counters": sums(database)}


def is_finished(database: Database) -> bool:
    """Is there no item to be written, now or later? One that waits for an item that has failed is not."""
    waits = sa.and_(Item.status == Status.PENDING, is_ready())
    return _is_none(database, sa.select(Item.id).where(sa.or_(Item.status == Status.IN_PROGRESS, waits)))


def is_explained(database: Database) -> bool:
    """Is there no item to be written, and no requirement without an entry?"""
    waits = Requirement.status.in_((Status.PENDING, Status.IN_PROGRESS))
    return is_finished(database) and _is_none(database, sa.select(Requirement.id).where(waits))


def _is_none(database: Database, wanted: sa.Select[Any]) -> bool:
    with database.sessions() as session:
        return session.execute(wanted.limit(1)).first() is None


def story(database: Database, plan: int) -> str:
    """The scenes that are there, in order."""
    scenes = sa.select(Checkpoint.text).join(Item, Item.id == Checkpoint.item_id).order_by(Item.id)
    wanted = scenes.where(Item.plan_id == plan, Checkpoint.phase == Phase.SCENE, Checkpoint.text.is_not(None))
    with database.sessions() as session:
        return "\n\n\n".join(text for text in session.scalars(wanted) if text)


def shown(found: dict[str, Any]) -> str:
    """The same as `status`, as lines."""
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
