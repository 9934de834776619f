"""The problems of a job file, each with file, line, column and path of keys, reported together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.errors import DefinitionError

#: How many are listed; a broken file may have thousands.
SHOWN = 50
#: How long one may be, in characters.
LONGEST = 1000


class Position(NamedTuple):
    """A position in the file, counted from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem, and what was expected instead."""

    file: str
    line: int
    column: int
    #: The keys that lead there, as in `pipelines.books.stages.extract.timeout`.
    path: str
    what: str

    def __str__(self) -> str:
        what = f"{self.path}: {self.what}" if self.path else self.what
        return f"{self.file}:{self.line}:{self.column}: {what}"


class JobFileError(DefinitionError):
    """A job file that cannot be used; `problems` is everything that is wrong with it."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(sorted(problems, key=lambda one: (one.line, one.column)))
        super().__init__("\n".join(self.lines))

    @property
    def lines(self) -> list[str]:
        """One line for each, the first ones if there are many."""
        lines = [str(one) for one in self.problems[:SHOWN]]
        if len(self.problems) > SHOWN:
            lines.append(f"{self.problems[0].file}: and {len(self.problems) - SHOWN:,} more")
        return lines

    @property
    def file(self) -> str:
        return self.problems[0].file

    @property
    def line(self) -> int:
        return self.problems[0].line

    @property
    def column(self) -> int:
        return self.problems[0].column

    @property
    def path(self) -> str:
        return self.problems[0].path


class Problems:
    """Collects the problems of one file. Every text goes through `mask` first."""

    def __init__(self, file: str, mask: Callable[[str], str] = str) -> None:
        self.file = file
        self._mask = mask
        self._found: list[Problem] = []

    def __len__(self) -> int:
        return len(self._found)

    def add(self, place: Position, path: str, what: str) -> None:
        self._found.append(Problem(self.file, *place, _one_line(path), _one_line(self._mask(what))))

    def end(self, place: Position, what: str, path: str = "") -> JobFileError:
        """The error to raise if nothing more can be read: this problem and all found before it."""
        self.add(place, path, what)
        return JobFileError(self._found)

    def raise_any(self) -> None:
        """Raise all problems found, if there are any."""
        if self._found:
            raise JobFileError(self._found)


def below(path: str, key: str) -> str:
    """The path of a key."""
    shown = key if key.isprintable() and key.strip() == key and key else repr(key)
    shown = shown if len(shown) <= 60 else f"{shown[:59]}…"
    return f"{path}.{shown}" if path else shown


def _one_line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
