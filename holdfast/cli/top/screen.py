"""The terminal while `top` draws on it: writes few bytes, and restores the terminal however `top` ends."""

from __future__ import annotations

import errno
import math
import os
import select
import sys
import termios
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from io import StringIO
from typing import Any

#: A second screen without a cursor, and back.
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l\x1b[2J", "\x1b[0m\x1b[?25h\x1b[?1049l"
#: What a terminal is taken for that does not know its size.
USUAL_SIZE = (80, 24)
#: A terminal with room for some bytes has room for this many at least.
CHUNK = 256
#: A terminal that takes nothing for so long is left as it is; how often it is looked whether that is so.
LEAVE_SECONDS, LOOK_SECONDS = 2.0, 0.25
#: How many lines that were meant for stderr are kept for later.
MOST_HELD = 20


class Screen:
    """`with screen:` takes the terminal and gives it back."""

    def __init__(self, reads: int, writes: int) -> None:
        self._reads, self._writes = reads, writes
        self._before: list[Any] | None = None
        self._lines: list[str] = []
        self._cursor: tuple[int, int] | None = None
        #: Whether nobody needs any more what is being written.
        self.is_given_up: Callable[[], bool] = lambda: False

    def __enter__(self) -> Screen:
        self.enter()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def enter(self) -> None:
        """Take the terminal, also again after somebody else had it."""
        attributes = termios.tcgetattr(self._reads)
        if self._before is None:
            self._before = [*attributes[:6], list(attributes[6])]
        # Keys come at once and are not shown. Those for signals stay; one that stops all output would stop us as well.
        attributes[0] &= ~termios.IXON
        attributes[3] &= ~(termios.ECHO | termios.ICANON)
        attributes[6][termios.VMIN], attributes[6][termios.VTIME] = 1, 0
        termios.tcsetattr(self._reads, termios.TCSANOW, attributes)
        self.write(ENTER)
        self.forget()

    def leave(self) -> None:
        """Give the terminal back as it was; nothing if it is not ours, or is gone."""
        before, self._before = self._before, None
        if before is None:
            return
        with suppress(OSError, termios.error):
            # In the background it belongs to others: touching it would stop this process.
            if os.tcgetpgrp(self._reads) == os.getpgrp():
                termios.tcsetattr(self._reads, termios.TCSANOW, before)
                self.write(LEAVE, LEAVE_SECONDS)

    def forget(self) -> None:
        """Draw all lines next time: what is on the screen is not known any more."""
        self._lines, self._cursor = [], None

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        try:
            found = os.get_terminal_size(self._writes)
        except OSError:
            return USUAL_SIZE
        return found.columns or USUAL_SIZE[0], found.lines or USUAL_SIZE[1]

    def draw(self, lines: Sequence[str], cursor: tuple[int, int] | None = None) -> None:
        """Show these lines, and the cursor at a place of column and line; only what has changed is sent."""
        parts = []
        if not self._lines:
            parts.append("\x1b[0m\x1b[2J")
        for at in range(max(len(lines), len(self._lines))):
            line = lines[at] if at < len(lines) else ""
            if at >= len(self._lines) or line != self._lines[at]:
                # Erased first: after a line as wide as the screen, some terminals would erase its last letter.
                parts.append(f"\x1b[{at + 1}H\x1b[K{line}")
        if parts or cursor != self._cursor:
            parts.append("\x1b[?25l" if cursor is None else f"\x1b[{cursor[1] + 1};{cursor[0] + 1}H\x1b[?25h")
            self.write("".join(parts))
        self._lines, self._cursor = list(lines), cursor

    def write(self, text: str, patience_seconds: float = math.inf) -> None:
        """All of it, in pieces, so that a terminal which takes nothing can be given up."""
        data = memoryview(text.encode(sys.stdout.encoding or "utf-8", "replace"))
        give_up_at = time.monotonic() + patience_seconds
        while data:
            if select.select([], [self._writes], [], LOOK_SECONDS)[1]:
                data = data[os.write(self._writes, data[:CHUNK]) :]
            elif self.is_given_up() or time.monotonic() > give_up_at:
                raise OSError(errno.EIO, "the terminal takes nothing")


class _Held(StringIO):
    """Keeps the last lines."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: deque[str] = deque(maxlen=MOST_HELD)

    def write(self, text: str, /) -> int:
        self.lines.extend(line for line in text.splitlines() if line)
        return len(text)


@contextmanager
def held_stderr() -> Iterator[None]:
    """Print what is meant for stderr, such as warnings, only afterwards: it would be in the middle of the screen."""
    if not sys.stderr.isatty():
        yield
        return
    held = _Held()
    try:
        with redirect_stderr(held):
            yield
    finally:
        for line in held.lines:
            print(line, file=sys.stderr)
