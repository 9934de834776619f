"""Read the record of one old item as well as possible. Pure.

A mapping (`legacy/mapping.py`) finds the values; here they become states, times, results and costs. What cannot be read becomes
a problem; nothing here raises. Three kinds of stages run again: one without a readable entry, one that ran although a stage
before it had not passed, and one whose missing result is needed by a later stage that has not run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from msgspec import UNSET

from holdfast.legacy.read_values import (
    SHOWN,
    ImportProblem,
    is_nothing,
    read_amount,
    read_attempts,
    read_elapsed,
    read_error,
    read_result,
    read_time,
    shown,
    text_of,
)
from holdfast.model.error_fingerprint import storable
from holdfast.model.states import BAD, FINISHED, OPEN, PASSED, State

#: Every kind of problem: what it is, and how it is handled.
KINDS: Mapping[str, str] = {
    "key_unusable": "no key, or one that cannot name an item: imported under the number of its row",
    "key_repeated": "the key of an earlier row: that row stands, this one is not imported",
    "mapping_failed": "the function of the mapping failed: the row is not imported",
    "pipeline_missing": "no pipeline is named: imported if only one is meant",
    "column_unreadable": "a column is no JSON: nothing was read from it",
    "column_no_object": "a column is no JSON object: nothing was read from it",
    "entry_repeated": "an entry comes twice: the last one stands",
    "entry_unknown": "an entry that the mapping does not name: left out",
    "stages_missing": "nothing is said about stages: starts at the first",
    "stage_unknown": "a stage that the pipeline does not have: left out",
    "stage_missing": "a stage that could begin has no entry: begins",
    "status_missing": "times or an error without a status: begins anew",
    "status_unreadable": "a status that is no text: begins anew",
    "status_unknown": "a status that nobody knows: begins anew",
    "status_differs": "the item's status says something else than its stages: the stages stand",
    "out_of_order": "a stage before it has not passed: begins anew after that one",
    "result_missing": "done, but without the result that a later stage needs: runs again",
    "result_outdated": "made from a result that is missing: runs again",
    "result_missing_for_retry": "done without a result, before a stage that ended badly: to retry that one, run this one again",
    "result_refused": "a result that cannot be kept: counts as missing",
    "time_unreadable": "a time that cannot be read: left out",
    "elapsed_unreadable": "a length of time that cannot be read: left out",
    "ended_before_started": "ended before it started: the start is left out",
    "end_missing": "finished, nobody knows when: ended at the time of the import",
    "attempts_unreadable": "a number of attempts that is none: left out",
    "priority_unreadable": "a priority that is no whole number: imported with 0",
    "cost_unreadable": "an amount of money that is none: left out",
    "cost_undated": "an amount of money without a time: counted on 1970-01-01",
    "cost_of_no_stage": "an amount of money for no stage of the pipeline: counted for none",
    "cost_of_no_item": "an amount of money for no item that is there: counted for its stage alone",
    "event_of_no_item": "an event of no item that is there: kept as one of the pipeline",
    "error_of_passed_stage": "an error although it is done: stays done, without the error",
    "error_of_open_stage": "an error although it is still to be run: left out",
    "data_unreadable": "the data are no JSON: kept as text under legacy_data",
    "data_no_object": "the data are no JSON object: kept under legacy_data",
    "data_refused": "the data cannot be kept as they are: kept as text under legacy_data, or left out if too large",
}

After = Mapping[str, Sequence[str]]


@dataclass(slots=True)
class OldRecord:
    """The raw values of one item that a mapping has found; UNSET for missing ones."""

    key: Any = UNSET
    pipeline: Any = UNSET
    data: Any = UNSET
    priority: Any = UNSET
    status: Any = UNSET
    attempts: Any = UNSET
    error: Any = UNSET
    added: Any = UNSET
    ended: Any = UNSET
    #: By stage: state, started, ended, elapsed, error, attempts, result, version, cost.
    stages: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    problems: list[ImportProblem] = field(default_factory=list)


class Entry(NamedTuple):
    """A stage that has begun: its state and what is known of its past. Times are microseconds since 1970."""

    state: State
    started_at: int | None = None
    ended_at: int | None = None
    error: str | None = None
    attempts: int | None = None
    #: How long it took, if its start is unknown.
    took_us: int | None = None
    #: As JSON text; None if missing.
    result: str | None = None
    #: Of the code that made the result; None for the current one.
    version: str | None = None
    cost: int = 0


_PENDING = Entry(State.PENDING)
#: Without on_hold: in a new store nothing would release it.
STATES: Mapping[str, State] = {str(state): state for state in State if state is not State.ON_HOLD}
_WITHOUT_ERROR = frozenset({State.DONE, State.PENDING, State.IN_PROGRESS})


class Stages(NamedTuple):
    """The stages of an item that have begun, in order. `again` are finished ones that run again."""

    begun: dict[str, Entry]
    again: list[str]
    problems: list[ImportProblem]


class StagesReader:
    """Reads the stages of items of one pipeline. `after` names its stages in order, each with those before it; `states` maps
    words to states."""

    def __init__(self, after: After, states: Mapping[str, State] = STATES) -> None:
        self._after = after
        self._states = states

    def read(self, said: OldRecord) -> Stages:
        problems = said.problems
        entries = {
            stage: self._entry(stage, said.stages[stage], problems) for stage in said.stages if stage in self._after
        }
        status = self._status(said, problems)
        silent = not any(entries.values())
        if silent and status in (None, State.PENDING):
            if status is None and not problems:
                problems.append(ImportProblem("stages_missing", None, ""))
            entries = dict.fromkeys(self._after, _PENDING)
        begun = self._begun(entries, _of_item(said, status, problems), status in OPEN, problems)
        if not silent:
            _compare(status, begun, problems)
        begun = _with_attempts(begun, read_attempts(None, said.attempts, problems))
        again = _to_run_again(begun, self._after, problems)
        return Stages(_without(begun, again, self._after) if again else begun, again, problems)

    def _begun(
        self, entries: Mapping[str, Entry | None], of_item: Entry | None, is_open: bool, problems: list[ImportProblem]
    ) -> dict[str, Entry]:
        """The stages that have begun. A stage without an entry takes its state from the status of the item: `done` applies to
        every stage, any other status to the first. In an item that `is_open` a missing entry is not a problem."""
        begun: dict[str, Entry] = {}
        passed: set[str] = set()
        for stage, before in self._after.items():
            entry = entries.get(stage)
            if before and not passed.issuperset(before):
                if entry is not None and entry.state is not State.PENDING:
                    lacking = ", ".join(name for name in before if name not in passed)
                    problems.append(
                        ImportProblem("out_of_order", stage, f"{entry.state}, though {lacking} has not passed")
                    )
                continue
            if of_item is not None and of_item.state not in PASSED and len(passed) == len(begun):
                if entry is None or (entry.state is State.IN_PROGRESS and of_item.state is not State.IN_PROGRESS):
                    entry = of_item._replace(started_at=None if entry is None else entry.started_at)
            elif entry is None and of_item is not None and of_item.state in PASSED:
                entry = of_item
            if entry is None:
                problems += [] if is_open else [ImportProblem("stage_missing", stage, "")]
                entry = _PENDING
            elif entry.ended_at is None and entry.state in FINISHED and entry is not of_item:
                problems.append(ImportProblem("end_missing", stage, str(entry.state)))
            begun[stage] = entry
            if entry.state in PASSED:
                passed.add(stage)
        return begun

    def _status(self, said: OldRecord, problems: list[ImportProblem]) -> State | None:
        if is_nothing(said.status):
            return None
        state = self._states.get(said.status.strip().lower()) if isinstance(said.status, str) else None
        if state is None:
            problems.append(ImportProblem("status_unknown", None, shown(said.status)))
        return state

    def _entry(self, stage: str, said: Mapping[str, Any], problems: list[ImportProblem]) -> Entry | None:
        """The entry of one stage; None if there is none."""
        if not said:
            return None
        given = {name: value for name, value in said.items() if not is_nothing(value)}
        result = said.get("result", UNSET)
        if not given and result is UNSET:
            return None
        started = read_time(stage, "started", given.get("started"), problems)
        ended = read_time(stage, "ended", given.get("ended"), problems)
        elapsed = read_elapsed(stage, given.get("elapsed"), problems)
        error = read_error(given["error"]) if "error" in given else None
        word = given.get("state")
        if word is None and result is not UNSET:
            word = str(State.DONE)
        if word is None:
            if (started, ended, elapsed, error) == (None, None, None, None):
                return None
            problems.append(
                ImportProblem("status_missing", stage, shown({k: v for k, v in given.items() if k != "result"}))
            )
            return _PENDING
        state = self._states.get(word) if isinstance(word, str) else None
        if state is None:
            state = self._state(stage, word, problems)
        if started is not None and ended is not None:
            if ended < started:
                rest = {name: given[name] for name in ("started", "ended", "elapsed", "error") if name in given}
                problems.append(ImportProblem("ended_before_started", stage, shown(rest)))
                started = None
        elif elapsed is not None and started is not None:
            ended = started + elapsed
        elif elapsed is not None and ended is not None:
            started = max(0, ended - elapsed)
        if error is not None and state in _WITHOUT_ERROR:
            kind = "error_of_passed_stage" if state is State.DONE else "error_of_open_stage"
            problems.append(ImportProblem(kind, stage, error[:SHOWN]))
            error = None
        version = given.get("version")
        return Entry(
            state,
            started,
            ended,
            error,
            read_attempts(stage, given.get("attempts"), problems),
            elapsed if started is None else None,
            read_result(stage, result, problems) if state is State.DONE else None,
            None if version is None else storable(text_of(version), SHOWN),
            read_amount(stage, given.get("cost"), problems),
        )

    def _state(self, stage: str, word: object, problems: list[ImportProblem]) -> State:
        if not isinstance(word, str):
            problems.append(ImportProblem("status_unreadable", stage, shown(word)))
            return State.PENDING
        state = self._states.get(word.strip().lower())
        if state is None:
            problems.append(ImportProblem("status_unknown", stage, storable(word, SHOWN)))
            return State.PENDING
        return state


def _of_item(said: OldRecord, status: State | None, problems: list[ImportProblem]) -> Entry | None:
    """The entry that the status of an item gives to a stage without one."""
    if status is None or status is State.PENDING:
        return None
    error = None if is_nothing(said.error) or status in _WITHOUT_ERROR else read_error(said.error)
    ended = read_time(None, "ended", said.ended, problems) if status in FINISHED else None
    return Entry(status, None, ended, error)


def _compare(status: State | None, begun: Mapping[str, Entry], problems: list[ImportProblem]) -> None:
    """Note a problem if the status of an item contradicts its stages."""
    other = next((stage for stage, entry in begun.items() if entry.state not in PASSED), None)
    if status in PASSED and other is not None:
        problems.append(ImportProblem("status_differs", None, f"{status}, though {other} is {begun[other].state}"))
    elif status in BAD and not any(entry.state in BAD for entry in begun.values()):
        problems.append(ImportProblem("status_differs", None, f"{status}, though no stage is"))


def _with_attempts(begun: dict[str, Entry], attempts: int | None) -> dict[str, Entry]:
    """Attempts that were counted for the item belong to its current stage."""
    if attempts:
        at = next((stage for stage, entry in begun.items() if entry.state not in PASSED), [*begun][-1])
        if begun[at].attempts is None:
            begun[at] = begun[at]._replace(attempts=attempts)
    return begun


def _to_run_again(begun: Mapping[str, Entry], after: After, problems: list[ImportProblem]) -> list[str]:
    """Finished stages whose missing result is needed by a stage that has not run yet, and the stages made from these."""
    lacking = {stage for stage, entry in begun.items() if entry.state is State.DONE and entry.result is None}
    if not lacking:
        return []
    to_run: set[str] = set()
    for stage, before in after.items():
        entry = begun.get(stage)
        if entry is None:
            if all(one in to_run or (one in begun and begun[one].state in PASSED) for one in before):
                to_run.add(stage)
        elif entry.state in OPEN:
            to_run.add(stage)
        elif entry.state in BAD:
            for parent in lacking.intersection(before):
                problems.append(ImportProblem("result_missing_for_retry", parent, f"{stage} is {entry.state}"))
    made_from: dict[str, list[str]] = {}
    for stage, entry in begun.items():
        if entry.state in PASSED:
            for parent in after[stage]:
                made_from.setdefault(parent, []).append(stage)
    again: set[str] = set()
    to_look_at = [*to_run]
    while to_look_at:
        stage = to_look_at.pop()
        needed = [parent for parent in after[stage] if parent in lacking]
        outdated = made_from.get(stage, ()) if stage in again else ()
        new = {*needed, *outdated} - again
        again |= new
        to_look_at += new
    found = [stage for stage in begun if stage in again]
    for stage in found:
        problems.append(
            ImportProblem("result_missing" if stage in lacking else "result_outdated", stage, str(begun[stage].state))
        )
    return found


def _without(begun: Mapping[str, Entry], again: Sequence[str], after: After) -> dict[str, Entry]:
    """The entries if some stages run again: the stages after these have not begun."""
    left: dict[str, Entry] = {}
    passed: set[str] = set()
    anew = {*again}
    for stage, entry in begun.items():
        if passed.issuperset(after[stage]):
            left[stage] = _PENDING if stage in anew else entry
            if left[stage].state in PASSED:
                passed.add(stage)
    return left
