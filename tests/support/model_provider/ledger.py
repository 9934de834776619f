"""What the server wrote down: one line for each request, before its reply goes out.

    ledger.total()                        what was charged in all
    ledger.charged("chapter 3")           the charges whose prompt has these words in it
    ledger.await_charged("chapter 3")     the same, once there is one

The server writes, tests read, and a killed client changes nothing in it.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from decimal import Decimal
from pathlib import Path
from typing import TypeVar

from tests.support.waiting import STUCK_SECONDS, wait_for

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Entry:
    """One request, as the provider saw it."""

    #: Counted from 1, in the order in which they were judged.
    number: int
    dialect: str
    route: str
    model: str
    prompt: str
    stream: bool
    #: 0 if no status was sent.
    status: int
    fault: str
    charged: bool
    tokens_in: int
    cached: int
    tokens_out: int
    reasoning: int
    amount: Decimal
    idempotency_key: str | None


class ProviderLedger:
    """An append-only file."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._lock = threading.Lock()
        self._count = 0
        self._read_to = 0
        self._known: list[Entry] = []

    # The server's side ------------------------------------------------------------------------------------------------

    def append(self, make: Callable[[int], Entry]) -> None:
        """Write one line, in one write, under the next number."""
        with self._lock:
            self._count += 1
            line = asdict(make(self._count))
            line["amount"] = str(line["amount"])
            descriptor = os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                os.write(descriptor, json.dumps(line).encode() + b"\n")
            finally:
                os.close(descriptor)

    # The tests' side --------------------------------------------------------------------------------------------------

    def entries(self, containing: str = "", *, after: int = 0) -> list[Entry]:
        """Every request with these words in its prompt, from the first one or after a number."""
        if self.file.exists():
            with self.file.open("rb") as file:
                file.seek(self._read_to)
                for raw in file:
                    if raw.endswith(b"\n"):
                        self._read_to += len(raw)
                        line = json.loads(raw)
                        self._known.append(Entry(**line | {"amount": Decimal(line["amount"])}))
        return [entry for entry in self._known[after:] if containing in entry.prompt]

    def charged(self, containing: str = "", *, after: int = 0) -> list[Entry]:
        return [entry for entry in self.entries(containing, after=after) if entry.charged]

    def refused(self, containing: str = "", *, after: int = 0) -> list[Entry]:
        return [entry for entry in self.entries(containing, after=after) if not entry.charged]

    def total(self, containing: str = "") -> Decimal:
        return sum((entry.amount for entry in self.charged(containing)), Decimal(0))

    def await_charged(self, containing: str = "", count: int = 1, timeout: float = STUCK_SECONDS) -> list[Entry]:
        """The charges, once there are as many."""
        return self.await_fact(lambda: len(found := self.charged(containing)) >= count and found, timeout) or []

    def await_fact(self, fact: Callable[[], T], timeout: float = STUCK_SECONDS) -> T:
        return wait_for(fact, timeout)
