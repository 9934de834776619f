"""Results: the outcomes of a pipeline's items, page by page, in constant memory.

Each page is a transaction of its own, so that a long export holds nothing that work needs. The mark for the next export is
taken before the first page: whatever is committed while this one goes on is in the next one, whether or not this one has seen
it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec

from holdfast.engine import error_groups
from holdfast.engine.export_cursor import (
    WITNESSES,
    Cursor,
    Witness,
    check,
    digest_of,
    newest,
    read_mark,
    read_newest_event,
)
from holdfast.engine.item_pages import few_items
from holdfast.engine.layout import layout
from holdfast.engine.selection import patterns_of
from holdfast.errors import UsageError
from holdfast.model.item_filter import Which
from holdfast.model.key_pattern import Pattern, several
from holdfast.model.layout import StageRow
from holdfast.model.states import BAD, FINISHED, PASSED, State
from holdfast.store import Store, Transaction

#: Rows in a page, and the longest value that is read with its page: so a page takes a few tens of megabytes at most.
PAGE = 1_000
LONG = 32_000
#: Longer than any value.
ANY_LENGTH = 2**31 - 1
#: Items that are looked up at a time; with more of them in all, outcomes are walked through.
CHUNK = 100
MOST_LOOKED_UP = 5_000


class ResultRow(NamedTuple):
    """A finished stage of an item, as it is stored."""

    item: int
    stage: int
    key: str
    state: str
    attempts: int
    version: str | None
    lease: int | None
    started_at: int | None
    ended_at: int
    cost: int
    error: str | None
    data: str | None
    result: str | None
    #: A value was too long to be read with the others.
    is_long: int


@dataclass(frozen=True, slots=True)
class _Begun:
    """What is known when the first page is read."""

    cursor: Cursor
    #: The parameters that all pages share.
    shared: dict[str, Any]
    #: The items to look at, if they are few.
    items: list[int] | None
    #: Nothing is left out because of an earlier export, although one was named.
    is_all_again: bool


class ResultWalk:
    """One pass over the results that a filter selects: all, or those written since an earlier pass.

    Without states, those that are done; with a part of an error or an error group, those that failed."""

    def __init__(
        self, store: Store, which: Which, since: str | None = None, *, with_data: bool = True, with_result: bool = True
    ) -> None:
        if which.pipeline is None:
            raise UsageError("name the pipeline whose results are wanted")
        if which.states - FINISHED:
            raise UsageError(f"results are {', '.join(sorted(FINISHED))}; the rest is not finished")
        if since is not None and which.older_than_us is not None:
            raise UsageError("an age cannot be combined with a cursor: what is too young now would never be exported")
        failed = which.error is not None or which.group is not None
        self._which = replace(which, states=which.states or (BAD if failed else frozenset({State.DONE})))
        self._store = store
        self._since = None if since is None else Cursor.read(since)
        self._with = {"with_data": int(with_data), "with_result": int(with_result)}
        self._witnesses: dict[tuple[int, int], Witness] = {}
        self._lowest = -1
        self._begun: _Begun | None = None

    @property
    def stages(self) -> dict[int, str]:
        """The names of the stages that are read, by number."""
        return self._begin().cursor.stages

    @property
    def is_all_again(self) -> bool:
        """Whether everything is read although a cursor was given: all rows by which it knows its store have changed since."""
        return self._begin().is_all_again

    @property
    def cursor(self) -> str | None:
        """Where the next pass goes on, once this one has read everything; None for a selection by age."""
        begun = self._begin()
        if self._which.older_than_us is not None:
            return None
        seen = newest(self._witnesses) or ([] if self._since is None else self._since.witnesses)
        return str(msgspec.structs.replace(begun.cursor, witnesses=seen))

    def __iter__(self) -> Iterator[ResultRow]:
        for row in self._rows(self._begin()):
            whole = self._whole(row) if row.is_long else row
            if whole is not None:
                self._remember(whole)
                yield whole

    def _remember(self, row: ResultRow) -> None:
        lease = row.lease or 0
        if lease < self._lowest:
            return
        self._witnesses[row.item, row.stage] = Witness(row.item, row.stage, lease, row.ended_at)
        if len(self._witnesses) > 100 * WITNESSES:
            self._witnesses = {(one.item, one.stage): one for one in newest(self._witnesses)}
            self._lowest = min(one.lease for one in self._witnesses.values())

    # Beginning ----------------------------------------------------------------------------------------------------

    def _begin(self) -> _Begun:
        if self._begun is None:
            self._begun = self._store.read(self._look)
        return self._begun

    def _look(self, tx: Transaction) -> _Begun:
        which = self._which
        error_groups.check(tx, which.group)
        stages = _stages(tx, which)
        mark = read_mark(tx)
        names = {row.id: row.name for row in stages}
        before, known, all_again = mark, dict[int, str](), False
        if self._since is not None:
            all_again = not check(tx, self._since, mark, which) and bool(self._since.witnesses)
            if not all_again and self._since.witnesses:
                before, known = self._since.mark, self._since.stages
        age = which.older_than_us
        shared = {
            **self._with,
            "states": [str(state) for state in sorted(which.states)],
            "keys": patterns_of(tx, which),
            "any_key": int(not which.key),
            "error": which.error,
            "before": None if age is None else tx.now - age,
            "seen": before.seen,
            "snapshot": before.snapshot,
            "last_item": before.last_item,
            "anew": [number for number, name in names.items() if known.get(number) != name],
        }
        cursor = Cursor(mark, str(which.pipeline), names, digest_of(which), [], read_newest_event(tx))
        return _Begun(cursor, shared, _few(tx, which), all_again)

    # Reading ------------------------------------------------------------------------------------------------------

    def _rows(self, begun: _Begun) -> Iterator[ResultRow]:
        stages = sorted(begun.cursor.stages)
        if begun.items is not None:
            for at in range(0, len(begun.items), CHUNK):
                yield from sorted(self._looked_up(begun.items[at : at + CHUNK], stages, LONG))
        elif self._which.states & PASSED:
            yield from self._walked(stages)
        else:
            for stage in stages:
                for state in sorted(self._which.states):
                    yield from self._walked_by_state(stage, str(state))

    def _looked_up(self, items: list[int], stages: list[int], longest: int) -> list[ResultRow]:
        which = {"items": items, "stages": stages, "long": longest, "group": self._which.group}
        return self._page("results_of_items", **which)

    def _walked(self, stages: list[int]) -> Iterator[ResultRow]:
        item = stage = 0
        while page := self._page("walk_results", stages=stages, item=item, stage=stage, long=LONG, most=PAGE):
            yield from page
            if len(page) < PAGE:
                return
            item, stage = page[-1].item, page[-1].stage

    def _walked_by_state(self, stage: int, state: str) -> Iterator[ResultRow]:
        which = {"stage": stage, "state": state, "group": self._which.group, "long": LONG, "most": PAGE}
        item = 0
        while page := self._page("walk_bad_results", item=item, **which):
            yield from page
            if len(page) < PAGE:
                return
            item = page[-1].item

    def _page(self, statement: str, **params: Any) -> list[ResultRow]:
        shared = self._begin().shared

        def read(tx: Transaction) -> list[ResultRow]:
            # PostgreSQL reckons the age of a row from the transactions of today.
            reached = read_mark(tx).reached
            return [ResultRow(*row) for row in tx.run(statement, **{**shared, **params, "reached": reached})]

        return self._store.read(read)

    def _whole(self, row: ResultRow) -> ResultRow | None:
        """A row with long values, as it is now; None if it has changed so that it is not meant any more, or is gone."""
        found = self._looked_up([row.item], [row.stage], ANY_LENGTH)
        return found[0] if found else None


def _stages(tx: Transaction, which: Which) -> list[StageRow]:
    """The stages that are meant: those that the pipeline has, or one by its name, which it may have had."""
    known = layout(tx).chosen(which.pipeline, which.stage)
    return [row for row in known if which.stage is not None or row.active]


def _few(tx: Transaction, which: Which) -> list[int] | None:
    """The items to look at, if the pipeline has few, or few have such keys."""
    number = layout(tx).number_of(str(which.pipeline))
    found: set[int] = set()
    for text in several(which.key) or ("*",):
        pattern = Pattern(text)
        some = few_items(tx, [] if number is None else [number], pattern)
        if some is None or len(found) + len(some) > MOST_LOOKED_UP:
            return None
        found.update(some)
    return sorted(found)
