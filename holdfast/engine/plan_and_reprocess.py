"""Stale: results made by an outdated version of the handler, from an outdated input, or of a type that they no longer fit.

`plan` forecasts what a reprocess would do, from recorded history. `Reprocess` does it: the first stale stage of each item runs
again, and later stages run again if their input has changed or they are stale themselves. Where the new output equals the old
one, results made from it are kept.

If all results are of current versions and types, only items listed as changed are read; otherwise every item.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from msgspec.structs import replace

from holdfast.clock import SECOND
from holdfast.engine.checkpoints import ItemPicture, read_pictures
from holdfast.engine.item_pages import few_items
from holdfast.engine.layout import layout
from holdfast.engine.on_hold import hold_for_version
from holdfast.engine.reopen import reopen
from holdfast.engine.selection import ActionPlace, Meant, Who, beginning
from holdfast.engine.stale_by_type import may_not_fit, unfit_results
from holdfast.errors import UsageError
from holdfast.model.item_filter import Which
from holdfast.model.key_pattern import Pattern
from holdfast.model.layout import Layout, StageRow
from holdfast.model.states import PASSED, Rerun, State
from holdfast.store import Store, Transaction

CHUNK = 500
#: The variation of costs is estimated from this many items.
SAMPLE = 1000
#: How many a plan shows of each stage.
SHOWN = 5
#: Work is fast if it costs nothing and all its handlers together take no longer than this for one item.
FAST_SECONDS = 5

#: Why every item has to be looked at.
ASKED = "all items were requested"
VERSION = "there are results of other versions"
TYPE = "there are results of other types"
UNSURE = "it is not known which items have changed"
ANOTHER_ORDER = "the stages come in another order"

#: The reasons for which a result is stale by itself, and which can be accepted.
ACCEPTED = frozenset({"version", "input changed"})

#: Reads the current layout of the pipelines.
Today = Callable[[Transaction], Layout]
#: Called after each chunk of a walk over all items, with the reason for the walk and the number of items read so far.
OnWalk = Callable[[str, int], None]


class Stale(NamedTuple):
    """A stage of an item that should run again, and why."""

    item: int
    key: str
    stage: StageRow
    #: `version`, `type`, `input changed`, `asked` (not stale), or `upstream`: runs only if an earlier stage has a new output.
    why: str
    #: The cost and time of the last run.
    cost: int
    took_us: int
    #: Whether it is the first stale stage of its item: the others follow by themselves.
    first: bool
    #: The hash of its current input.
    input_hash: str


@dataclass(slots=True)
class StageForecast:
    """What a reprocess would do at one stage."""

    stage: str
    why: Counter[str] = field(default_factory=Counter)
    #: How many run for sure, and how many only if an earlier stage has a new output.
    sure: int = 0
    perhaps: int = 0
    #: How many items begin here, as far as the budget lasts: what an action counts.
    begins: int = 0
    cost: int = 0
    perhaps_cost: int = 0
    took_us: int = 0
    #: One standard deviation of the sure cost, from the variation of single costs.
    spread: float = 0.0
    #: Items that would begin here and are not fast, by `cost` or `time`; and what they may cost, including later stages.
    left_out: Counter[str] = field(default_factory=Counter)
    left_out_cost: int = 0
    #: A few of those that run for sure.
    some: list[Stale] = field(default_factory=list)

    def add(self, stale: Stale, *, within_budget: bool = True) -> None:
        self.why[stale.why] += 1
        self.begins += stale.first and within_budget
        if stale.why != "upstream" and len(self.some) < SHOWN:
            self.some.append(stale)
        if stale.why == "upstream":
            self.perhaps += 1
            self.perhaps_cost += stale.cost
        else:
            self.sure += 1
            self.cost += stale.cost
            self.took_us += stale.took_us


def plan(
    store: Store,
    pipeline: str,
    *,
    stage: str | None = None,
    key: str | None = None,
    stale_only: bool = True,
    fast: bool = False,
    budget: int | None = None,
    priced: Collection[str] = (),
    on_walk: OnWalk | None = None,
    today: Today = layout,
) -> list[StageForecast]:
    """Per stage: what is stale and why, how many items would run, and the cost and time of that. `today` reads the pipelines if
    they differ from the registered ones; with `fast`, only fast work is included, and the rest is reported as left out. A
    budget limits how many items would begin, and nothing else."""
    forecasts: dict[int, StageForecast] = {}

    def of(stale: Stale) -> StageForecast:
        return forecasts.setdefault(stale.stage.id, StageForecast(stale.stage.name))

    known = store.read(today)
    found = find(store, pipeline, stage=stage, key=key, stale_only=stale_only, on_walk=on_walk, today=today)
    left = math.inf if budget is None else budget
    for _, group in _by_item(found):
        kept, slow = split(known, group, priced) if fast else (group, [])
        # An item that does not fit ends it: those behind it stay, too.
        left = left - price if (price := _price(kept)) <= left else -1
        for stale in kept:
            of(stale).add(stale, within_budget=left >= 0)
        for first, why, cost in slow:
            of(first).left_out[why] += 1
            of(first).left_out_cost += cost
    deviations = store.read(lambda tx: _deviations(tx, today(tx), pipeline, forecasts)) if forecasts else {}
    for number, forecast in forecasts.items():
        forecast.spread = deviations[number] * math.sqrt(forecast.sure)
    return list(forecasts.values())


@dataclass(frozen=True, slots=True)
class Reprocess:
    """Send the first stale stage of each item back to pending; with `stale_only` off, the first stage of every item or
    the given one. Counted by stage.

    Stops before the item whose forecast exceeds the budget, or after `limit` items. With `fast`, slow work is left out.
    """

    name: ClassVar[str] = "reprocess"
    event: ClassVar[str] = "reprocessed"
    pipeline: str
    stage: str | None = None
    key: str | None = None
    stale_only: bool = True
    budget: int | None = None
    limit: int | None = None
    #: Whether to include only fast work; and the stages that declare an expected cost, which are never fast.
    fast: bool | None = None
    priced: tuple[str, ...] = ()

    def begin(self, tx: Transaction) -> ActionPlace:
        return replace(beginning(tx, Which(self.pipeline)), budget=self.budget, limit=self.limit)

    def choose(self, tx: Transaction, place: ActionPlace) -> tuple[list[Stale], ActionPlace | None]:
        found, last = _next_stretch(tx, self.pipeline, self.stage, self.key, self.stale_only, place.item)
        chosen: list[Stale] = []
        budget, limit = place.budget, place.limit
        for item, whole in _by_item(iter(found)):
            group = split(layout(tx), whole, self.priced)[0] if self.fast else whole
            if not group and item <= place.until:
                continue
            price = _price(group)
            if item > place.until or limit == 0 or (budget is not None and price > budget):
                return chosen, None
            budget = None if budget is None else budget - price
            limit = None if limit is None else limit - 1
            chosen += [one for one in group if one.first]
        return chosen, _next(place, last, budget=budget, limit=limit)

    def count(self, tx: Transaction, rows: list[Stale]) -> Counter[str]:
        return Counter(one.stage.name for one in rows)

    def meant(self, rows: list[Stale]) -> list[Meant]:
        return [Meant(one.item, one.stage.id) for one in rows]

    def act(self, tx: Transaction, rows: list[Stale], who: Who) -> Counter[str]:
        return _reopen(tx, rows, who)


@dataclass(frozen=True, slots=True)
class Accept:
    """Accept results of older versions, or made from an older input: from now on they count as made by the current version from
    the current input. Counted by stage."""

    name: ClassVar[str] = "accept"
    event: ClassVar[str] = "accepted"
    pipeline: str
    stage: str | None = None
    key: str | None = None

    def begin(self, tx: Transaction) -> ActionPlace:
        return beginning(tx, Which(self.pipeline))

    def choose(self, tx: Transaction, place: ActionPlace) -> tuple[list[Stale], ActionPlace | None]:
        found, last = _next_stretch(tx, self.pipeline, self.stage, self.key, True, place.item)
        # With a stage given, later stages are found too: they would run again, but they are not to be accepted.
        meant = [one for one in found if one.why in ACCEPTED and self.stage in (None, one.stage.name)]
        return [one for one in meant if one.item <= place.until], _next(place, last)

    def count(self, tx: Transaction, rows: list[Stale]) -> Counter[str]:
        return Counter(one.stage.name for one in rows)

    def meant(self, rows: list[Stale]) -> list[Meant]:
        return [Meant(one.item, one.stage.id) for one in rows]

    def act(self, tx: Transaction, rows: list[Stale], who: Who) -> Counter[str]:
        count: Counter[str] = Counter()
        for row in {one.stage.id: one.stage for one in rows}.values():
            meant = {one.item: one for one in rows if one.stage.id == row.id}
            items = list(meant)
            # A transaction that reopens a stage locks its outcome: which stages are open cannot change until the commit.
            made_by = {item: made for item, _, _, *made in tx.run("lock_outcomes", stage=row.id, items=items)}
            again = {item for item, at in tx.run("open_stages_of", items=items, stages=[row.id]) if at == row.id}
            given = [(item, meant[item].input_hash) for item in made_by if item not in again]
            for item, state in tx.run_rows("accept_results", given, stage=row.id, version=row.version):
                count[row.name] += 1
                version, type_ = made_by[item]
                tx.count(row.id, State(state), -1, version=version, type=type_)
                tx.count(row.id, State(state), 1, version=row.version, type=type_)
                tx.record(
                    "accepted",
                    pipeline=row.pipeline,
                    item=item,
                    stage=row.id,
                    version=row.version,
                    why=meant[item].why,
                    **who.facts,
                )
        return count


def _next(place: ActionPlace, last: int | None, **more: Any) -> ActionPlace | None:
    """The place after an item; None at the end."""
    return None if last is None or last >= place.until else replace(place, item=last, **more)


def _next_stretch(
    tx: Transaction, pipeline: str, stage: str | None, key: str | None, stale_only: bool, after: int
) -> tuple[list[Stale], int | None]:
    """What is stale in the next items, and after which one to continue. After earlier chunks, listed items alone may do."""
    every_item = not stale_only or why_every_item(tx, pipeline, stage) is not None
    found, _, last = stretch(tx, pipeline, stage, key, stale_only, every_item, after)
    return found, last


def find(
    store: Store,
    pipeline: str,
    *,
    stage: str | None = None,
    key: str | None = None,
    stale_only: bool = True,
    on_walk: OnWalk | None = None,
    today: Today = layout,
) -> Iterator[Stale]:
    """Everything stale in a pipeline, item by item, in the order of stages, read in chunks."""
    why = store.read(lambda tx: why_every_item(tx, pipeline, stage, today)) if stale_only else ASKED
    after: int | None = 0
    walked = 0
    while after is not None:

        def step(tx: Transaction, after: int = after) -> tuple[list[Stale], int, int | None]:
            return stretch(tx, pipeline, stage, key, stale_only, why is not None, after, today)

        found, n, after = store.read(step)
        yield from found
        walked += n
        if why is not None and n and on_walk is not None:
            on_walk(why, walked)


def why_every_item(tx: Transaction, pipeline: str, stage: str | None, today: Today = layout) -> str | None:
    """Why every item has to be read; None if those listed as changed are enough."""
    known, registered = today(tx), layout(tx)
    stages = _stages(known, pipeline, stage)
    if not stages:
        return None
    if any(row.id in registered.stages and known.parents(row.id) != registered.parents(row.id) for row in stages):
        return ANOTHER_ORDER
    if any(reason for number, reason in tx.run("read_rechecks") if number == stages[0].pipeline):
        return UNSURE
    passed: Counter[int] = Counter()
    for number, state, _, n, *_ in tx.run("read_counts"):
        if state in PASSED:
            passed[number] += n
    made: dict[int, dict[tuple[str, str], int]] = {}
    for number, version, type_, n in tx.run("read_versions"):
        made.setdefault(number, {})[version, type_] = n
    found: set[str] = set()
    for row in stages:
        if stage in (None, row.name):
            counts = made.get(row.id, {})
            if sum(counts.values()) != passed[row.id] or any(n < 0 for n in counts.values()):
                return UNSURE
            for (version, type_), n in counts.items():
                if n and not row.stands(version):
                    found.add(VERSION)
                elif n and may_not_fit(row, type_):
                    found.add(TYPE)
    return VERSION if VERSION in found else TYPE if found else None


def stretch(
    tx: Transaction,
    pipeline: str,
    stage: str | None,
    key: str | None,
    stale_only: bool,
    every_item: bool,
    after: int,
    today: Today = layout,
) -> tuple[list[Stale], int, int | None]:
    """What is stale in the next items, how many were read, and after which one to continue."""
    known = today(tx)
    stages = _stages(known, pipeline, stage)
    if not stages:
        return [], 0, None
    few = None
    if not after and (every_item or key is not None):
        few = few_items(tx, [stages[0].pipeline], Pattern() if key is None else Pattern(key))
    if few is not None:
        items = tx.run("items_by_number", items=few)
    else:
        pattern = None if key is None else tx.store.driver.dialect.glob_pattern(key)
        choose = "items_with_data" if every_item else "changed_with_data"
        items = tx.run(choose, pipeline=stages[0].pipeline, after=after, key=pattern, most=CHUNK)
    found: list[Stale] = []
    pictures = read_pictures(tx, items, stages) if items else []
    unfit = unfit_results(tx, stages, pictures)
    for picture in pictures:
        found += _look(known, stages, stage, stale_only, picture, unfit)
    if few is not None:
        return found, 0, None
    return found, len(items), items[-1][0] if len(items) == CHUNK else None


def _stages(known: Layout, pipeline: str, stage: str | None) -> list[StageRow]:
    """The stages of a pipeline, in order; an error if there is no such pipeline, or it has no such stage."""
    stages = known.of_pipeline(pipeline)
    if not stages and pipeline not in known.pipelines:
        raise UsageError(f"there is no pipeline {pipeline!r} in this store")
    if stage is not None and stage not in {row.name for row in stages}:
        raise UsageError(f"pipeline {pipeline!r} has no stage {stage!r}")
    return stages


def _look(
    known: Layout,
    stages: list[StageRow],
    only: str | None,
    stale_only: bool,
    picture: ItemPicture,
    unfit: Collection[tuple[int, int]],
) -> Iterator[Stale]:
    """The stale stages of one item, in order. Open ones will run anyway."""
    tainted: set[int] = set()
    for row in stages:
        before = known.parents(row.id)
        upstream = any(parent in tainted for parent in before)
        if row.id in picture.open:
            tainted.add(row.id)
            continue
        made = picture.made.get(row.id)
        if made is None or not made.passed or not picture.has_all(before):
            # It has no complete input now; once the stages before it have passed again, it follows by itself.
            continue
        if only is not None and row.name != only and not upstream:
            continue
        why = None
        if not row.stands(made.version):
            why = "version"
        elif (picture.item, row.id) in unfit:
            why = "type"
        elif picture.has_other_input(row, before):
            why = "input changed"
        elif upstream:
            why = "upstream"
        elif not stale_only:
            why = "asked"
        if why is not None:
            first = not upstream and why != "upstream"
            made_from = picture.input_hash(row, before)
            yield Stale(picture.item, picture.key, row, why, made.cost, made.took_us or 0, first, made_from)
            tainted.add(row.id)


def split(
    known: Layout, group: list[Stale], priced: Collection[str]
) -> tuple[list[Stale], list[tuple[Stale, str, int]]]:
    """Split what is stale in one item: fast work, and the stages at which the rest would begin, each with the reason and its
    possible cost. A stage is as slow and as expensive as everything that its rerun may cause."""
    fast: set[int] = set()
    slow: list[tuple[Stale, str, int]] = []
    for first in (one for one in group if one.first):
        reached = {first.stage.id}
        for one in group:
            if not reached.isdisjoint(known.parents(one.stage.id)):
                reached.add(one.stage.id)
        wave = [one for one in group if one.stage.id in reached]
        cost = sum(one.cost for one in wave)
        if cost or any(one.stage.name in priced for one in wave):
            slow.append((first, "cost", cost))
        elif sum(one.took_us for one in wave) > FAST_SECONDS * SECOND:
            slow.append((first, "time", cost))
        else:
            fast |= reached
    return [one for one in group if one.stage.id in fast], slow


def _price(group: list[Stale]) -> int:
    """What the stages of an item cost that are sure to run."""
    return sum(one.cost for one in group if one.why != "upstream")


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
        passed = {
            (item, number): (State(state), version, type_)
            for item, _, state, version, type_ in tx.run("lock_outcomes", stage=number, items=items)
            if state in PASSED
        }
        reopened = reopen(tx, passed, Rerun.WAVE)
        for item, _ in reopened:
            tx.record(
                "reprocessed",
                pipeline=known[number].pipeline,
                item=item,
                stage=number,
                was=str(passed[item, number][0]),
                why=why[item, number],
                **who.facts,
            )
            count[known[number].name] += 1
        hold_for_version(tx, number, [item for item, _ in reopened])
    if count:
        # A person, and no other item, has caused this.
        tx.run("forget_reruns", items=[item for item, _ in why])
        tx.tell_idle_workers()
    return count


def _deviations(tx: Transaction, known: Layout, pipeline: str, stages: Iterable[int]) -> dict[int, float]:
    """By stage: the standard deviation of the cost of single items."""
    number = known.of_pipeline(pipeline)[0].pipeline
    some = [item for (item,) in tx.run("sample_of_items", pipeline=number, most=SAMPLE // 2)]
    costs: dict[int, list[int]] = {stage: [] for stage in stages}
    for _, stage, state, _, _, _, cost, *_ in tx.run("outcomes_of", items=some, stages=list(costs)):
        if state in PASSED:
            costs[stage].append(cost)
    return {stage: statistics.pstdev(found) if found else 0.0 for stage, found in costs.items()}
