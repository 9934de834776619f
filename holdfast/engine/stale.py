"""Stale: what was made by a version of its handler, or from an input, that is no longer today's.

`plan` says what a run over all that is stale would do, from recorded history; `reprocess` does it: the first stale stage
of each item runs again, and what is behind it runs again if its input has changed or it is stale itself. Where the new
output equals the old one, what was made from it is kept.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.engine.checkpoints import ItemPicture, read_pictures
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


def reprocess(
    store: Store,
    pipeline: str,
    *,
    stage: str | None = None,
    key: str | None = None,
    stale_only: bool = True,
    budget: int | None = None,
    limit: int | None = None,
    dry_run: bool = False,
    by: str = "",
    reason: str = "",
) -> dict[str, int]:
    """Send the first stale stage of each item back to pending, as a wave; with `stale_only` off, the first of every item
    or, with a stage given, that one.

    Stops before the item whose forecast does not fit the budget, or after `limit` items. Returns counts per stage.
    """
    chosen: list[Stale] = []
    left = budget
    count: Counter[str] = Counter()
    cost_of_item: dict[int, int] = {}
    found = find(store, pipeline, stage=stage, key=key, stale_only=stale_only)
    for item, group in _by_item(found):
        first = [one for one in group if one.first]
        price = sum(one.cost for one in group if one.why != "upstream")
        if limit is not None and len(cost_of_item) >= limit:
            break
        if left is not None:
            if price > left:
                break
            left -= price
        cost_of_item[item] = price
        chosen += first
        if len(chosen) >= CHUNK:
            count += _reopen(store, chosen, by, reason, dry_run)
            chosen = []
    count += _reopen(store, chosen, by, reason, dry_run)
    return dict(count)


def accept(
    store: Store, pipeline: str, *, stage: str | None = None, key: str | None = None, by: str = "", reason: str = ""
) -> dict[str, int]:
    """Mark results of older versions as good: they count as today's from now on."""
    count: Counter[str] = Counter()
    chosen: dict[int, list[int]] = {}
    rows: dict[int, StageRow] = {}
    for stale in find(store, pipeline, stage=stage, key=key):
        # With a stage given, those that follow it are found too: they would run again, but they are not meant here.
        if stale.why == "version" and stage in (None, stale.stage.name):
            chosen.setdefault(stale.stage.id, []).append(stale.item)
            rows[stale.stage.id] = stale.stage
    for number, items in chosen.items():
        for at in range(0, len(items), CHUNK):
            part = items[at : at + CHUNK]

            def work(tx: Transaction, row: StageRow = rows[number], part: list[int] = part) -> int:
                done = tx.run("accept_versions", stage=row.id, version=row.version, items=part)
                for [item] in done:
                    tx.record(
                        "accepted",
                        pipeline=row.pipeline,
                        item=item,
                        stage=row.id,
                        version=row.version,
                        by=by,
                        reason=reason,
                    )
                return len(done)

            count[rows[number].name] += store.write(work)
    return dict(+count)


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


def _reopen(store: Store, chosen: list[Stale], by: str, reason: str, dry_run: bool) -> Counter[str]:
    if dry_run or not chosen:
        return Counter(one.stage.name for one in chosen)
    why = {(one.item, one.stage.id): one.why for one in chosen}

    def work(tx: Transaction) -> Counter[str]:
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
                    was=str(states[item]), why=why[item, number], by=by, reason=reason,
                )  # fmt: skip
                count[known[number].name] += 1
            hold_for_version(tx, number, [item for item, _ in reopened])
        if count:
            # No other item has led to this.
            tx.run("forget_reruns", items=[item for item, _ in why])
            tx.tell_idle_workers()
        return count

    return store.write(work)


def _deviation(tx: Transaction, stage: int) -> float:
    [(count, total, squares, _)] = tx.run("stage_history", stage=stage)
    return math.sqrt(max(0.0, squares - (total / count) ** 2)) if count else 0.0
