"""Pages of items, and of stages of items, in the order in which the items were added.

A page costs what is on it, however many items there are: each state is walked through by the index that has it in this
order. A key, or the beginning of one, is looked up in the index of keys. What no index has must be searched for: parts of
errors, patterns that many keys fit, delayed work of an error group, and what has passed (`skipped`, or `done` where hardly
anything is). `reach` says how far a search may go for one answer.

The next page begins after a place: an item, or a stage of one. An item may have several stages in a list, and a page may
end between them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from holdfast.engine import error_groups
from holdfast.engine.item_stages import read_item_stages
from holdfast.engine.layout import layout
from holdfast.errors import UsageError
from holdfast.model.did_you_mean import there_are
from holdfast.model.facts import Facts
from holdfast.model.item_filter import Which
from holdfast.model.key_pattern import Pattern, Patterns, several
from holdfast.model.layout import Layout, StageRow
from holdfast.model.states import PASSED, State
from holdfast.store import Transaction

#: So many numbers of items are walked through for a pipeline, or a pattern, before its keys are looked up instead.
STRETCH = 5_000
#: So many items of a pipeline, or of a pattern, are few: their stages are looked up one by one.
FEW = 1_000
#: So many keys are read to find the items of a pipeline, or of a pattern, in the order they were added.
KEYS = 20_000
#: So many rows are searched for one answer, where their item or their error has to be read.
SEARCHED = 15_000
#: So many numbers of items are searched for one answer, where the row itself says whether it is wanted.
PASSED_BY = 50_000
#: With more priorities than these a queue is read as a whole.
MOST_PRIORITIES = 100
#: The last number there can be.
LAST = 2**63 - 1

#: Finished otherwise than passed: these have an index.
_BAD = (State.FAILED, State.EXHAUSTED, State.CANCELLED)
#: What an attempt could leave an error in.
_WITH_ERRORS = frozenset(State) - {State.PENDING, State.IN_PROGRESS}
#: What an attempt that failed could leave behind.
_GROUPED = frozenset({State.FAILED, State.EXHAUSTED})
_IN_GROUPS = _GROUPED | {State.RETRY_LATER}


def items(tx: Transaction, which: Which, *, after: int | str = 0, most: int, last: int = LAST) -> list[Facts]:
    """A page of items, in the order they were added; with a stage, states, an error or a group of errors, stages of items.

    `after` is an item's number, or the `cursor` of an entry: the next page begins behind it. They are looked for up to the item
    `last`.
    """
    known, place = layout(tx), Place.read(after)
    error_groups.check(tx, which.group)
    if which.pipeline is not None:
        known.pipeline(which.pipeline)
    if which.is_of_items:
        if place.stage is not None:
            raise UsageError(
                f"after {place}: this is a place in a list of stages; in a list of items, name the item alone"
            )
        return _items(tx, known, which, place.item, most, last)
    return stages_of_items(tx, which, known.chosen(which.pipeline, which.stage), place, most, last)


def stages_of_items(
    tx: Transaction, which: Which, stages: Iterable[StageRow], after: Place, most: int, last: int = LAST
) -> list[Facts]:
    """A page of what the filter selects at these stages."""
    return _page(tx, which, stages, after, most, last).told()


def reach(tx: Transaction, which: Which, after: int | str) -> int:
    """Up to which item one answer looks for a page; LAST if what is asked for need not be searched for."""
    known, place = layout(tx), Place.read(after)
    if which.is_of_items:
        return _reach_of_items(tx, known, which, place.item)
    return _page(tx, which, known.chosen(which.pipeline, which.stage), place, 1).reach()


class Some(NamedTuple):
    """Some of what a filter selects, in no order; and whether there may be more."""

    rows: list[tuple[Any, ...]]
    more: bool


def some_items(tx: Transaction, which: Which, after: int, most: int, last: int) -> Some:
    """Up to so many items up to `last`: each with the name of its pipeline."""
    known = layout(tx)
    until = min(last, _reach_of_items(tx, known, which, after))
    found = _rows_of_items(tx, known, which, after, most + 1, until)
    names = {row.id: row.name for row in known.pipelines.values()}
    rows = [(row["id"], names[row["pipeline"]]) for row in found[:most]]
    return Some(rows, len(found) > most or until < last)


def some_stages_of_items(
    tx: Transaction, which: Which, stages: Iterable[StageRow], after: Place, most: int, last: int
) -> Some:
    """Up to so many of what the filter selects at these stages: item, stage and state."""
    return _page(tx, which, stages, after, most, last).some()


def _page(
    tx: Transaction, which: Which, stages: Iterable[StageRow], after: Place, most: int, last: int = LAST
) -> _Page:
    states = which.states or frozenset(State)
    if which.error is not None:
        states &= _WITH_ERRORS
    if which.group is not None:
        states &= _IN_GROUPS
    known, chosen = layout(tx), {row.id: row for row in stages}
    every = {row.pipeline for row in chosen.values()} == {row.id for row in known.pipelines.values()}
    return _Page(tx, which, chosen, states, _patterns(which.key), after, most, last, _passed_by(known, after), every)


def _patterns(key: Patterns) -> list[Pattern]:
    return [Pattern(one) for one in several(key)] or [Pattern()]


class Place(NamedTuple):
    """A place in a list: behind an item, or behind a stage of one."""

    item: int = 0
    stage: str | None = None

    def __str__(self) -> str:
        return str(self.item) if self.stage is None else f"{self.item}/{self.stage}"

    @classmethod
    def read(cls, text: str | int) -> Place:
        number, slash, stage = str(text).partition("/")
        if not re.fullmatch("[0-9]{1,19}", number) or int(number) > LAST or (slash and not stage):
            raise UsageError(f"after {text!r}: write it as ID or ID/STAGE, as the end of a page says it")
        return cls(int(number), stage or None)


def _passed_by(known: Layout, after: Place) -> dict[int, Order] | None:
    """By pipeline: the stage of the item at this place that was told last; None if all of its stages were."""
    if after.stage is None:
        return None
    found = {row.pipeline: _order(row) for row in known.stages.values() if row.name == after.stage}
    if not found:
        names = {row.name for row in known.stages.values()}
        raise UsageError(f"after {after}: there is no stage {after.stage!r}; {there_are(after.stage, sorted(names))}")
    return found


Order = tuple[int, int]


def _order(row: StageRow) -> Order:
    """The order of a pipeline's stages. One that was removed keeps its position, which another may have now."""
    return row.position, row.id


