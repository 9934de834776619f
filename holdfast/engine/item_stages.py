"""The states of stages of items: like the view `item_stages`, read for a few items through the indexes of each table; and who
holds those of one item."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from holdfast.model import codec, shapes
from holdfast.model.facts import Facts
from holdfast.model.states import State
from holdfast.store import Transaction


def read_item_stages(tx: Transaction, items: Collection[int], stages: Collection[int]) -> list[dict[str, Any]]:
    """One entry for each of these stages that has begun in each of the items. A stage that is open again hides its outcome.

    `updated_at` is None where only the item itself has a time.
    """
    if not items:
        return []
    held = {
        (item, stage): (attempt, since) for item, stage, attempt, since in tx.run("leases_of_items", items=[*items])
    }
    found = []
    for stage in stages:
        for row in tx.records("stage_of_items", items=[*items], stage=stage):
            place = (row["item"], stage)
            if place in held:
                attempt, since = held[place]
                found.append(_entry(place, State.IN_PROGRESS, attempt, started_at=since, updated_at=since))
            elif row["waiting"] is not None:
                found.append(_entry(place, State.PENDING, row["waiting"]))
            elif row["delayed"] is not None:
                when = {
                    "next_attempt_at": row["due_at"],
                    "error": row["delayed_error"],
                    "error_group": row["delayed_group"],
                }
                found.append(_entry(place, State.RETRY_LATER, row["delayed"], **when))
            elif row["held"] is not None:
                why = {"error": row["held_reason"], "updated_at": row["held_since"]}
                found.append(_entry(place, State.ON_HOLD, row["held"], **why))
            elif row["state"] is not None:
                found.append(_ended(place, row))
    return found


def _ended(place: tuple[int, int], row: dict[str, Any]) -> dict[str, Any]:
    began, ended = row["started_at"], row["ended_at"]
    return _entry(
        place,
        State(row["state"]),
        row["attempts"],
        started_at=began,
        ended_at=ended,
        elapsed_us=None if began is None else ended - began,
        error=row["error"],
        error_group=row["error_group"],
        updated_at=ended,
    )


def _entry(place: tuple[int, int], state: State, attempts: int, **more: Any) -> dict[str, Any]:
    item, stage = place
    names = ("started_at", "ended_at", "elapsed_us", "next_attempt_at", "error", "error_group", "updated_at")
    return {"item": item, "stage": stage, "state": str(state), "attempts": attempts, **dict.fromkeys(names), **more}


def read_leases(tx: Transaction, item: int, key: str) -> dict[int, Facts]:
    """By stage: who holds it, since when, and how far its handler says it has come. `worker` is None if its worker is dead."""
    found = {}
    for row in tx.records("item_lease", item=item):
        same_clock = row["clock"] == tx.store.driver.clock_name
        facts = codec.stored(row["facts"], {}, shapes.WorkerFacts)
        notes = [one for one in facts.get("progress", ()) if one["item"] == key]
        found[row["stage"]] = {
            "worker": row["name"],
            "process": None if row["process"] is None else row["process"].partition(" ")[0],
            "alive": bool(same_clock and row["alive_until"] > tx.steady),
            "since": row["since"],
            "attempt": row["attempt"],
            "progress": notes[0] if notes else None,
        }
    return found
