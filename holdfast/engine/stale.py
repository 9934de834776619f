"""Stale: what was made by a version of its handler, or from an input, that is no longer today's.

`plan` says what a run over all that is stale would do, from recorded history; `Reprocess` does it: the first stale stage
of each item runs again, and what is behind it runs again if its input has changed or it is stale itself. Where the new
output equals the old one, what was made from it is kept.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from msgspec.structs import replace

from holdfast.engine.checkpoints import ItemPicture, read_pictures
from holdfast.engine.choose import Place, Which, Who, beginning
from holdfast.engine.hold import hold_for_version
from holdfast.engine.pages import few_items
from holdfast.engine.register import layout
from holdfast.errors import UsageError
from holdfast.model.layout import Layout, StageRow
from holdfast.model.pattern import Pattern
from holdfast.model.states import PASSED, Rerun, State
from holdfast.store import Store, Transaction

CHUNK = 500


class Stale(NamedTuple):
    """A stage of an item that should run again, and why."""

    item: int
    key: str
    stage: StageRow
    #: `version`, `input changed`, `asked` for though it is not stale, or `upstream`: only if what comes before it changes.
    why: str
    #: What it cost and how long it took the last time.
    cost: int
    took_us: int
    #: Whether it is the first in its item: the others follow it by themselves.
    first: bool


@dataclass(slots=True)
class StageForecast:
    """What a run over all that is stale would do at one stage."""

    stage: str
    why: Counter[str] = field(default_factory=Counter)
    #: Sure to run, and those that run only if what comes before them changes.
    sure: int = 0
    perhaps: int = 0
    cost: int = 0
    perhaps_cost: int = 0
    took_us: int = 0
    #: One standard deviation of the sure cost, from how much single costs differ.
    spread: float = 0.0


def plan(store: Store, pipeline: str, *, stage: str | None = None, key: str | None = None) -> list[StageForecast]:
    """Per stage: what is stale and why, how many items would run, what that would cost and how long it would take."""
    forecasts: dict[int, StageForecast] = {}
    spreads: dict[int, float] = {}
    for stale in find(store, pipeline, stage=stage, key=key):
        number = stale.stage.id
        forecast = forecasts.setdefault(number, StageForecast(stale.stage.name))
        if number not in spreads:
            spreads[number] = store.read(lambda tx, number=number: _deviation(tx, number))  # type: ignore[misc]
        forecast.why[stale.why] += 1
        if stale.why == "upstream":
            forecast.perhaps += 1
            forecast.perhaps_cost += stale.cost
        else:
            forecast.sure += 1
            forecast.cost += stale.cost
            forecast.took_us += stale.took_us
    for number, forecast in forecasts.items():
        forecast.spread = spreads[number] * math.sqrt(forecast.sure)
    return list(forecasts.values())


@dataclass(frozen=True, slots=True)
class Reprocess:
    """Send the first stale stage of each item back to pending, as a wave; with `stale_only` off, the first of every item or,
    with a stage given, that one. Counted by stage.

    Stops before the item whose forecast does not fit the budget, or after `limit` items.
    """

    name: ClassVar[str] = "reprocess"
    event: ClassVar[str] = "reprocessed"
    pipeline: str
    stage: str | None = None
    key: str | None = None
    stale_only: bool = True
    budget: int | None = None
    limit: int | None = None

    def begin(self, tx: Transaction) -> Place:
        return replace(beginning(tx, Which(self.pipeline)), budget=self.budget, limit=self.limit)

    def choose(self, tx: Transaction, place: Place) -> tuple[list[Stale], Place | None]:
        found, last = _stretch(tx, self.pipeline, self.stage, self.key, self.stale_only, place.item)
        chosen: list[Stale] = []
        budget, limit = place.budget, place.limit
        for item, group in _by_item(iter(found)):
            price = sum(one.cost for one in group if one.why != "upstream")
            if item > place.until or limit == 0 or (budget is not None and price > budget):
                return chosen, None
            budget = None if budget is None else budget - price
            limit = None if limit is None else limit - 1
            chosen += [one for one in group if one.first]
        return chosen, _next(place, last, budget=budget, limit=limit)

    def count(self, tx: Transaction, rows: list[Stale]) -> Counter[str]:
        return Counter(one.stage.name for one in rows)

    def act(self, tx: Transaction, rows: list[Stale], who: Who) -> Counter[str]:
        return _reopen(tx, rows, who)


@dataclass(frozen=True, slots=True)
class Accept:
    """Mark results of older versions as good: they count as today's from now on. Counted by stage."""

    name: ClassVar[str] = "accept"
    event: ClassVar[str] = "accepted"
    pipeline: str
    stage: str | None = None
    key: str | None = None

    def begin(self, tx: Transaction) -> Place:
        return beginning(tx, Which(self.pipeline))

    def choose(self, tx: Transaction, place: Place) -> tuple[list[Stale], Place | None]:
        found, last = _stretch(tx, self.pipeline, self.stage, self.key, True, place.item)
        # With a stage given, those that follow it are found too: they would run again, but they are not meant here.
        meant = [one for one in found if one.why == "version" and self.stage in (None, one.stage.name)]
        return [one for one in meant if one.item <= place.until], _next(place, last)

    def count(self, tx: Transaction, rows: list[Stale]) -> Counter[str]:
        return Counter(one.stage.name for one in rows)

    def act(self, tx: Transaction, rows: list[Stale], who: Who) -> Counter[str]:
        count: Counter[str] = Counter()
        for row in {one.stage.id: one.stage for one in rows}.values():
            items = [one.item for one in rows if one.stage.id == row.id]
            for [item] in tx.run("accept_versions", stage=row.id, version=row.version, items=items):
                count[row.name] += 1
                tx.record(
                    "accepted", pipeline=row.pipeline, item=item, stage=row.id, version=row.version, **who.facts
                )  # fmt: skip
        return count


