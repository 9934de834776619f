"""Error groups: failures that are alike are counted together as they happen, so that a question about them costs the same
however many there were.

Each writer has rows of its own, as with counts; those of writers that are gone are folded into slot 0. Of each stage only the
groups seen last are kept, in case every failure is unlike all others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from holdfast.engine.finish_leases import FinishedAttempt
from holdfast.engine.layout import layout
from holdfast.engine.throughput_by_minute import TREND_HOURS, failures_by_hour
from holdfast.errors import UsageError
from holdfast.model.error_fingerprint import HINTS, Cause, cause_of
from holdfast.model.facts import Facts
from holdfast.model.plausible import bounded
from holdfast.store import Transaction

#: So many groups are kept of a stage, for each writer.
MOST_GROUPS = 500
#: So many items of a group are counted; beyond that the answer says only that there are more.
MOST_ITEMS = 1000


class Failure(NamedTuple):
    """An attempt at a stage of an item that failed, and what was paid in it."""

    stage: int
    item: int
    cause: Cause
    amount: int = 0


def find_causes(failed: Iterable[FinishedAttempt]) -> None:
    """Say of each attempt what it failed of."""
    for one in failed:
        one.cause = cause_of(one.error, one.traceback, one.lease.key)


def enter_attempts(tx: Transaction, stage: int, failed: Sequence[FinishedAttempt]) -> None:
    """Count attempts whose outcomes, and costs, are written."""
    paying = [one.lease.id for one in failed if one.costs or one.lease.has_paid or one.lease.has_open_call]
    items = [one.lease.item for one in failed]
    paid: dict[int, int] = dict(tx.run("paid_in_leases", stage=stage, items=items, leases=paying)) if paying else {}
    enter(tx, [Failure(stage, one.lease.item, one.cause, paid.get(one.lease.id, 0)) for one in failed if one.cause])


def enter(tx: Transaction, failures: Iterable[Failure]) -> None:
    """Count failures."""
    summed: dict[tuple[int, str], list[Any]] = {}
    for one in failures:
        row = summed.setdefault((one.stage, one.cause.group), [*one.cause, 0, 0, tx.now, tx.now, 0])
        row[3] += 1
        row[4] += one.amount
        row[7] = one.item
    _add(tx, tx.slot, summed)


def fold_groups(tx: Transaction, most: int) -> int:
    """Add up the groups of writers that are gone."""
    rows = tx.run("take_error_groups_of_the_gone", most=most)
    summed: dict[tuple[int, str], list[Any]] = {}
    for stage, group, *row in sorted(rows, key=lambda row: row[8]):  # the newest last: its item stands for all
        had = summed.get((stage, group))
        if had is not None:
            row[3], row[4], row[5] = bounded(row[3] + had[3]), bounded(row[4] + had[4]), min(row[5], had[5])
        summed[stage, group] = row
    _add(tx, 0, summed)
    return len(rows)


def _add(tx: Transaction, slot: int, summed: dict[tuple[int, str], list[Any]]) -> None:
    tx.run_rows("add_error_groups", [(slot, *key, *row) for key, row in sorted(summed.items())])
    for stage in sorted({stage for stage, _ in summed}):
        tx.run("trim_error_groups", slot=slot, stage=stage, most=MOST_GROUPS)


def check(tx: Transaction, group: str | None) -> None:
    """Refuse a group that nothing has ever failed of."""
    if group is not None and not tx.run("has_error_group", id=group):
        raise UsageError(f"there is no error group {group!r}: `holdfast errors` lists them")


def errors(
    tx: Transaction, *, pipeline: str | None = None, stage: str | None = None, since: int | None = None, most: int = 50
) -> list[Facts]:
    """The most frequent causes of failures, each with how many attempts failed of it, at which stages, when first and last,
    in each of the last 24 hours, what was paid in them, and how many items stand failed for it now."""
    stages = {row.id: row for row in layout(tx).chosen(pipeline, stage)}
    found: dict[str, Facts] = {}
    # The newest last: its item stands for the group.
    for row in sorted(tx.records("read_error_groups"), key=lambda row: row["last_seen"]):
        if row["stage"] not in stages:
            continue
        entry = found.setdefault(
            row["id"],
            {
                "group": row["id"],
                "error": row["kind"],
                "place": row["place"],
                "message": row["message"],
                "hint": HINTS.get(row["kind"]),
                "count": 0,
                "spent": 0,
                "stages": [],
                "first_seen_at": row["first_seen"],
            },
        )
        entry["count"] += row["n"]
        entry["spent"] += row["amount"]
        entry["first_seen_at"] = min(entry["first_seen_at"], row["first_seen"])
        entry["last_seen_at"], entry["item"] = row["last_seen"], row["item"]
        if (label := stages[row["stage"]].label) not in entry["stages"]:
            entry["stages"].append(label)
    by_hour = failures_by_hour(tx, stages) if found else {}
    for group, entry in found.items():
        entry["by_hour"] = by_hour.get(group, [0] * TREND_HOURS)
    told = [one for one in found.values() if since is None or one["last_seen_at"] >= since]
    told = sorted(told, key=lambda one: (-one["count"], one["group"]))[:most]
    return _with_items(tx, told, stages)


def _with_items(tx: Transaction, told: list[Facts], stages: Collection[int]) -> list[Facts]:
    names = {row.id: row.name for row in layout(tx).pipelines.values()}
    wanted = sorted({one["item"] for one in told})
    keys = {row["id"]: row for row in tx.records("read_items", items=wanted)} if wanted else {}
    for one in told:
        # It may have been deleted since.
        sample = keys[one.pop("item")]
        one["pipeline"], one["key"] = names.get(sample["pipeline"]), sample["key"]
        standing = tx.run("items_of_error_group", id=one["group"], stages=[*stages], most=MOST_ITEMS + 1)
        one["items"], one["more_items"] = min(len(standing), MOST_ITEMS), len(standing) > MOST_ITEMS
    return told
