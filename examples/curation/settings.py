"""What can be set, all of it by environment variables. Lengths of time are seconds or a text such as "30m"."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast import UsageError


def _switch(text: str) -> bool:
    if text.lower() not in ("1", "0", "yes", "no", "on", "off", "true", "false"):
        raise ValueError("write on or off")
    return text.lower() in ("1", "yes", "on", "true")


@dataclass(frozen=True)
class Settings:
    """One value per variable; `Settings.read()` takes them from the environment."""

    #: SQLAlchemy's address of the database, without a driver.
    database: str = "sqlite:///curation.db"
    #: A server that answers for every web site, as host:port; empty asks the sites themselves.
    via: str = "127.0.0.1:8060"
    batch: int = 10
    concurrency: int = 4
    poll: str = "1s"
    #: How many processes may hold rows of a scheduler at a time; 0: any number.
    max_instances: int = 0
    attempts: int = 4
    #: The first pause after a failed attempt; it doubles.
    first_pause: float = 1.0
    #: A row of which nothing was heard for so long is taken from its process.
    stale: str = "2m"
    grace: str = "10s"
    #: How often each loop logs its counters, and looks how far it lags.
    report: str = "60s"
    #: Deep scans of one city only; empty: of all.
    city: str = ""
    #: The switch: off claims as the service did before, and processes rows twice.
    guarded: bool = True
    #: No answer of a site for so long means that the request has failed.
    timeout: float = 10.0

    @classmethod
    def read(cls, environment: Mapping[str, str] | None = None) -> Settings:
        env = os.environ if environment is None else environment
        given: dict[str, Any] = {}
        for name, (variable, kind) in VARIABLES.items():
            if variable not in env:
                continue
            try:
                given[name] = kind(env[variable])
            except ValueError as error:
                raise UsageError(f"{variable}={env[variable]!r}: {error}") from None
        return cls(**given)


#: Each setting's variable, and how it is read.
VARIABLES: Mapping[str, tuple[str, Any]] = {
    name: (f"CURATION_{name.upper()}", kind)
    for name, kind in {
        "database": str, "via": str, "batch": int, "concurrency": int, "poll": str,
        "max_instances": int, "attempts": int, "first_pause": float, "stale": str, "grace": str, "report": str,
        "city": str, "guarded": _switch, "timeout": float,
    }.items()
}  # fmt: skip
