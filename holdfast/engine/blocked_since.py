"""Since when resources have been blocked: the time of the newest event about it, within a bounded part of the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from holdfast.store import Transaction

#: So many of the newest events of a name are looked at.
LOOK = 500


class _Told(NamedTuple):
    """Which events tell that something began."""

    event: str
    #: What their facts are like.
    like: str = "%"


#: By the word for what keeps work from beginning.
_TOLD: Mapping[str, _Told] = {
    "paused": _Told("paused"),
    "cool_down": _Told("cooled_down"),
    # A probe that fails opens it again: it has been open before.
    "breaker": _Told("breaker_opened", '%"again":false%'),
    "budget": _Told("budget_reached"),
}


class BlockedSince:
    """Of one question: each name of events is looked for once, and only if a resource stands still for that reason."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._found: dict[str, dict[str, int]] = {}

    def at(self, reason: str, resource: str) -> int | None:
        """Since when, as far as the log tells."""
        if reason not in _TOLD:
            return None
        if reason not in self._found:
            told = _TOLD[reason]
            rows = self._tx.run("newest_of_resources", event=told.event, like=told.like, most=LOOK)
            self._found[reason] = dict(rows)
        return self._found[reason].get(resource)
