"""Findings: what a person should look at, because work waits for nobody, workers are silent, or money is in doubt."""

from __future__ import annotations

from holdfast.clock import SECOND
from holdfast.engine.gauges import gauges
from holdfast.engine.layout import layout
from holdfast.engine.status import workers
from holdfast.model.durations import spoken
from holdfast.store import Transaction

#: Work that nobody takes may wait this long: a worker may be about to start.
WAITS_SECONDS = 60.0


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
