"""What can be set, all of it by environment variables. Lengths of time are seconds or a text such as "2m"."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from examples.fiction.database import GUARDS, Database
from holdfast import UsageError, seconds


@dataclass(frozen=True)
class Settings:
    """`Settings.read()` takes each from its variable: FICTION_URL, FICTION_STALE, and so on."""

    url: str = "sqlite:///fiction.db"
    #: The optional columns that holdfast may use.
    columns: tuple[str, ...] = tuple(GUARDS)
    #: What has been silent for so long is resumed. Without a heartbeat column: longer than any phase takes.
    stale: float = 30.0
    #: The first pause after a failed attempt.
    retry: float = 5.0
    #: How often to look when there was nothing to do.
    poll: float = 1.0
    #: How long a stop waits for the piece in hand.
    grace: float = 10.0
    #: The fake storyteller: seconds for a paragraph, and one attempt in how many fails.
    pace: float = 0.5
    fail_one_in: int = 6
    #: Whether claims are guarded.
    guarded: bool = True

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        given = {name: variable for name, variable in VARIABLES.items() if environment.get(variable)}
        return cls(
            **{
                name: _READ[type(getattr(cls, name))](environment[variable], variable)
                for name, variable in given.items()
            }
        )

    def open(self) -> Database:
        return Database(self.url, self.columns)


VARIABLES = {one.name: f"FICTION_{one.name.upper()}" for one in fields(Settings)}


def _columns(text: str, variable: str) -> tuple[str, ...]:
    named = {word.strip() for word in text.split(",")} - {"", "none"}
    if unknown := sorted(named - GUARDS.keys()):
        raise UsageError(f"{variable}: {', '.join(unknown)}: there are {', '.join(GUARDS)}; or write none")
    return tuple(name for name in GUARDS if name in named)


def _count(text: str, variable: str) -> int:
    if not text.isdecimal():
        raise UsageError(f"{variable}={text!r}: give a number from 0")
    return int(text)


def _switch(text: str, variable: str) -> bool:
    if text.lower() not in ("on", "off"):
        raise UsageError(f"{variable}={text!r}: write on or off")
    return text.lower() == "on"


_READ: Mapping[type, Callable[[str, str], Any]] = {
    str: lambda text, _: text,
    tuple: _columns,
    int: _count,
    bool: _switch,
    float: lambda text, variable: seconds(text, what=variable),
}
