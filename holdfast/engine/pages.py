"""Pages of items, and of stages of items, in the order in which the items were added.

A page costs what is on it, however many items there are: each state is walked through by the index that has it in this
order. A key, or the beginning of one, is looked up in the index of keys. What must be searched stops at the page's end:
parts of errors, patterns that begin with a wildcard, and what few items have that is in no index (`skipped`, or `done`
where hardly anything is).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.engine.register import layout
from holdfast.engine.standing import stands
from holdfast.errors import UsageError
from holdfast.model.layout import Layout, StageRow
from holdfast.model.pattern import Pattern
from holdfast.model.states import PASSED, State
from holdfast.store import Transaction

Facts = dict[str, Any]

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


def items(
    tx: Transaction, *, pipeline: str | None, stage: str | None, state: State | None, key: str | None, error: str | None,
    after: int, most: int,
) -> list[Facts]:  # fmt: skip
    """A page of items, in the order they were added; with a stage, a state or an error, stages of items."""
    known = layout(tx)
    pattern = None if key is None else Pattern(key)
    if state is None and stage is None and error is None:
        return _items(tx, known, pipeline, pattern, after, most)
    chosen = {
        row.id: row for row in known.stages.values()
        if pipeline in (None, row.pipeline_name) and stage in (None, row.name)
    }  # fmt: skip
    if not chosen:
        raise UsageError(f"no stage matches {pipeline or '*'}/{stage or '*'}")
    states = frozenset({state} if state else State)
    page = _Page(
        tx, chosen, states if error is None else states & _WITH_ERRORS, pattern or Pattern(), error, after, most
    )  # fmt: skip
    return page.told(known)


# Items ----------------------------------------------------------------------------------------------------------------


def _items(
    tx: Transaction, known: Layout, pipeline: str | None, pattern: Pattern | None, after: int, most: int
) -> list[Facts]:
    names = {row.id: row.name for row in known.pipelines.values() if pipeline in (None, row.name)}
    only = None if pipeline is None else [*names]
    rows = _walk_or_search(tx, names, only, pattern or Pattern(), after, most) if names else []
    statuses: dict[int, str] = dict(tx.run("item_status", items=[row["id"] for row in rows])) if rows else {}
    return [
        {
            "id": row["id"],
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
    pattern: Pattern
    error: str | None
    after: int
    most: int

    def told(self, known: Layout) -> list[Facts]:
        numbers = self._few(known)
        rows = self._looked_up(numbers) if numbers is not None else self._walked()
        wanted = sorted({row["item"] for row in rows})
        items = {one["id"]: one for one in self.tx.records("read_items", items=wanted)} if wanted else {}
        for row in rows:
            if row["updated_at"] is None:
                row["updated_at"] = items[row["item"]]["updated_at"]
        return [
            {
                "id": row["item"],
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

    def _few(self, known: Layout) -> list[int] | None:
        """The items to be looked at, if they are known to be few."""
        pipelines = {row.pipeline for row in self.stages.values()}
        # Outcomes that passed lie in the order of items, whatever their pipeline.
        apart = bool(self.states & PASSED) and pipelines != {row.id for row in known.pipelines.values()}
        return few_items(self.tx, pipelines, self.pattern) if self.pattern.is_narrow or apart else None

    def _looked_up(self, numbers: list[int]) -> list[Facts]:
        rows = stands(self.tx, [number for number in numbers if number > self.after], self.stages)
        return self._first([row for row in rows if self._is_meant(row)])

    def _is_meant(self, row: Facts) -> bool:
        return row["state"] in self.states and (
            self.error is None or (row["error"] is not None and self.error in row["error"])
        )

    def _walked(self) -> list[Facts]:
        place = {"key": _glob(self.tx, self.pattern), "after": self.after, "most": self.most}
        found: list[Facts] = []
        for stage in self.stages:
            if State.PENDING in self.states:
                found = self._first(found + self._waiting(stage, place))
            if State.RETRY_LATER in self.states:
                found = self._first(found + self.tx.records("page_delayed", stage=stage, error=self.error, **place))
            if State.ON_HOLD in self.states:
                found = self._first(found + self.tx.records("page_held", stage=stage, error=self.error, **place))
            for state in _BAD:
                if state in self.states:
                    one = {"stage": stage, "state": str(state), "error": self.error}
                    found = self._first(found + self.tx.records("page_bad", **one, **place))
        if State.IN_PROGRESS in self.states:
            found = self._first(found + self.tx.records("page_leased", stages=[*self.stages], **place))
        return self._first(found + self._passed(place))

    def _waiting(self, stage: int, place: Facts) -> list[Facts]:
        priorities = self.tx.run("priorities_waiting", stage=stage, most=MOST_PRIORITIES + 1)
        if len(priorities) > MOST_PRIORITIES:
            return self.tx.records("page_waiting_mixed", stage=stage, **place)
        found: list[Facts] = []
        for (priority,) in priorities:
            found = self._first(found + self.tx.records("page_waiting", stage=stage, priority=priority, **place))
        return found

    def _passed(self, place: Facts) -> list[Facts]:
        states = self.states & PASSED
        # There is no index to say that there are none; the counts do.
        counted = {
            (stage, state) for stage, state, _, n, *_ in (self.tx.run("read_counts") if states else ())
            if n and state in states and stage in self.stages
        }  # fmt: skip
        if not counted:
            return []
        which = {"stages": sorted({stage for stage, _ in counted}), "states": sorted({state for _, state in counted})}
        return self.tx.records("page_passed", **which, error=self.error, **place)

    def _first(self, rows: list[Facts]) -> list[Facts]:
        return sorted(rows, key=lambda row: (row["item"], self.stages[row["stage"]].position))[: self.most]
