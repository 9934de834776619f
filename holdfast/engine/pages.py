"""Pages of items, and of stages of items, in the order in which the items were added.

A page costs what is on it, however many items there are: each state is walked through by the index that has it in this
order. A key, or the beginning of one, is looked up in the index of keys. What must be searched stops at the page's end:
parts of errors, patterns that begin with a wildcard, and what few items have that is in no index (`skipped`, or `done`
where hardly anything is).

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
from holdfast.model.facts import Facts
from holdfast.model.key_pattern import Pattern, Patterns, several
from holdfast.model.layout import Layout, StageRow
from holdfast.model.names import there_are
from holdfast.model.states import PASSED, State
from holdfast.store import Transaction

#: So many numbers of items are walked through for a pipeline, or a pattern, before its keys are looked up instead.
STRETCH = 5_000
#: So many items of a pipeline, or of a pattern, are few: their stages are looked up one by one.
FEW = 1_000
#: With more priorities than these a queue is read as a whole.
MOST_PRIORITIES = 100
#: The last number there can be.
LAST = 2**63 - 1

#: Finished otherwise than passed: these have an index.
_BAD = (State.FAILED, State.EXHAUSTED, State.CANCELLED)
#: What an attempt could leave an error in.
_WITH_ERRORS = frozenset(State) - {State.PENDING, State.IN_PROGRESS}
#: What an attempt that failed could leave behind.
_IN_GROUPS = frozenset({State.RETRY_LATER, State.FAILED, State.EXHAUSTED})


def items(
    tx: Transaction,
    *,
    pipeline: str | None,
    stage: str | None,
    states: Collection[State],
    key: Patterns,
    error: str | None,
    group: str | None = None,
    after: int | str,
    most: int,
    last: int = LAST,
) -> list[Facts]:
    """A page of items, in the order they were added; with a stage, states, an error or a group of errors, stages of items.

    `after` is an item's number, or the `cursor` of an entry: the next page begins behind it. Stages of items are looked for up
    to the item `last`.
    """
    known, place = layout(tx), Place.read(after)
    error_groups.check(tx, group)
    if pipeline is not None:
        known.pipeline(pipeline)
    if not states and stage is None and error is None and group is None:
        if place.stage is not None:
            raise UsageError(
                f"after {place}: this is a place in a list of stages; in a list of items, name the item alone"
            )
        patterns = [Pattern(one) for one in several(key)] or [Pattern()]
        return _items(tx, known, pipeline, patterns, place.item, most)
    return stages_of_items(
        tx, known.chosen(pipeline, stage), frozenset(states or State), key, error, group, place, most, last
    )


def stages_of_items(
    tx: Transaction,
    stages: Iterable[StageRow],
    states: frozenset[State],
    key: Patterns,
    error: str | None,
    group: str | None,
    after: Place,
    most: int,
    last: int = LAST,
) -> list[Facts]:
    """A page of what is in one of these states at one of these stages."""
    chosen = {row.id: row for row in stages}
    if not chosen:
        return []
    known = layout(tx)
    patterns = [Pattern(one) for one in several(key)] or [Pattern()]
    if error is not None:
        states &= _WITH_ERRORS
    if group is not None:
        states &= _IN_GROUPS
    page = _Page(tx, chosen, states, patterns, error, group, after, most, last, _passed_by(known, after))
    return page.told(known)


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


def _items(
    tx: Transaction, known: Layout, pipeline: str | None, patterns: Sequence[Pattern], after: int, most: int
) -> list[Facts]:
    names = {row.id: row.name for row in known.pipelines.values() if pipeline in (None, row.name)}
    only = None if pipeline is None else [*names]
    found = {
        row["id"]: row
        for pattern in (patterns if names else ())
        for row in _walk_or_search(tx, names, only, pattern, after, most)
    }
    rows = [found[number] for number in sorted(found)[:most]]
    statuses: dict[int, str] = dict(tx.run("item_status", items=[row["id"] for row in rows])) if rows else {}
    return [
        {
            "id": row["id"],
            "cursor": str(Place(row["id"])),
            "pipeline": names[row["pipeline"]],
            "key": row["key"],
            "status": statuses[row["id"]],
            "created_at": row["created_at"],
            "updated_at": row["updated_at"],
        }
        for row in rows
    ]


def _walk_or_search(
    tx: Transaction, pipelines: Collection[int], only: list[int] | None, pattern: Pattern, after: int, most: int
) -> list[Facts]:
    walk = {"pipeline": only[0] if only else None, "key": _glob(tx, pattern), "after": after, "most": most}
    if only is None and not pattern.is_narrow:
        return tx.records("walk_items", until=LAST, **walk)
    if not pattern.is_plain:
        # Most of the time the page is full within a stretch. If not, what is wanted is rare, or begins much later.
        rows = tx.records("walk_items", until=min(after + max(STRETCH, 2 * most), LAST), **walk)
        if len(rows) == most:
            return rows
    found = tx.run("search_items", **_span(tx, pattern), pipelines=[*pipelines], after=after, most=most)
    return tx.records("read_items", items=[number for (number,) in found]) if found else []


def few_items(tx: Transaction, pipelines: Collection[int], pattern: Pattern) -> list[int] | None:
    """The items of these pipelines that a pattern means, in the order they were added; None if there are many."""
    found = tx.run("some_items", **_span(tx, pattern), pipelines=[*pipelines], most=FEW + 1)
    return sorted(number for (number,) in found) if len(found) <= FEW else None


def _span(tx: Transaction, pattern: Pattern) -> dict[str, str]:
    return {"low": pattern.low, "high": pattern.high, "key": _glob(tx, pattern)}


def _glob(tx: Transaction, pattern: Pattern) -> str:
    return tx.store.driver.dialect.glob_pattern(pattern.text)


# Stages of items ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Page:
    """A page of stages of items. Everything that is given must hold."""

    tx: Transaction
    stages: Mapping[int, StageRow]
    states: frozenset[State]
    patterns: Sequence[Pattern]
    error: str | None
    group: str | None
    after: Place
    most: int
    last: int
    #: See `_passed_by`.
    passed_by: dict[int, Order] | None

    def told(self, known: Layout) -> list[Facts]:
        rows: list[Facts] = []
        for pattern in self.patterns:
            numbers = self._few(known, pattern)
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

    def _few(self, known: Layout, pattern: Pattern) -> list[int] | None:
        """The items to be looked at, if they are known to be few."""
        pipelines = {row.pipeline for row in self.stages.values()}
        # Outcomes that passed lie in the order of items, whatever their pipeline.
        apart = bool(self.states & PASSED) and pipelines != {row.id for row in known.pipelines.values()}
        return few_items(self.tx, pipelines, pattern) if pattern.is_narrow or apart else None

    def _looked_up(self, numbers: list[int]) -> list[Facts]:
        rows = read_item_stages(self.tx, [number for number in numbers if number > self._behind], self.stages)
        return [row for row in rows if self._is_meant(row)]

    def _is_meant(self, row: Facts) -> bool:
        return (
            row["state"] in self.states
            and (self.error is None or (row["error"] is not None and self.error in row["error"]))
            and (self.group is None or row["error_group"] == self.group)
        )

    @property
    def _behind(self) -> int:
        """All of the page belongs to items with higher numbers."""
        return self.after.item - (self.passed_by is not None)

    def _walked(self, pattern: Pattern) -> list[Facts]:
        """Each walk looks as far as the page reaches by then: so those come first that fill it soon."""
        place: Facts = {"key": _glob(self.tx, pattern), "after": self._behind}
        # Where most of what is wanted has passed, a stretch of it is enough.
        near, passed = min(self._behind + max(STRETCH, 2 * self.most), self.last), self._passed()
        rest: Facts = {**self._rest([], several=True), "last": near}
        found = self._first([], self._page_passed(**passed, **place, **rest))
        if self.group is not None:
            which = {"stages": [*self.stages], "states": sorted(self.states), "error": self.error, "group": self.group}
            most = self._rest(found, several=True)["most"]
            found = self._first(found, self.tx.records("page_group", **which, **place, most=most))
        if State.IN_PROGRESS in self.states:
            rest = self._rest(found, several=True)
            found = self._first(found, self.tx.records("page_leased", stages=[*self.stages], **place, **rest))
        for stage in self.stages:
            for state in [state for state in State if state in self.states - PASSED]:
                found = self._first(found, self._open_or_bad(stage, state, {**place, **self._rest(found)}))
        rest = self._rest(found, several=True)
        return found if rest["last"] <= near else self._first(found, self._page_passed(**passed, **place, **rest))

    def _page_passed(self, stages: list[int], states: list[str], **place: Any) -> list[Facts]:
        if not stages:
            return []
        return self.tx.records("page_passed", stages=stages, states=states, error=self.error, **place)

    def _rest(self, found: list[Facts], several: bool = False) -> Facts:
        """How far to look beside these, and for how many. Of a stage at a time, one row may have been told on the page before;
        of several at once as many as an item has, and as many of the last one may be cut off."""
        last = found[-1]["item"] if len(found) == self.most else self.last
        per_item = max(Counter(row.pipeline for row in self.stages.values()).values())
        return {"last": last, "most": self.most + (2 * per_item if several else 1)}

    def _open_or_bad(self, stage: int, state: State, place: Facts) -> list[Facts]:
        """Of one stage, what waits, is delayed, on hold, or ended badly."""
        if state is State.PENDING:
            return self._waiting(stage, place)
        if state is State.RETRY_LATER:
            return self.tx.records("page_delayed", stage=stage, error=self.error, group=self.group, **place)
        if state is State.ON_HOLD:
            return self.tx.records("page_held", stage=stage, error=self.error, **place)
        if state in _BAD and self.group is None:
            return self.tx.records("page_bad", stage=stage, state=str(state), error=self.error, **place)
        return []

    def _waiting(self, stage: int, place: Facts) -> list[Facts]:
        priorities = self.tx.run("priorities_waiting", stage=stage, most=MOST_PRIORITIES + 1)
        if len(priorities) > MOST_PRIORITIES:
            return self.tx.records("page_waiting_mixed", stage=stage, **place)
        found: list[Facts] = []
        for (priority,) in priorities:
            found = self._first(found, self.tx.records("page_waiting", stage=stage, priority=priority, **place))
        return found

    def _passed(self) -> dict[str, list[Any]]:
        """Which stages have something that has passed, and in which states. No index says that there is nothing; counts do."""
        states = self.states & PASSED
        counted = {
            (stage, state)
            for stage, state, _, n, *_ in (self.tx.run("read_counts") if states else ())
            if n and state in states and stage in self.stages
        }
        return {"stages": sorted({stage for stage, _ in counted}), "states": sorted({state for _, state in counted})}

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
