"""What the handlers say they did, in a file outside the database: the judge believes this, not the engine.

One line per start and per end of a handler, each written at once, so that a kill tears no line.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import NamedTuple


class Line(NamedTuple):
    what: str
    key: str
    stage: str
    #: On the machine's steady clock, which all processes share.
    at: float


class Ledger:
    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, what: str, key: str, stage: str) -> None:
        line = json.dumps(Line(what, key, stage, time.monotonic())) + "\n"
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)

    def read(self) -> list[Line]:
        return [Line(*json.loads(line)) for line in self._path.read_text().splitlines()]
