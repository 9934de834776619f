"""Follow-ons and children: items that the completion of a stage brings about, and stages that wait for them.

A follow-on is added by the completing transaction. Where two ask for the same key at once, the second waits for the
first to commit or to roll back: there is one, never two and never none. A stage that waits for children is decided with
the parent locked, by whoever ends the last child, so that it begins once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import groupby
from typing import Any

from holdfast.engine.add import NewItem, Upserted, merged, upsert
from holdfast.engine.finish import Finished, FollowOn
from holdfast.engine.meet import let_meet
from holdfast.engine.register import layout
from holdfast.engine.rerun import begin_again
from holdfast.store import Transaction

WHEN_EXISTS = ("skip", "rerun", "merge")


def follow(tx: Transaction, finished: Sequence[Finished]) -> None:
    """Add the items that these completed attempts submitted."""
    wanted = [(one, follow_on) for one in finished for follow_on in one.follow_ons]
    if not wanted:
        return
    wanted.sort(key=lambda pair: (pair[1].pipeline, pair[1].when_exists, pair[1].key))
    for (pipeline, when_exists), same in groupby(wanted, key=lambda pair: (pair[1].pipeline, pair[1].when_exists)):
        pairs = list(same)
        done = _submit(tx, pipeline, when_exists, [follow_on for _, follow_on in pairs])
        if when_exists == "rerun" and done.known:
            asked: dict[int, list[int]] = {}
            for one, follow_on in pairs:
                if follow_on.key in done.known:
                    asked.setdefault(done.known[follow_on.key], []).append(one.lease.item)
            begin_again(tx, pipeline, asked)
        numbers = done.born | done.known
        links = [(one.lease.item, numbers[follow_on.key]) for one, follow_on in pairs if follow_on.child]
        tx.run_rows("add_children", sorted(set(links)))


def _submit(tx: Transaction, pipeline: str, when_exists: str, follow_ons: list[FollowOn]) -> Upserted:
    merge = {"skip": keep, "rerun": rerun_with, "merge": unite}[when_exists]
    items: dict[str, NewItem] = {}
    for one in follow_ons:
        # Several with the same key come to what they would if one after the other had been added.
        data = merged(merge, one.key, items[one.key].data, one.data) if one.key in items else one.data
        items[one.key] = NewItem(one.key, data)
    return upsert(tx, pipeline, list(items.values()), partial(merged, merge))


def parents_may_go_on(tx: Transaction, stage: int, items: Iterable[int]) -> None:
    """Items came to an end at a stage, perhaps for good: a stage of their parents may have waited for that."""
    row = layout(tx).stages[stage]
    waiting_stages = layout(tx).awaiting_children_of(row.pipeline_name)
    if not waiting_stages or not (ended := list(items)):
        return
    # Whoever makes one of them a child of another holds it until the commit: either that one sees that the child has
    # ended, or this one sees the parent.
    tx.run("lock_items", items=ended)
    parents = tx.run("parents_of", items=ended)
    for waiting in waiting_stages:
        let_meet(tx, waiting.id, sorted(parent for parent, pipeline in parents if pipeline == waiting.pipeline))


def keep(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The item is there: leave it as it is."""
    return old


def unite(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The fields of both; where both have one, the new one stands."""
    return {**old, **new}


def rerun_with(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """New data replaces the old; no data leaves it."""
    return new or old
