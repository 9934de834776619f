"""What was spent, grouped as asked: what was charged, what may have been charged, and what is set aside for running work.

Without a time, the answer comes from sums per day, and costs the same however many calls there were. Since a time, or by item,
it reads the ledger itself, one period after another, so that it needs no more memory than the answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.engine.events import EVER, LAST
from holdfast.engine.layout import layout
from holdfast.errors import UsageError
from holdfast.model.layout import Layout
from holdfast.model.paid_call import TOKENS
from holdfast.store import Transaction

#: What sums may be taken by.
BY = ("pipeline", "stage", "item", "resource", "model", "day")
#: How many calls are added up by one statement.
CHUNK = 50_000

SUMS = ("costs", "in_doubt", "payments", "doubts", *TOKENS)


def costs(tx: Transaction, by: tuple[str, ...], *, pipeline: str | None, since: int | None) -> list[dict[str, Any]]:
    """Sums of money in millionths, largest first: `spent` is `costs` and what is `in_doubt`; `set_aside` stands apart, and is
    known by pipeline and stage only. Days are those of the zone of the resource."""
    unknown = [name for name in by if name not in BY]
    if unknown or not by:
        raise UsageError(f"costs by {', '.join(unknown) or 'nothing'}: they are summed by {', '.join(BY)}")
    sums: dict[tuple[Any, ...], dict[str, int]] = {}
    for row in _rows(tx, by, pipeline, since):
        entry = sums.setdefault(tuple(row[name] for name in by), dict.fromkeys((*SUMS, "set_aside"), 0))
        for name in entry:
            entry[name] += row.get(name, 0)
    told = [
        {**dict(zip(by, group, strict=True)), "spent": entry["costs"] + entry["in_doubt"], **entry}
        for group, entry in sums.items()
        if any(entry.values())
    ]
    return sorted(told, key=lambda one: (-one["spent"], str(one)))


def _rows(tx: Transaction, by: tuple[str, ...], pipeline: str | None, since: int | None) -> Iterator[dict[str, Any]]:
    """Sums with names in place of numbers."""
    known = layout(tx)
    if pipeline is not None and pipeline not in known.pipelines:
        return
    rows = _from_ledger(tx, by, since) if since is not None or "item" in by else iter(tx.records("sum_money"))
    for row in rows:
        named = {
            **row,
            **_names(known, row["stage"]),
            "resource": row["resource"] or None,
            "model": row["model"] or None,
        }
        if pipeline in (None, named["pipeline"]):
            yield named
    if since is None and not {"item", "resource", "model", "day"} & {*by}:
        for stage, amount in tx.run("set_aside_by_stage"):
            named = _names(known, stage)
            if pipeline in (None, named["pipeline"]):
                yield {**named, "set_aside": amount}


def _names(known: Layout, stage: int) -> dict[str, str | None]:
    row = known.stages.get(stage)
    return {"pipeline": None, "stage": None} if row is None else {"pipeline": row.pipeline_name, "stage": row.name}


def sums_of_calls(
    tx: Transaction, since: int, until: int = LAST, *, items: bool = False, quarters: bool = False
) -> Iterator[list[dict[str, Any]]]:
    """Sums over the calls of a time, in stretches; by item, and by quarter of an hour, if asked for."""
    while since < until:
        end = min(_end_of_stretch(tx, since), until)
        yield tx.records("sum_calls", since=since, until=end, items=int(items), quarters=int(quarters))
        since = end


def _from_ledger(tx: Transaction, by: tuple[str, ...], since: int | None) -> Iterator[dict[str, Any]]:
    for rows in sums_of_calls(tx, EVER if since is None else since, items="item" in by):
        items = sorted({row["item"] for row in rows if row["item"] is not None})
        keys = {row["id"]: row["key"] for row in tx.records("read_items", items=items)} if items else {}
        for row in rows:
            yield {**row, "item": keys.get(row["item"])}


def _end_of_stretch(tx: Transaction, since: int) -> int:
    """When the next stretch begins. A stretch has all calls of one instant."""
    found = tx.run("calls_until", since=since, most=CHUNK)
    return max(found[0][0], since + 1) if found else LAST