def _next(place: Place, last: int | None, **more: Any) -> Place | None:
    """The place behind an item; None if there is nothing more to look at."""
    return None if last is None or last >= place.until else replace(place, item=last, **more)


def find(
    store: Store, pipeline: str, *, stage: str | None = None, key: str | None = None, stale_only: bool = True
) -> Iterator[Stale]:
    """Everything stale in a pipeline, item by item, in the order of stages; stretches are read one after another."""
    after = 0
    while True:

        def step(tx: Transaction, after: int = after) -> tuple[list[Stale], int | None]:
            return _stretch(tx, pipeline, stage, key, stale_only, after)

        found, last = store.read(step)
        yield from found
        if last is None:
            return
        after = last


def _stretch(
    tx: Transaction, pipeline: str, stage: str | None, key: str | None, stale_only: bool, after: int
) -> tuple[list[Stale], int | None]:
    known = layout(tx)
    stages = known.of_pipeline(pipeline)
    if not stages:
        raise UsageError(f"there is no pipeline {pipeline!r} in this store")
    if stage is not None and stage not in {row.name for row in stages}:
        raise UsageError(f"pipeline {pipeline!r} has no stage {stage!r}")
    few = few_items(tx, [stages[0].pipeline], Pattern() if key is None else Pattern(key)) if not after else None
    if few is not None:
        items = tx.run("items_by_number", items=few)
    else:
        pattern = None if key is None else tx.store.driver.dialect.glob_pattern(key)
        items = tx.run("items_with_data", pipeline=stages[0].pipeline, after=after, key=pattern, most=CHUNK)
    found: list[Stale] = []
    for picture in read_pictures(tx, items, stages) if items else ():
        found += _look(known, stages, stage, stale_only, picture)
    return found, items[-1][0] if few is None and len(items) == CHUNK else None


def _look(
    known: Layout, stages: list[StageRow], only: str | None, stale_only: bool, picture: ItemPicture
) -> Iterator[Stale]:  # fmt: skip
    """The stages of one item that are stale, in order. What is open already will run anyway."""
    tainted: set[int] = set()
    for row in stages:
        before = known.parents(row.id)
        upstream = any(parent in tainted for parent in before)
        if row.id in picture.open:
            tainted.add(row.id)
            continue
        made = picture.made.get(row.id)
        if made is None or not made.passed or not picture.has_all(before):
            # It has nothing to be made from now; when what comes before it has passed again, it follows by itself.
            continue
        if only is not None and row.name != only and not upstream:
            continue
        why = None
        if not row.stands(made.version):
            why = "version"
        elif picture.has_other_input(row.id, before):
            why = "input changed"
        elif upstream:
            why = "upstream"
        elif not stale_only:
            why = "asked"
        if why is not None:
            first = not upstream and why != "upstream"
            yield Stale(picture.item, picture.key, row, why, made.cost, made.took_us or 0, first)
            tainted.add(row.id)


def _by_item(found: Iterator[Stale]) -> Iterator[tuple[int, list[Stale]]]:
    group: list[Stale] = []
    for one in found:
        if group and group[0].item != one.item:
            yield group[0].item, group
            group = []
        group.append(one)
    if group:
        yield group[0].item, group


def _reopen(tx: Transaction, chosen: list[Stale], who: Who) -> Counter[str]:
    why = {(one.item, one.stage.id): one.why for one in chosen}
    known = layout(tx).stages
    count: Counter[str] = Counter()
    for number in sorted({stage for _, stage in why}):
        items = sorted(item for item, stage in why if stage == number)
        states = {item: State(state) for item, _, state in tx.run("lock_outcomes", stage=number, items=items)}
        passed = [(item, number) for item, state in states.items() if state in PASSED]
        reopened = tx.run_rows("reopen", passed, rerun=Rerun.WAVE)
        for item, _ in reopened:
            tx.count(number, states[item], -1)
            tx.count(number, State.PENDING, 1)
            tx.record(
                "reprocessed", pipeline=known[number].pipeline, item=item, stage=number,
                was=str(states[item]), why=why[item, number], **who.facts,
            )  # fmt: skip
            count[known[number].name] += 1
        hold_for_version(tx, number, [item for item, _ in reopened])
    if count:
        # No other item has led to this.
        tx.run("forget_reruns", items=[item for item, _ in why])
        tx.tell_idle_workers()
    return count


def _deviation(tx: Transaction, stage: int) -> float:
    [(count, total, squares, _)] = tx.run("stage_history", stage=stage)
    return math.sqrt(max(0.0, squares - (total / count) ** 2)) if count else 0.0
