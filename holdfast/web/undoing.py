"""Undoing an action: the same preview and confirmation as for any other act, of what the action has moved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.answers.action import ActionRecord
from holdfast.app import Holdfast
from holdfast.engine.actions import ActionCounts
from holdfast.web.bulk_verbs import Verb

_STAGES, _ANSWERS = "stages of items", "recorded answers of paid calls"

#: By the kind of an action: what undoing it does, to what, and what is paid for by it.
_UNDONE: Mapping[str, tuple[str, str, str]] = {
    "cancel": ("sent back, or put on hold again; what has changed since is left alone", _STAGES, "attempts"),
    "retry": ("as they were before, unless they have begun since", _STAGES, ""),
    "reprocess": ("as they were before, unless they have begun since", _STAGES, ""),
    "forget": ("restored, unless they were replaced since", _ANSWERS, ""),
    "restore": ("rejected again, so that the next attempt calls, and pays, again", _ANSWERS, "answers"),
}


def undo(action: ActionRecord) -> Verb:
    """The act that undoes an action; the app refuses it where that cannot be."""

    def act(app: Holdfast, /, **how: Any) -> ActionCounts:
        return app.undo_action(action.id, **how)

    does, of, pays_for = _UNDONE.get(action.kind, ("as they were before", _STAGES, ""))
    here = f"actions/{action.id}"
    return Verb("undo", "Undo", does, act, (), pays_for, of, is_of_items=False, filters=(), page=here)
