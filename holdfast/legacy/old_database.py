"""An old database as an import sees it: tables that are read in batches and never written. Columns come as text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from holdfast.errors import UsageError
from holdfast.model.did_you_mean import there_are

BATCH = 1000


class OldRow(NamedTuple):
    """A raw row: bytes, so that invalid text can be reported."""

    row: int
    cells: Mapping[str, bytes | None]


class OldTable(Protocol):
    """A table whose rows have numbers."""

    name: str
    columns: Sequence[str]

    def has(self, column: str) -> bool: ...

    def count(self) -> int: ...

    def filled(self, columns: Sequence[str]) -> list[int]:
        """In how many rows each of these columns has a value."""
        ...

    def batches(self, columns: Iterable[str], most: int = BATCH) -> Iterator[list[OldRow]]:
        """All rows, in the order of their numbers."""
        ...

    def rows(self, numbers: Sequence[int], columns: Iterable[str]) -> list[OldRow]:
        """The rows of these numbers, in that order."""
        ...


class OldDatabase(ABC):
    """An old database, which is only read."""

    #: Its address, as it may be shown.
    where: str

    def __enter__(self) -> OldDatabase:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def find(self, table: str) -> OldTable | None:
        """The table of this name; None if there is none."""

    @abstractmethod
    def tables(self) -> list[str]: ...

    def table(self, name: str) -> OldTable:
        """The table of this name; an error if there is none."""
        found = self.find(name)
        if found is None:
            there = there_are(name, self.tables())
            raise UsageError(f"{self.where} has no table {name!r}; {there}; say with --table which to read")
        return found


def unreadable(where: str, error: Exception) -> UsageError:
    said = str(error).strip().partition("\n")[0]
    return UsageError(
        f"{where} cannot be read ({said}); what was imported so far stays, and the same command goes on from there"
    )


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
