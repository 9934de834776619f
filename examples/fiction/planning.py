"""Planning: a plan, and the backlog that leads from its vision to its last scene."""

from __future__ import annotations

from sqlalchemy.orm import Session

from examples.fiction.models import Item, Phase
from examples.fiction.tables import Tables
from holdfast.adopt import insert_once


def add_plan(
    session: Session, tables: Tables, title: str, premise: str, *, chapters: int = 3, scenes: int = 2
) -> int:
    """Write down a plan with its backlog, and return its key."""
    plan = tables.Plan(title=title, premise=premise)
    session.add(plan)
    session.flush()
    vision = _add(session, tables, plan.id, "vision", Phase.VISION, f"The vision of {title}", None)
    outline = _add(session, tables, plan.id, "outline", Phase.OUTLINE, f"The outline of {title}", vision)
    for chapter in range(1, chapters + 1):
        name = f"{title}, chapter {chapter}"
        scroll = _add(session, tables, plan.id, f"scroll-{chapter}", Phase.SCROLL, name, outline)
        for scene in range(1, scenes + 1):
            about = f"{name}, scene {scene}"
            _add(session, tables, plan.id, f"scene-{chapter}-{scene}", Phase.SCENE, about, scroll)
    return plan.id


def _add(
    session: Session, tables: Tables, plan: int, backlog_id: str, phase: Phase, title: str, after: Item | None
) -> Item:
    values = {
        "plan_id": plan, "backlog_id": backlog_id, "phase": phase, "title": title,
        "position": list(Phase).index(phase), "after_id": None if after is None else after.id,
    }  # fmt: skip
    item: Item = insert_once(session, tables.Item, values, unique_on=("plan_id", "backlog_id")).row
    return item