# Items ----------------------------------------------------------------------------------------------------------------


def _items(tx: Transaction, known: Layout, which: Which, after: int, most: int, last: int) -> list[Facts]:
    names = {row.id: row.name for row in known.pipelines.values()}
    rows = _rows_of_items(tx, known, which, after, most, last)
    statuses: dict[int, str] = dict(tx.run("item_status", items=[row["id"] for row in rows])) if rows else {}
    return [
        {
            "id": row["id"],
            "cursor": str(Place(row["id"])),
            "pipeline": names.get(row["pipeline"], f"(unknown: {row['pipeline']})"),
            "key": row["key"],
            "status": statuses[row["id"]],
            "created_at": row["created_at"],
            "updated_at": row["updated_at"],
        }
        for row in rows
    ]


def _rows_of_items(tx: Transaction, known: Layout, which: Which, after: int, most: int, last: int) -> list[Facts]:
    pipelines = _numbers(known, which.pipeline)
    only = None if which.pipeline is None else pipelines[0]
    found = {
        row["id"]: row
        for pattern in (_patterns(which.key) if pipelines else ())
        for row in _walk_or_look_up(tx, pipelines, only, pattern, after, most, last)
    }
    return [found[number] for number in sorted(found)[:most]]


def _walk_or_look_up(
    tx: Transaction, pipelines: list[int], only: int | None, pattern: Pattern, after: int, most: int, last: int
) -> list[Facts]:
    def walk(after: int, until: int) -> list[Facts]:
        which = {"pipeline": only, "key": _glob(tx, pattern)}
        return tx.records("walk_items", **which, after=after, until=min(until, last), most=most)

    if only is None and not pattern.is_narrow:
        return walk(after, LAST)
    if not pattern.is_plain:
        # Most of the time the page is full within a stretch. If not, what is wanted is rare, or begins much later.
        rows = walk(after, after + max(STRETCH, 2 * most))
        if len(rows) == most:
            return rows
    numbers = few_items(tx, pipelines, pattern, KEYS)
    if numbers is None:
        return walk(after, LAST)
    wanted = [number for number in numbers if after < number <= last][:most]
    return tx.records("read_items", items=wanted) if wanted else []


