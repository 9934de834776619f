"""Findings that need a person: work that no worker runs, silent workers, calls in doubt, a transaction left open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.clock import SECOND
from holdfast.engine.gauges import gauges
from holdfast.engine.layout import layout
from holdfast.engine.status import workers
from holdfast.model.durations import spoken
from holdfast.store import Transaction

#: Work that nobody takes may wait this long: a worker may be about to start.
WAITS_SECONDS = 60.0

#: A transaction may be open for so long: an export or a backup may be under way.
OPEN_SECONDS = 1800.0


def findings(tx: Transaction) -> list[str]:
    """One line for each."""
    known, found = layout(tx), workers(tx)
    offered = {label for worker in found if worker["alive"] for label in worker["stages"]}
    lines = [f"worker {worker['name']} is silent" for worker in found if not worker["alive"]]
    for stage in gauges(tx)["stages"]:
        label = f"{stage['pipeline']}/{stage['stage']}"
        row = known.find(stage["pipeline"], stage["stage"])
        is_paused = known.pipelines[stage["pipeline"]].paused or (row is not None and row.paused)
        age = stage["due_age_us"] / SECOND
        if age > WAITS_SECONDS and label not in offered and not is_paused:
            lines.append(f"{label}: work has been waiting for {spoken(age)}, and no living worker runs this stage")
        if stage["in_doubt"]:
            lines.append(f"{label}: {stage['in_doubt']} paid calls are in doubt; settle them with `holdfast resolve`")
    return lines


def findings_in_facts(facts: Mapping[str, Any]) -> list[str]:
    """The same about what the database says of itself."""
    age = facts.get("oldest_transaction_seconds") or 0.0
    if age <= OPEN_SECONDS:
        return []
    who = f"the transaction of process {facts['oldest_transaction_process']} of the server"
    since = f"has been open for {spoken(age)}"
    return [f"{who} {since}: until it ends, every claim reads past all rows that were deleted since it began"]
