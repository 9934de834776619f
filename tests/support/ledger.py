"""A history of what handlers did, kept outside the database: the judge's evidence."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Line:
    """What a handler wrote: that it started, that it ended, or anything else worth knowing."""

    what: str
    key: str
    stage: str
    attempt: int
    pid: int
    #: On the machine's steady clock, which all processes share.
    at: float
    #: The mark of this one execution; it is part of the result.
    mark: str = ""
    #: The mark in the result of the stage before, as this handler got it.
    seen: str = ""


class Ledger:
    """An append-only file outside the database. One write per line, so that no kill can tear two lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read_to = 0
        self._known: list[Line] = []

    def append(self, what: str, key: str, stage: str = "", attempt: int = 0, *, mark: str = "", seen: str = "") -> None:
        line = [what, key, stage, attempt, os.getpid(), time.monotonic(), mark, seen]
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(descriptor, json.dumps(line).encode() + b"\n")
        finally:
            os.close(descriptor)

    def lines(self, what: str | None = None, key: str | None = None, stage: str | None = None) -> list[Line]:
        """What is written so far, as far as it matches."""
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._read_to)
                for raw in file:
                    if raw.endswith(b"\n"):
                        self._read_to += len(raw)
                        self._known.append(Line(*json.loads(raw)))
        return [
            line
            for line in self._known
            if what in (None, line.what) and key in (None, line.key) and stage in (None, line.stage)
        ]

    def starts(self, key: str | None = None, stage: str | None = None) -> list[Line]:
        return self.lines("start", key, stage)

    def ends(self, key: str | None = None, stage: str | None = None) -> list[Line]:
        return self.lines("end", key, stage)