def _reach_of_items(tx: Transaction, known: Layout, which: Which, after: int) -> int:
    pipelines = _numbers(known, which.pipeline)
    for pattern in _patterns(which.key):
        if pattern.is_narrow or which.pipeline is not None:
            if few_items(tx, pipelines, pattern, KEYS) is None:
                return _bound(tx, after + PASSED_BY)
        elif pattern != Pattern():
            return _bound(tx, after + PASSED_BY)
    return LAST


def _numbers(known: Layout, pipeline: str | None) -> list[int]:
    """The number of a pipeline, or of every one."""
    return [row.id for row in known.pipelines.values()] if pipeline is None else [known.pipeline(pipeline).id]


def _bound(tx: Transaction, item: int) -> int:
    """This item, or LAST if there is none behind it."""
    [(newest, _)] = tx.run("newest_of_all")
    return item if (newest or 0) > item else LAST


def few_items(
    tx: Transaction, pipelines: Collection[int], pattern: Pattern, most: int | None = None
) -> list[int] | None:
    """The items of these pipelines that a pattern means, in the order they were added; None if there are more keys than FEW, or
    than `most`, among which they could be."""
    most = FEW if most is None else most
    span = {"pipelines": [*pipelines], "low": pattern.low, "high": pattern.high}
    if most > FEW and tx.run("are_many_items", **span, most=most)[0][0]:
        return None  # counted by the database, which is quicker than to read so many
    found = tx.run("some_items", **span, key=_glob(tx, pattern), most=most + 1)
    return sorted(number for number, fits in found if fits) if len(found) <= most else None


def _glob(tx: Transaction, pattern: Pattern) -> str:
    return tx.store.driver.dialect.glob_pattern(pattern.text)


# Stages of items ------------------------------------------------------------------------------------------------------


class _Walk(NamedTuple):
    """A statement that walks through an index in the order of items, and what it is asked for."""

    statement: str
    which: Facts
    #: The statement that says how far this comes.
    extent: str | None = None


