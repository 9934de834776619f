"""What an action would do, before it does it: how many, at which stages, a few of them, and what they have cost.

With a limit it stops there, and costs the same however much there is to do.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

from holdfast.engine.layout import layout
from holdfast.engine.selection import CHUNK, ActionPlace, Meant, Who
from holdfast.model.facts import Facts
from holdfast.store import Store, Transaction

#: How many a preview shows.
SAMPLES = 5


class ActionKind(Protocol):
    """A kind of action: its fields are what was asked for."""

    name: ClassVar[str]
    #: The event it records for each item.
    event: ClassVar[str]

    def begin(self, tx: Transaction) -> ActionPlace:
        """The place to start at; an error if what was asked for makes no sense."""
        ...

    def choose(self, tx: Transaction, place: ActionPlace) -> tuple[list[Any], ActionPlace | None]:
        """The next chunk, and the place after it; None at the end."""
        ...

    def count(self, tx: Transaction, rows: list[Any]) -> Counter[str]:
        """What acting on these rows would do."""
        ...

    def meant(self, rows: list[Any]) -> list[Meant]:
        """The items of these rows, and what of them."""
        ...

    def act(self, tx: Transaction, rows: list[Any], who: Who) -> Counter[str]:
        """Act on them; return what was done."""
        ...


@runtime_checkable
class LooksAhead(Protocol):
    """A kind of action that can be counted without choosing chunk by chunk."""

    def look_ahead(self, tx: Transaction, place: ActionPlace, most: int) -> tuple[list[Any], bool] | None:
        """Up to so many of the rows from a place on, in no order, as far as one answer looks; and whether there may be more.
        None if this filter has to be counted by chunks."""
        ...


@dataclass(frozen=True, slots=True)
class Forecast:
    """What would be acted on: by pipeline and stage; a few of them; and what their recorded answers have cost."""

    stages: Mapping[tuple[str, str], int] = field(default_factory=dict)
    samples: tuple[Facts, ...] = ()
    #: None if nothing that is meant has a cost of its own.
    cost: int | None = None


@dataclass(slots=True)
class Ahead:
    """What was seen so far."""

    counts: Counter[str] = field(default_factory=Counter)
    more: bool = False
    stages: Counter[int] = field(default_factory=Counter)
    some: list[Meant] = field(default_factory=list)
    cost: int | None = None

    def add(self, counts: Counter[str], meant: list[Meant]) -> None:
        self.counts += counts
        self.stages.update(one.stage for one in meant if one.stage is not None)
        self.some += meant[: SAMPLES - len(self.some)]
        if costs := [one.cost for one in meant if one.cost is not None]:
            self.cost = (self.cost or 0) + sum(costs)

    def forecast(self, tx: Transaction) -> Forecast:
        known = layout(tx).stages
        stages = {(known[one].pipeline_name, known[one].name): n for one, n in self.stages.items() if one in known}
        keys = {
            row["id"]: row["key"] for row in tx.records("read_items", items=sorted({one.item for one in self.some}))
        }
        samples = [
            {
                "key": keys[one.item],
                "pipeline": None if one.stage is None else known[one.stage].pipeline_name,
                "stage": None if one.stage is None else known[one.stage].name,
                "state": one.state,
                "memo": one.memo,
                "cost": one.cost,
            }
            for one in self.some
            if one.item in keys and (one.stage is None or one.stage in known)
        ]
        return Forecast(stages, tuple(samples), self.cost)


def look_ahead(store: Store, kind: ActionKind, place: ActionPlace | None, most: int | None) -> Ahead:
    """What acting from a place on would do; with a limit, up to that, in so many entries."""
    seen = Ahead()
    if isinstance(kind, LooksAhead) and place is not None and most is not None:
        ahead, here, limit = kind, place, most

        def at_once(tx: Transaction) -> tuple[Counter[str], list[Meant], bool] | None:
            found = ahead.look_ahead(tx, here, limit)
            return None if found is None else (kind.count(tx, found[0]), kind.meant(found[0]), found[1])

        if (found := store.read(at_once)) is not None:
            counts, meant, seen.more = found
            seen.add(counts, meant)
            return seen
    chunks = itertools.count() if most is None else range(max(1, most // CHUNK))
    for _ in chunks:
        if place is None or (most is not None and seen.counts.total() >= most):
            break

        def look(tx: Transaction, place: ActionPlace = place) -> tuple[Counter[str], list[Meant], ActionPlace | None]:
            rows, behind = kind.choose(tx, place)
            return kind.count(tx, rows), kind.meant(rows), behind

        counts, meant, place = store.read(look)
        seen.add(counts, meant)
    seen.more = place is not None
    return seen
