"""A terminal for commands that draw: a real pseudo-terminal, and what a person would see on it.

    with Terminal(["top"], {"HOLDFAST_URL": url}) as terminal:
        terminal.wait_for("extract")
        terminal.type("q")
        assert terminal.exit_code() == 0

The command runs in the foreground of a small shell (`tests.support.terminal_main`), which takes the terminal while the command
is stopped, and brings it back when F and a line feed are typed. A control
sequence that is not among those that a drawing needs is noted as
`strange`.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.cells import cell_len

from tests.support.mother import Forked

STUCK_SECONDS = 120.0

_SEQUENCE = re.compile(r"\x1b\[(\??)([0-9;]*)([A-Za-z])")
_BEGUN = re.compile(r"\x1b(\[\??[0-9;]*)?\Z")


class Screen:
    """The letters on a screen, as far as the sequences are understood."""

    def __init__(self, columns: int, lines: int) -> None:
        self.columns, self.lines = columns, lines
        self.is_second = False
        self.has_cursor = True
        self.styles: set[str] = set()
        self.strange: list[str] = []
        #: Lines that were longer than the screen is wide.
        self.wrapped = 0
        self._first = self._rows = self._empty()
        self._at = [0, 0]
        self._first_at = [0, 0]
        self._rest = ""

    @property
    def text(self) -> str:
        return "\n".join("".join(row).rstrip() for row in self._rows)

    def resize(self, columns: int, lines: int) -> None:
        self.columns, self.lines = columns, lines
        self._rows = self._empty()

    def feed(self, text: str) -> None:
        text = self._rest + text
        self._rest = ""
        while text:
            if _BEGUN.match(text):
                self._rest = text
                return
            found = _SEQUENCE.match(text)
            if found:
                self._control(*found.groups())
                text = text[found.end() :]
            else:
                self._letter(text[0])
                text = text[1:]

    def _empty(self) -> list[list[str]]:
        return [[" "] * self.columns for _ in range(self.lines)]

    def _control(self, private: str, numbers: str, letter: str) -> None:
        given = [int(one or 0) for one in numbers.split(";")]
        if letter == "m" and not private:
            self.styles.add(numbers)
        elif letter == "H" and not private:
            self._at = [max(given[0], 1) - 1, (max(given[1], 1) if len(given) > 1 else 1) - 1]
        elif letter == "K" and numbers in ("", "0"):
            row, column = self._at
            if row < self.lines:
                self._rows[row][column:] = [" "] * (self.columns - column)
        elif letter == "J" and numbers == "2":
            self._rows = self._empty()
        elif private and letter in "hl" and given[0] == 25:
            self.has_cursor = letter == "h"
        elif private and letter in "hl" and given[0] == 1049:
            self.is_second = letter == "h"
            if self.is_second:
                self._first, self._first_at = self._rows, list(self._at)
            self._rows = self._empty() if self.is_second else self._first
            self._at = [0, 0] if self.is_second else list(self._first_at)
        else:
            self.strange.append(f"\x1b[{private}{numbers}{letter}")

    def _letter(self, letter: str) -> None:
        row, column = self._at
        if letter == "\r":
            self._at = [row, 0]
        elif letter == "\n":
            if row == self.lines - 1:
                self._rows = [*self._rows[1:], [" "] * self.columns]
            self._at = [min(row + 1, self.lines - 1), column]
        elif not letter.isprintable():
            self.strange.append(letter)
        elif column + cell_len(letter) > self.columns:
            self.wrapped += 1
        elif row < self.lines:
            self._rows[row][column] = letter
            self._at = [row, column + cell_len(letter)]


class Terminal:
    """A command of holdfast on a terminal of its own."""

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], *, columns: int = 80, lines: int = 24
    ) -> None:
        self.screen = Screen(columns, lines)
        self.received = b""
        self._master, slave = os.openpty()
        self._set_size(columns, lines)
        self.attributes_before = self.attributes
        given = {**os.environ, "TERM": "xterm-256color", **environment}
        for name in ("COLUMNS", "LINES", *(["NO_COLOR"] if "NO_COLOR" not in environment else [])):
            given.pop(name, None)
        name = os.ttyname(slave)
        self._process = Forked(
            "tests.support.terminal_main", [name, *arguments], given, stdout=subprocess.DEVNULL, folder=Path.cwd()
        )
        self._slave = slave

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        os.close(self._slave)
        os.close(self._master)

    @property
    def attributes(self) -> list[object]:
        """How the terminal is set: whether it echoes, waits for whole lines, and so on."""
        found = termios.tcgetattr(self._master)
        return [*found[:6], list(found[6])]

    @property
    def text(self) -> str:
        return self.screen.text

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def resize(self, columns: int, lines: int) -> None:
        self.read()
        self.screen.resize(columns, lines)
        self._set_size(columns, lines)

    def _set_size(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def read(self, seconds: float = 0.0) -> None:
        """Take up what was written, and wait for it if need be."""
        while select.select([self._master], [], [], seconds)[0]:
            data = os.read(self._master, 65536)
            self.received += data
            self.screen.feed(data.decode(errors="replace"))
            seconds = 0.0

    def wait(self, fact: Callable[[], object], what: str = "") -> None:
        give_up_at = time.monotonic() + STUCK_SECONDS
        self.read()
        while not fact():
            assert time.monotonic() < give_up_at, f"waited in vain{f' for {what!r}' if what else ''}:\n{self.text}"
            self.read(0.2)

    def wait_for(self, *texts: str) -> None:
        self.wait(lambda: all(one in self.text for one in texts), " and ".join(texts))

    def wait_for_line(self, *words: str) -> None:
        """Wait for a line with exactly these words, whatever space is between them."""
        self.wait(lambda: [*words] in [line.split() for line in self.text.splitlines()], " ".join(words))

    def pid(self) -> int:
        """The process of the command. What it has drawn since may already stand in place of that line."""
        began = re.compile(rb"\[began (\d+)\]")
        self.wait(lambda: began.search(self.received), "[began ")
        found = began.search(self.received)
        assert found is not None
        return int(found[1])

    def exit_code(self) -> int:
        """Of the command, once the shell has said it; negative for a signal."""
        self.wait_for("[ended ")
        found = re.search(r"\[ended (-?\d+)\]", self.text)
        assert found is not None
        return int(found[1])
