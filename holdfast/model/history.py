"""Fold an item's history into the states of its stages: the proof that no stage moves without an event.

Some moves record no event: a claim (the outcome of the attempt is the record), work that was handed back before its handler
began, and a retry that becomes due. So a stage in progress folds to `pending`, and a failed one that will be retried folds to
`retry_later` until the next attempt ends.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from holdfast.model.states import FINISHED, PASSED, State

#: The state of a stage after an event that names it.
MEANING: Mapping[str, State] = {
    "completed": State.DONE,
    "skipped": State.SKIPPED,
    "failed": State.FAILED,
    "exhausted": State.EXHAUSTED,
    "cancelled": State.CANCELLED,
    "attempt_failed": State.RETRY_LATER,
    "snoozed": State.RETRY_LATER,
    "children_ended": State.PENDING,
    "lease_expired": State.PENDING,
    "handed_back": State.PENDING,
    "held": State.ON_HOLD,
    "superseded": State.PENDING,
    "retried": State.PENDING,
    "reopened": State.PENDING,
    "reprocessed": State.PENDING,
    "submitted_again": State.PENDING,
}
#: Every kind of event that this holdfast records.
EVENTS = frozenset(MEANING) | {
    "accepted",
    "action_stopped",
    "alert_given_up",
    "alert_told",
    "answer_rejected",
    "answer_restored",
    "breaker_closed",
    "breaker_opened",
    "budget_reached",
    "clock_set",
    "cooled_down",
    "declared",
    "deleted",
    "discovered",
    "discovery_failed",
    "import_problem",
    "in_doubt",
    "job_file_broken",
    "job_file_wants_restart",
    "lease_lost",
    "legacy_event",
    "legacy_imported",
    "look_requested",
    "money_in_doubt",
    "paused",
    "pipeline_registered",
    "pruned",
    "rerun_refused",
    "resolved",
    "resumed",
    "row_set_aside",
    "stage_renamed",
    "sums_repaired",
    "tuned",
    "unknown_resource",
    "worker_died",
    "worker_started",
    "worker_stopped",
}
#: Events that send a finished stage back; `was` has its former state.
SENT_BACK = frozenset({"retried", "reopened", "reprocessed", "submitted_again"})


def fold(
    history: Iterable[Mapping[str, Any]], after: Mapping[str, Collection[str]], awaiting: Collection[str] = ()
) -> dict[str, State]:
    """The state of each stage, from the history alone. `after` names the stages of the pipeline and those before each.

    Stages in `awaiting` also wait for children, and begin when an event says so.
    """
    where: dict[str, State] = {}
    # Stages with a valid result, also while they run again: the stages after them may begin.
    passed: set[str] = set()
    for told in history:
        if told["event"] == "added":
            where |= {stage: State.PENDING for stage, before in after.items() if not before}
            continue
        stage, meaning = told.get("stage"), MEANING.get(told["event"])
        if stage is None or meaning is None or stage not in after:
            continue
        # A cancelled re-run leaves the former result.
        state = where[stage] = State(told["stays"]) if told.get("stays") else meaning
        if state in PASSED or told.get("was") in PASSED:
            passed.add(stage)
        elif state in FINISHED:
            passed.discard(stage)
        if stage in passed:
            for other, before in after.items():
                if stage in before and other not in where and other not in awaiting and passed.issuperset(before):
                    where[other] = State.PENDING
    return where
