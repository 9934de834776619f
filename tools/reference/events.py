"""Every kind of event, with the state of the stage after it."""

from __future__ import annotations

from holdfast.model.history import EVENTS, MEANING
from tools.reference import words
from tools.reference.markdown import code, finished, head, table


def page() -> str:
    lines = head(
        "Events",
        """What the log records. `holdfast events` reads it, `holdfast show KEY` shows the events and outcomes of an item as
        one history, and [alerts](../guide/alerts.md) name them in rules. Routine attempts leave no event; their outcome is
        the record. Handlers may record [events of their own](../guide/handlers.md#events-of-your-own).""",
        "The third column is the state of the stage afterwards, where an event is about the stage of an item.",
    )
    lines += table(
        ("event", "what happened", "state"),
        ((code(name), words.EVENTS[name], code(str(MEANING.get(name, "")))) for name in sorted(EVENTS)),
    )
    return finished(lines)
