"""What can be set, all of it by environment variables. Lengths of time are seconds or a text such as "2m"."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from examples.fiction.database import Database, engine_on
from examples.fiction.storyteller import Storyteller
from examples.fiction.tables import ALL, Guards, make_tables
from holdfast import UsageError, seconds


@dataclass(frozen=True)
class Settings:
    """One value per variable; `Settings.read()` takes them from the environment."""

    url: str = "sqlite:///fiction.db"
    #: The optional columns that the tables have.
    guards: Guards = ALL
    #: What has been silent for so long is resumed. Without a heartbeat column: longer than any phase takes.
    stale_seconds: float = 30.0
    #: The first pause after a failed attempt.
    retry_seconds: float = 5.0
    #: How often to look when there was nothing to do.
    poll_seconds: float = 1.0
    #: How long a stop waits for the piece in hand.
    grace_seconds: float = 10.0
    #: The storyteller: seconds for a paragraph, and one attempt in how many fails.
    pace_seconds: float = 0.5
    fail_one_in: int = 6
    #: Whether claims are guarded.
    guarded: bool = True

    @classmethod
    def read(cls, environment: Mapping[str, str] | None = None) -> Settings:
        env = os.environ if environment is None else environment
        return cls(**{name: read(env[variable], variable)
                      for name, (variable, read) in VARIABLES.items() if env.get(variable)})  # fmt: skip

    def open(self) -> Database:
        return Database(engine_on(self.url), make_tables(self.guards))

    def storyteller(self) -> Storyteller:
        return Storyteller(self.pace_seconds, self.fail_one_in)


def _guards(text: str, _: str) -> Guards:
    return Guards.read(text)


def _seconds(text: str, variable: str) -> float:
    return seconds(text, what=variable)


def _count(text: str, variable: str) -> int:
    if not text.isdecimal():
        raise UsageError(f"{variable}={text!r}: give a number from 0")
    return int(text)


def _switch(text: str, variable: str) -> bool:
    if text.lower() not in ("on", "off"):
        raise UsageError(f"{variable}={text!r}: write on or off")
    return text.lower() == "on"


VARIABLES: Mapping[str, tuple[str, Any]] = {
    "url": ("FICTION_URL", lambda text, _: text),
    "guards": ("FICTION_COLUMNS", _guards),
    "stale_seconds": ("FICTION_STALE", _seconds),
    "retry_seconds": ("FICTION_RETRY", _seconds),
    "poll_seconds": ("FICTION_POLL", _seconds),
    "grace_seconds": ("FICTION_GRACE", _seconds),
    "pace_seconds": ("FICTION_PACE", _seconds),
    "fail_one_in": ("FICTION_FAIL_ONE_IN", _count),
    "guarded": ("FICTION_GUARDED", _switch),
}