@dataclass(slots=True)
class _Page:
    """A page of stages of items. Everything that is given must hold."""

    tx: Transaction
    which: Which
    stages: Mapping[int, StageRow]
    #: Those of the filter that can have what it asks for.
    states: frozenset[State]
    patterns: Sequence[Pattern]
    after: Place
    most: int
    last: int
    #: See `_passed_by`.
    passed_by: dict[int, Order] | None
    #: Whether these are stages of every pipeline.
    of_every_pipeline: bool

    def told(self) -> list[Facts]:
        rows: list[Facts] = []
        for pattern in self.patterns if self.stages else ():
            numbers = self._few(pattern)
            rows = self._first(rows, self._walked(pattern) if numbers is None else self._looked_up(numbers))
        wanted = sorted({row["item"] for row in rows})
        items = {one["id"]: one for one in self.tx.records("read_items", items=wanted)} if wanted else {}
        for row in rows:
            if row["updated_at"] is None:
                row["updated_at"] = items[row["item"]]["updated_at"]
        return [
            {
                "id": row["item"],
                "cursor": str(Place(row["item"], self.stages[row["stage"]].name)),
                "pipeline": self.stages[row["stage"]].pipeline_name,
                "key": items[row["item"]]["key"],
                "stage": self.stages[row["stage"]].name,
                "state": row["state"],
                "attempts": row["attempts"],
                "next_attempt_at": row["next_attempt_at"],
                "error": row["error"],
                "updated_at": row["updated_at"],
            }
            for row in rows
        ]

    def reach(self) -> int:
        """Up to which item all walks together look at no more rows than may be searched."""
        walks = [(walk, pattern) for pattern in self.patterns if self._few(pattern) is None for walk in self._walks()]
        return min((self._extent(*walk, max(SEARCHED // len(walks), 1))[1] for walk in walks), default=LAST)

    def some(self) -> Some:
        """In no order each walk may go as far as it likes: the budget of rows to search is spent by one after the other."""
        found: dict[tuple[int, int], str] = {}
        left, more = SEARCHED, False
        for pattern in self.patterns if self.stages else ():
            numbers = self._few(pattern)
            if numbers is not None:
                rows = [row for row in self._looked_up(numbers) if self._is_on_page(row)]
                found |= {(row["item"], row["stage"]): row["state"] for row in rows}
                continue
            place = self._place(pattern)
            for walk in self._walks():
                if len(found) > self.most:
                    break
                passed, last = self._extent(walk, pattern, left)
                left, more = left - passed, more or last < self.last
                rest = {**self._rest([], several=True), "last": min(last, self.last)}
                statement = "some_bad" if walk.statement == "page_bad" and self.which.error is None else walk.statement
                for item, stage, state in self.tx.places(statement, **walk.which, **place, **rest):
                    if item > self.after.item or self._is_on_page({"item": item, "stage": stage}):
                        found[item, stage] = state
        rows_found = [(*place, state) for place, state in found.items()]
        return Some(rows_found[: self.most], more or len(rows_found) > self.most)

    def _few(self, pattern: Pattern) -> list[int] | None:
        """The items to be looked at, if they are known to be few."""
        pipelines = {row.pipeline for row in self.stages.values()}
        # Outcomes that passed lie in the order of items, whatever their pipeline.
        apart = bool(self.states & PASSED) and not self.of_every_pipeline
        return few_items(self.tx, pipelines, pattern) if pattern.is_narrow or apart else None

    def _looked_up(self, numbers: list[int]) -> list[Facts]:
        rows = read_item_stages(self.tx, [number for number in numbers if number > self._behind], self.stages)
        return [row for row in rows if self._is_meant(row)]

    def _is_meant(self, row: Facts) -> bool:
        return (
            row["state"] in self.states
            and (self.which.error is None or (row["error"] is not None and self.which.error in row["error"]))
            and (self.which.group is None or row["error_group"] == self.which.group)
        )

    @property
    def _behind(self) -> int:
        """All of the page belongs to items with higher numbers."""
        return self.after.item - (self.passed_by is not None)

    def _walked(self, pattern: Pattern) -> list[Facts]:
        """Each walk looks as far as the page reaches by then: so those come first that fill it soon."""
        place = self._place(pattern)
        # Where most of what is wanted has passed, a stretch of it is enough.
        near = min(self._behind + max(STRETCH, 2 * self.most), self.last)
        found: list[Facts] = []
        passed: list[_Walk] = []
        for walk in self._walks():
            rest = self._rest(found, several="stages" in walk.which)
            if walk.statement == "page_passed":
                passed, rest["last"] = [walk], near
            found = self._first(found, self.tx.records(walk.statement, **walk.which, **place, **rest))
        rest = self._rest(found, several=True)
        for walk in passed if rest["last"] > near else ():
            found = self._first(found, self.tx.records(walk.statement, **walk.which, **place, **rest))
        return found

    def _walks(self) -> list[_Walk]:
        """Statements that find everything together, those first that find most of it."""
        walks = [*self._passed()]
        stages = {"stages": [*self.stages]}
        ended = self.states - {State.RETRY_LATER}
        if self.which.group is not None and ended:
            which = {**stages, "states": sorted(ended), "error": self.which.error, "group": self.which.group}
            walks.append(_Walk("page_group", which, "extent_group"))
        if State.IN_PROGRESS in self.states:
            walks.append(_Walk("page_leased", stages))
        for stage in self.stages:
            for state in [state for state in State if state in self.states - PASSED]:
                walks += self._open_or_bad(stage, state)
        return walks

    def _place(self, pattern: Pattern) -> Facts:
        """Where a walk begins, and which keys it is for."""
        return {"key": None if pattern == Pattern() else _glob(self.tx, pattern), "after": self._behind}

    def _extent(self, walk: _Walk, pattern: Pattern, look: int) -> tuple[int, int]:
        """How many rows a walk passes that may not be wanted, up to a limit, and the last item up to there; LAST if it ends."""
        reads = self.which.error is not None or pattern != Pattern()
        if walk.statement == "page_passed":
            return 0, _bound(self.tx, self._behind + (SEARCHED if reads else PASSED_BY))
        # The index of error groups has the failed and the exhausted of all stages together.
        of_part = len(self.stages) < len(layout(self.tx).stages) or not self.states >= _GROUPED
        of_group = self.which.group is not None and (walk.statement == "page_delayed" or of_part)
        if walk.extent is None or not (reads or of_group):
            return 0, LAST
        [(passed, last)] = self.tx.run(walk.extent, **walk.which, after=self._behind, look=look)
        return passed, LAST if passed < look else last or self._behind

    def _rest(self, found: list[Facts], several: bool = False) -> Facts:
        """How far to look beside these, and for how many. Of a stage at a time, one row may have been told on the page before;
        of several at once as many as an item has, and as many of the last one may be cut off."""
        last = found[-1]["item"] if len(found) == self.most else self.last
        per_item = max(Counter(row.pipeline for row in self.stages.values()).values())
        return {"last": last, "most": self.most + (2 * per_item if several else 1)}

    def _open_or_bad(self, stage: int, state: State) -> list[_Walk]:
        """Of one stage, what waits, is delayed, on hold, or ended badly."""
        which = {"stage": stage, "error": self.which.error}
        if state is State.PENDING:
            return self._waiting(stage)
        if state is State.RETRY_LATER:
            return [_Walk("page_delayed", {**which, "group": self.which.group}, "extent_delayed")]
        if state is State.ON_HOLD:
            return [_Walk("page_held", which, "extent_held")]
        if state in _BAD and self.which.group is None:
            return [_Walk("page_bad", {**which, "state": str(state)}, "extent_bad")]
        return []

    def _waiting(self, stage: int) -> list[_Walk]:
        priorities = self.tx.run("priorities_waiting", stage=stage, most=MOST_PRIORITIES + 1)
        if len(priorities) > MOST_PRIORITIES:
            return [_Walk("page_waiting_mixed", {"stage": stage})]
        return [
            _Walk("page_waiting", {"stage": stage, "priority": priority}, "extent_waiting")
            for (priority,) in priorities
        ]

    def _passed(self) -> list[_Walk]:
        """What has passed. No index says that there is nothing; counts do."""
        states = self.states & PASSED
        counted = {
            (stage, state)
            for stage, state, _, n, *_ in (self.tx.run("read_counts") if states else ())
            if n and state in states and stage in self.stages
        }
        which = {"stages": sorted({stage for stage, _ in counted}), "states": sorted({state for _, state in counted})}
        return [_Walk("page_passed", {**which, "error": self.which.error})] if counted else []

    def _first(self, found: list[Facts], more: list[Facts]) -> list[Facts]:
        """The first of these on this page, each once."""
        if not more:
            return found
        rows = (row for rows in (found, more) for row in rows)
        left = {(row["item"], _order(self.stages[row["stage"]])): row for row in rows if self._is_on_page(row)}
        return [left[place] for place in sorted(left)[: self.most]]

    def _is_on_page(self, row: Facts) -> bool:
        stage = self.stages[row["stage"]]
        if row["item"] > self.last:
            return False
        if self.passed_by is None or row["item"] > self.after.item:
            return True
        return stage.pipeline in self.passed_by and _order(stage) > self.passed_by[stage.pipeline]
