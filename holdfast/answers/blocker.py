"""A blocker: something that keeps work from beginning. `blockers.py` finds them."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from holdfast.answers.answer import Answer


class Blocker(Answer, frozen=True):
    """Something that keeps work from beginning."""

    _brief: ClassVar = ("where", "what", "since", "until")

    #: A pipeline, a stage, a resource or a worker.
    where: str
    what: str
    #: As far as it is known.
    since: datetime | None = None
    until: datetime | None = None
    #: A command that helps.
    do: str | None = None
