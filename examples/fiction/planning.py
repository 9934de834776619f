"""Planning: a plan, and the backlog that leads from its vision to its last scene."""

from __future__ import annotations

from sqlalchemy.orm import Session

from examples.fiction.models import Item, Phase, Plan


def add_plan(session: Session, title: str, premise: str, *, chapters: int = 3, scenes: int = 2) -> int:
    """Write down a plan with its backlog, and return its key."""
    plan = Plan(title=title, premise=premise)
    session.add(plan)
    session.flush()

    def add(backlog_id: str, phase: Phase, about: str, after: int | None) -> int:
        position = list(Phase).index(phase)
        item = Item(plan_id=plan.id, backlog_id=backlog_id, phase=phase, position=position, title=about, after_id=after)
        session.add(item)
        session.flush()
        return item.id

    vision = add("vision", Phase.VISION, f"The vision of {title}", None)
    outline = add("outline", Phase.OUTLINE, f"The outline of {title}", vision)
    for chapter in range(1, chapters + 1):
        name = f"{title}, chapter {chapter}"
        scroll = add(f"scroll-{chapter}", Phase.SCROLL, name, outline)
        for scene in range(1, scenes + 1):
            add(f"scene-{chapter}-{scene}", Phase.SCENE, f"{name}, scene {scene}", scroll)
    return plan.id
