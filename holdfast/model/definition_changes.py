"""Pipeline changes, as values: how a definition differs from what a store knows, with the price of the new work."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal

import msgspec

from holdfast.model.durations import spoken as length
from holdfast.model.money import decimal, micros, spoken
from holdfast.model.shell_quoting import word


class NewWork(msgspec.Struct, frozen=True):
    """A stage that will run for items that existed before it."""

    stage: str
    items: int
    #: The expected cost in all; None if unknown.
    cost: Decimal | None
    #: The expected time of all handlers, one after another; None if unknown.
    handler_time: timedelta | None
    #: Whether it was removed before and is brought back.
    is_back: bool


class Removed(msgspec.Struct, frozen=True):
    """A stage that is gone. Its results are kept."""

    stage: str
    results: int
    #: What it has cost.
    cost: Decimal


class Renamed(msgspec.Struct, frozen=True):
    """A stage with a new name. It keeps its results."""

    stage: str
    was: str
    results: int


class Rewired(msgspec.Struct, frozen=True):
    """A stage that comes after other stages than before."""

    stage: str
    was: tuple[str, ...]
    after: tuple[str, ...]


class Moved(msgspec.Struct, frozen=True):
    """The file that defines the pipeline, if it is another one."""

    was: str
    now: str


class Changes(msgspec.Struct, frozen=True):
    """How a pipeline differs from what the store knows."""

    pipeline: str
    added: tuple[NewWork, ...] = ()
    removed: tuple[Removed, ...] = ()
    renamed: tuple[Renamed, ...] = ()
    rewired: tuple[Rewired, ...] = ()
    file: Moved | None = None
    #: The new work whose price a person should accept before it begins: the reason, by stage.
    on_hold: Mapping[str, str] = msgspec.field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.renamed or self.rewired or self.file)

    def __str__(self) -> str:
        return "\n".join(self.lines())

    @property
    def price(self) -> Decimal:
        """The expected cost of all new work, as far as it is known."""
        return decimal(sum(micros(one.cost) for one in self.added if one.cost))

    def lines(self) -> list[str]:
        """For people: one line per change."""
        lines = [
            f"renamed  {one.was} → {one.stage}: {results(one.results)} and their history come along"
            for one in self.renamed
        ]
        for new in self.added:
            cost = "cost not known" if new.cost is None else f"expected cost {spoken(new.cost)}"
            took = None if new.handler_time is None else new.handler_time.total_seconds()
            time = "time not known" if took is None else f"handler time {length(took)}"
            begin = "is back " if new.is_back else "added   "
            lines.append(f"{begin} {new.stage}: runs for {items(new.items)}; {cost}, {time}")
        for gone in self.removed:
            cost = f", which cost {spoken(gone.cost)}," if gone.cost else ""
            lines.append(f"removed  {gone.stage}: {results(gone.results)}{cost} are kept, and nothing of it runs")
        for other in self.rewired:
            lines.append(f"rewired  {other.stage}: comes after {_names(other.after)} now (before: {_names(other.was)})")
        if self.file:
            lines.append(f"moved    it comes from {self.file.now} now (before: {self.file.was})")
        return lines

    def held_lines(self, *, yet_to_come: bool = False) -> list[str]:
        """For people: what is put on hold unless it is accepted, and the command that releases it."""
        on_hold = "would be put on hold" if yet_to_come else "is on hold"
        return [
            f"The new work of {stage} {on_hold}: {why}. To let it run: {release(self.pipeline, stage)}"
            for stage, why in self.on_hold.items()
        ]


def release(pipeline: str, stage: str) -> str:
    """The command that releases the held work of a stage."""
    return f"holdfast retry --state on_hold --pipeline {word(pipeline)} --stage {word(stage)}"


def items(n: int) -> str:
    return "1 item" if n == 1 else f"{n:,} items"


def results(n: int) -> str:
    return "1 result" if n == 1 else f"{n:,} results"


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "nothing"
