"""One line that says how far a long command has come: redrawn on a terminal, printed now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TextIO

#: On a terminal the line is drawn this often, elsewhere printed that often.
DRAW_SECONDS, LINE_SECONDS = 0.25, 5.0


class ProgressLine:
    """Nothing is shown of what is over at once."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stderr
        self._on_terminal = self._out.isatty()
        self._seconds = DRAW_SECONDS if self._on_terminal else LINE_SECONDS
        self._next_at = time.monotonic() + self._seconds
        self._drawn = False

    def draw(self, line: str) -> None:
        now = time.monotonic()
        if now < self._next_at:
            return
        self._next_at = now + self._seconds
        self._drawn = True
        print(
            f"\r\x1b[K{line}" if self._on_terminal else line,
            end="" if self._on_terminal else "\n",
            file=self._out,
            flush=True,
        )

    def close(self) -> None:
        if self._drawn and self._on_terminal:
            print(file=self._out, flush=True)
