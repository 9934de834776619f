"""What can be set, all of it by environment variables. Lengths of time are seconds or a text such as "30m"."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from holdfast import UsageError


@dataclass(frozen=True)
class Settings:
    """`Settings.read()` takes each from its variable: CURATION_BATCH, CURATION_STALE, and so on."""

    #: SQLAlchemy's address of the database, without a driver.
    database: str = "sqlite:///curation.db"
    #: The proxy through which web sites are asked, as host:port; empty asks the sites themselves.
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
    def read(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        given: dict[str, Any] = {}
        for name, variable in VARIABLES.items():
            if variable in environment:
                try:
                    given[name] = _value(environment[variable], type(getattr(cls, name)))
                except ValueError as error:
                    raise UsageError(f"{variable}={environment[variable]!r}: {error}") from None
        return cls(**given)


VARIABLES = {one.name: f"CURATION_{one.name.upper()}" for one in fields(Settings)}


def _value(text: str, kind: type[Any]) -> Any:
    if kind is not bool:
        return kind(text)
    if text.lower() not in ("on", "off"):
        raise ValueError("write on or off")
    return text.lower() == "on"
