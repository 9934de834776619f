"""Show item: one item by its key, where it stands in each stage, and its history: events, outcomes and payments as one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.engine import ledger
from holdfast.engine.events import events
from holdfast.engine.item_stages import read_item_stages, read_leases
from holdfast.engine.layout import layout
from holdfast.errors import UsageError
from holdfast.model import codec
from holdfast.model.codec import require_storable
from holdfast.model.facts import Facts
from holdfast.model.history import MEANING, SENT_BACK
from holdfast.model.layout import Layout
from holdfast.model.paid_call import CHARGED
from holdfast.model.urls import as_key
from holdfast.store import Transaction


def find_item(tx: Transaction, key: str, pipeline: str | None) -> Facts:
    """The item of this key; an error if there is none, or one in several pipelines."""
    require_storable(key=key)
    if pipeline is not None:
        layout(tx).pipeline(pipeline)
    found = tx.run("find_item", key=key, pipeline=pipeline)
    if not found and as_key(key) != key:
        found = tx.run("find_item", key=as_key(key), pipeline=pipeline)
    if not found:
        where = f" in pipeline {pipeline!r}" if pipeline else ""
        raise UsageError(f"there is no item {key!r}{where}")
    if len(found) > 1:
        several = ", ".join(row[2] for row in found)
        raise UsageError(f"the key {key!r} is in several pipelines ({several}): say which with --pipeline")
    names = ("id", "pipeline_id", "pipeline", "key", "data", "priority", "created_at", "updated_at")
    return dict(zip(names, found[0], strict=True))


def name_of_item(tx: Transaction, number: int) -> tuple[str, str]:
    """The pipeline and the key of the item of this number."""
    found = names_of_items(tx, [number])
    if not found:
        raise UsageError(f"there is no item with the number {number}, or it was deleted")
    return found[number]


def names_of_items(tx: Transaction, numbers: Sequence[int]) -> dict[int, tuple[str, str]]:
    """The pipeline and the key of each item of these numbers that exists."""
    return {number: (pipeline, key) for number, pipeline, key in tx.run("names_of_items", items=list(numbers))}


def show(tx: Transaction, key: str, pipeline: str | None) -> Facts:
    """One item: its data, where each stage stands, and its history."""
    item = find_item(tx, key, pipeline)
    known = layout(tx)
    results = {row["stage"]: row for row in tx.records("item_outcomes", item=item["id"])}
    rows = stages_of(tx, item, known)
    leases = read_leases(tx, item["id"], item["key"])
    calls = ledger.calls_of(tx, item["id"])
    stages = []
    for row in known.of_pipeline(item["pipeline"]):
        facts: Facts = {"stage": row.name, "state": None, "attempts": 0}
        if row.id in rows:
            told = {name: value for name, value in rows[row.id].items() if name not in ("item", "stage")}
            facts = {"stage": row.name, **told}
        facts["lease"] = leases.get(row.id)
        facts["cost"] = sum(one["amount"] for one in calls if one["stage"] == row.id and one["state"] in CHARGED)
        if row.id in results:
            outcome = results[row.id]
            facts["version"] = outcome["version"]
            if outcome["result"] is not None:
                facts["result"] = codec.shown(outcome["result"])
            # Something other than holdfast may have written one without its time.
            if outcome["previous"] is not None and outcome["previous_ended_at"] is not None:
                facts["previous"] = {
                    "result": codec.shown(outcome["previous"]),
                    "version": outcome["previous_version"],
                    "ended_at": outcome["previous_ended_at"],
                }
        stages.append(facts)
    [(_, item_status)] = tx.run("item_status", items=[item["id"]])
    return {
        "id": item["id"],
        "pipeline": item["pipeline"],
        "key": item["key"],
        "status": item_status,
        "data": codec.shown(item["data"]),
        "priority": item["priority"],
        "created_at": item["created_at"],
        "updated_at": item["updated_at"],
        "stages": stages,
        "history": history(tx, item, known, calls),
    }


def stages_of(tx: Transaction, item: Facts, known: Layout) -> dict[int, Facts]:
    """By stage: where an item stands in those that its pipeline has and that have begun."""
    found = read_item_stages(tx, [item["id"]], [row.id for row in known.of_pipeline(item["pipeline"])])
    for row in found:
        if row["updated_at"] is None:
            row["updated_at"] = item["updated_at"]
    return {row["stage"]: row for row in found}


def history(tx: Transaction, item: Facts, known: Layout, calls: Iterable[Facts]) -> list[Facts]:
    """All that happened to an item, oldest first: its events and its outcomes, read as one.

    Events come in the order of their numbers, which no clock that is set can turn. A stage that passes for the first
    time leaves none: its outcome is what shows it.
    """
    told: list[Facts] = [{"at": item["created_at"], "event": "added"}]
    for event in events(tx, item=item["id"], most=1000):
        money = {name: event[name] for name in ("amount", "resource") if event[name] is not None}
        facts = {"at": event["at"], "event": event["event"], "stage": event["stage"], **money}
        told.append({**event["data"], **facts})
    for call in calls:
        if call["state"] in CHARGED:
            _insert_by_time(told, _as_event(call, known))
    said = {(one.get("stage"), one["event"]) for one in told}
    outcomes = [one for one in tx.records("item_outcomes", item=item["id"]) if one["stage"] in known.stages]
    # The last first: of those at one instant, each goes before the ones that are in place.
    for outcome in sorted(outcomes, key=lambda o: (o["ended_at"], known.stages[o["stage"]].position), reverse=True):
        stage = known.stages[outcome["stage"]].name
        name = {"done": "completed"}.get(outcome["state"], outcome["state"])
        if (stage, name) not in said:
            facts = {"attempt": outcome["attempts"], "version": outcome["version"]}
            place = _place(told, stage, outcome["ended_at"])
            told.insert(place, {"at": outcome["ended_at"], "event": name, "stage": stage, **facts})
    return told


def _as_event(call: Facts, known: Layout) -> Facts:
    """A payment as part of an item's history."""
    name = {"memo": call["name"]} if call["name"] else {}
    resource = {"resource": call["resource"]} if call["resource"] else {}
    stage = known.stages[call["stage"]].name if call["stage"] in known.stages else None
    facts = codec.stored(call["facts"], {})
    return {**facts, **name, "at": call["at"], "event": "cost", "stage": stage, "amount": call["amount"], **resource}


def _insert_by_time(told: list[Facts], one: Facts) -> None:
    place = len(told)
    while place > 1 and told[place - 1]["at"] >= one["at"]:
        place -= 1
    told.insert(place, one)


def _place(told: list[Facts], stage: str, ended_at: int) -> int:
    """Where an outcome belongs that no event tells of: behind its attempts, before all that sent its stage back, and in
    between as its time says."""
    mine = [(place, one["event"]) for place, one in enumerate(told) if one.get("stage") == stage]
    last = min((place for place, event in mine if event in SENT_BACK), default=len(told))
    place = 1 + max((place for place, event in mine if event in MEANING and place < last), default=0)
    while place < last and told[place]["at"] < ended_at:
        place += 1
    return place
