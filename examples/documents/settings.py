"""What can be set, all of it by environment variables. Lengths of time are seconds or a text such as "30m"."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from holdfast import Settings as WorkerSettings
from holdfast import seconds

#: How long one attempt of a stage may take. A book of 500 pages takes a slow model a quarter of an hour.
TIMEOUTS = {"extract": "30m", "save_markdown": "1m", "chunk": "5m", "embed": "15m", "connect": "15m"}


@dataclass(frozen=True)
class Settings:
    """`Settings.read()` takes each from its variable: DOCUMENTS_PRICE, and so on; the store from HOLDFAST_URL."""

    #: The store, which is the database of our own tables too.
    store: str = "sqlite:///documents.db"
    #: Where files lie whose items do not say it.
    books: Path = Path("books")
    #: Any server that speaks the chat-completions protocol.
    model_url: str = "http://127.0.0.1:8040/v1"
    model_key: str = "local"
    model_name: str = "local-extractor"
    #: What a call of the local model costs, and of any other whose price is not known.
    price: str = "0.40"
    #: The most that may be spent, in all.
    budget: str | None = None
    calls_at_once: int = 2
    #: Pages sent in one paid call; 0 sends the whole book.
    pages_per_call: int = 0
    #: No answer for so long means that the call has failed.
    call_timeout: str = "2m"
    #: A worker that has given no sign of life for so long is dead (D2). It beats three times in that time, also while
    #: a handler blocks; one whose process is gone from this machine is known to be dead at once.
    stale: str = "30m"
    #: How often a stage of a document is tried.
    attempts: int = 8
    #: The first pause after a failed attempt, and everyone's if the model is overloaded.
    first_pause: str = "1s"
    concurrency: int = 4

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        given: dict[str, Any] = {}
        for one in fields(cls):
            text = environment.get("HOLDFAST_URL" if one.name == "store" else f"DOCUMENTS_{one.name.upper()}")
            if text:
                default = getattr(cls, one.name)
                given[one.name] = text if default is None else type(default)(text)
        return cls(**given)

    def worker(self, **changes: Any) -> WorkerSettings:
        """How a worker of this application works."""
        chosen = {"concurrency": self.concurrency, "lease_seconds": seconds(self.stale, what="DOCUMENTS_STALE")}
        return WorkerSettings(**{**chosen, **changes})
