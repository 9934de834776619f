"""Fold an item's history into where its stages are: the proof that nothing moves without leaving a trace.

Claims leave none of their own (an attempt's outcome is its record), so what is in progress folds to `pending`; and
what waits for a retry folds to `retry_later` until it is claimed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.model.states import PASSED, State

#: What an event says about the stage it names.
MEANING: Mapping[str, State] = {
    "completed": State.DONE,
    "skipped": State.SKIPPED,
    "failed": State.FAILED,
    "exhausted": State.EXHAUSTED,
    "cancelled": State.CANCELLED,
    "attempt_failed": State.RETRY_LATER,
    "snoozed": State.RETRY_LATER,
    "lease_expired": State.PENDING,
    "handed_back": State.PENDING,
    "superseded": State.PENDING,
    "retried": State.PENDING,
    "reopened": State.PENDING,
    "reprocessed": State.PENDING,
    "submitted_again": State.PENDING,
}


def fold(history: Iterable[Mapping[str, Any]], after: Mapping[str, tuple[str, ...]]) -> dict[str, State]:
    """Where each stage is, from the history alone; `after` names the stages of the pipeline and those before each."""
    where: dict[str, State] = {}
    for told in history:
        if told["event"] == "added":
            where |= {stage: State.PENDING for stage, before in after.items() if not before}
            continue
        stage, meaning = told.get("stage"), MEANING.get(told["event"])
        if stage is None or meaning is None or stage not in after:
            continue
        # A re-run that was cancelled leaves what stood before.
        where[stage] = State(told["stays"]) if told.get("stays") else meaning
        if meaning in PASSED:
            for other, before in after.items():
                if stage in before and other not in where and all(where.get(one) in PASSED for one in before):
                    where[other] = State.PENDING
    return where
