"""Events that users record in the log. The prefix keeps their names apart from ours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from holdfast.errors import UsageError, ValueRefused
from holdfast.model import codec

#: How large the facts of one may be as JSON, and how many an attempt may record.
MAX_BYTES = 16 * 1024
MOST_PER_ATTEMPT = 100

_NAME = re.compile(r"user\.[A-Za-z0-9][A-Za-z0-9_.-]{0,94}")
#: Names that every event uses already.
_TAKEN = ("at", "event", "pipeline", "item", "stage", "attempt", "amount", "resource")


def is_user_event(name: object) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


class UserEvent(NamedTuple):
    """An event with its facts, in their JSON form."""

    name: str
    facts: dict[str, Any]

    @classmethod
    def read(cls, name: object, facts: Mapping[str, Any], *, where: str = "") -> UserEvent:
        where = f"{where}event({str(name)[:100]!r})"
        if not isinstance(name, str) or not is_user_event(name):
            raise UsageError(
                f"{where}: its name must begin with 'user.', as in 'user.price_changed'; letters, digits and _.- may follow"
            )
        if taken := [one for one in _TAKEN if one in facts]:
            raise UsageError(f"{where}: every event has {', '.join(map(repr, taken))}; give your fact another name")
        try:
            return cls(str.__str__(name), codec.decode(codec.encode(dict(facts), limit=MAX_BYTES)))
        except ValueRefused as error:
            raise UsageError(f"{where}: {error}") from None
