"""What a workload is: cases, a way to measure one of them, and the figures that come of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.contenders import Contender
from benchmarks.databases import Database

#: From the name of a figure to its value; None where it does not apply.
Figures = dict[str, float | None]


@dataclass(frozen=True)
class Options:
    """How much is measured."""

    items: int
    rounds: int
    #: How many rows W5, W8, W10 and W11 have, from few to very many.
    sizes: tuple[int, ...]
    lease_seconds: float
    #: When a measurement that does not end is given up.
    patience_seconds: float
    quick: bool = False
    #: Where SQLite files that were filled for W11 stay, to be used again.
    kept: Path | None = None

    def share(self, contender: Contender, items: int) -> int:
        """How many of the items a contender gets."""
        return max(min(items, 100), round(items * contender.share))


@dataclass(frozen=True)
class Figure:
    """One kind of number; the first of a workload is the one that is compared and drawn."""

    key: str
    title: str
    show: Callable[[float], str]
    #: Whether more is better.
    rises: bool = True


@dataclass(frozen=True)
class Case:
    """One variation of a workload."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    #: The case to compare with, of the same contender.
    base: str | None = None
    #: Only on these databases; on all if empty.
    databases: tuple[str, ...] = ()


class Workload:
    """Derived classes say what is measured."""

    name: str
    title: str
    figures: Sequence[Figure]
    #: What `against` means in the table's head: the base case.
    base_title = ""

    def cases(self, options: Options) -> list[Case]:
        raise NotImplementedError

    def measure(self, contender: Contender, database: Database, case: Case, options: Options) -> Figures:
        raise NotImplementedError

    def takes_part(self, contender: Contender, database: Database, case: Case) -> bool:
        return (
            self.name in contender.workloads
            and database.kind in contender.databases
            and (not case.databases or database.kind in case.databases)
        )

    def close(self) -> None:
        """Remove what was kept between rounds."""


def whole(value: float) -> str:
    return f"{value:,.0f}"


def ratio(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def milliseconds(value: float) -> str:
    return f"{value:.0f} ms" if value >= 100 else f"{value:.1f} ms" if value >= 1 else f"{value:.2f} ms"
