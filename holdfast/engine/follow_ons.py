"""Follow-ons and children: items that a handler submits, and stages that wait for them.

A follow-on is added by the transaction that completes the stage. If two submit the same key at once, the second waits for the
first to commit or roll back: the item is added exactly once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from holdfast.engine.add import merged
from holdfast.engine.fan_in import begin_if_ready
from holdfast.engine.finish_leases import FinishedAttempt, FollowOn
from holdfast.engine.layout import layout
from holdfast.engine.rerun_follow_ons import rerun_items
from holdfast.engine.upsert import NewItem, Upserted, upsert
from holdfast.store import Transaction

WHEN_EXISTS = ("skip", "rerun", "merge")


def add_follow_ons(tx: Transaction, finished: Sequence[FinishedAttempt]) -> None:
    """Add the items that these completed attempts submitted."""
    wanted = [(one, follow_on) for one in finished for follow_on in one.follow_ons]
    if not wanted:
        return
    wanted.sort(key=lambda pair: (pair[1].pipeline, pair[1].when_exists, pair[1].key))
    for (pipeline, when_exists), same in groupby(wanted, key=lambda pair: (pair[1].pipeline, pair[1].when_exists)):
        pairs = list(same)
        done, renewed = _submit(tx, pipeline, when_exists, [follow_on for _, follow_on in pairs])
        if when_exists == "rerun" and done.known:
            asked: dict[int, list[int]] = {}
            for one, follow_on in pairs:
                if follow_on.key in done.known:
                    asked.setdefault(done.known[follow_on.key], []).append(one.lease.item)
            rerun_items(tx, pipeline, asked, renewed)
        numbers = done.born | done.known
        links = [(one.lease.item, numbers[follow_on.key]) for one, follow_on in pairs if follow_on.child]
        if links:
            tx.run_rows("add_children", sorted(set(links)))
            _wait_also_for_these(tx, finished[0].lease.stage, pipeline, sorted({parent for parent, _ in links}))


def _submit(tx: Transaction, pipeline: str, when_exists: str, follow_ons: list[FollowOn]) -> tuple[Upserted, set[int]]:
    """Add the items; also return those that existed and got new data."""
    merge = {"skip": keep, "rerun": rerun_with, "merge": unite}[when_exists]
    items: dict[str, NewItem] = {}
    for one in follow_ons:
        # Several with the same key are merged as if they were added one after the other.
        data = merged(merge, one.key, items[one.key].data, one.data) if one.key in items else one.data
        items[one.key] = NewItem(one.key, data, one.type, one.traceparent)
    renewed: set[str] = set()

    def decide(key: str, old: str, new: str) -> str:
        data = merged(merge, key, old, new)
        if data != old:
            renewed.add(key)
        return data

    done = upsert(tx, pipeline, list(items.values()), decide)
    return done, {done.known[key] for key in renewed}


def _wait_also_for_these(tx: Transaction, stage: int, pipeline: str, parents: list[int]) -> None:
    """Items got children from a stage that need not come before the waiting one: that may have closed a cycle."""
    known = layout(tx)
    for waiting in known.awaiting_children_of(pipeline):
        is_theirs = waiting.pipeline == known.stages[stage].pipeline and waiting.id in known.may_wait_in_cycle
        if is_theirs and stage not in known.parents(waiting.id):
            begin_if_ready(tx, waiting.id, parents)


def keep(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Leave the existing item unchanged."""
    return old


def unite(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The fields of both; new values replace old ones."""
    return {**old, **new}


def rerun_with(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """New data replaces old data; without new data, the old stays."""
    return new or old
