"""One row of an old table whose stages lie in a JSON column, read as well as it can be. Pure.

    {"fetch": "done", "fetch_started": "2024-05-01T10:00:00", "fetch_ended": "2024-05-01T10:00:07", "fetch_elapsed_s": 7.1,
     "extract": "failed", "extract_error": "no pages"}

What cannot be read is a problem with a kind, told beside what was read; nothing here raises. A stage that has no entry, or
none that can be understood, begins anew; so does one that was run although a stage before it has not passed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from holdfast.clock import SECOND
from holdfast.errors import HoldfastError, ValueRefused
from holdfast.model import codec
from holdfast.model.faults import storable
from holdfast.model.item import check_key
from holdfast.model.states import FINISHED, PASSED, State

#: Every kind of problem: what it is, and what becomes of it.
KINDS: Mapping[str, str] = {
    "key_unusable": "no key, or one that cannot name an item: imported under the number of its row",
    "key_repeated": "the key of an earlier row: that row stands, this one is not imported",
    "pipeline_missing": "no pipeline is named: imported if only one is meant",
    "stages_missing": "nothing is said about stages: starts at the first",
    "stages_unreadable": "the stages are no JSON: starts at the first",
    "stages_no_object": "the stages are no JSON object: starts at the first",
    "entry_repeated": "an entry comes twice: the last one stands",
    "stage_unknown": "a stage that the pipeline does not have: left out",
    "stage_missing": "a stage that could begin has no entry: begins",
    "status_missing": "times or an error without a status: begins anew",
    "status_unreadable": "a status that is no text: begins anew",
    "status_unknown": "a status that nobody knows: begins anew",
    "out_of_order": "a stage before it has not passed: begins anew after that one",
    "time_unreadable": "a time that cannot be read: left out",
    "elapsed_unreadable": "a length of time that cannot be read: left out",
    "ended_before_started": "ended before it started: the start is left out",
    "end_missing": "finished, nobody knows when: ended at the time of the import",
    "error_of_passed_stage": "an error although it is done: stays done, without the error",
    "error_of_open_stage": "an error although it is still to be run: left out",
    "data_unreadable": "the data are no JSON: kept as text under legacy_data",
    "data_no_object": "the data are no JSON object: kept under legacy_data",
    "data_refused": "the data cannot be kept as they are: kept as text under legacy_data, or left out if too large",
}

#: Where an item's data go if they cannot be its data as they are, and the key that could not be its key.
LEGACY_DATA, LEGACY_KEY = "legacy_data", "legacy_key"
#: How much of what was found a problem shows.
SHOWN = 200

_SUFFIXES = ("_started", "_ended", "_elapsed_s", "_error")
_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = _EPOCH.replace(tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_BLANK_BEFORE_COLON = re.compile(rb"\s:")
_NUMBER = re.compile(r"\d{1,20}(?:\.\d{0,20})?")
#: Numbers from here on are milliseconds since 1970, up to there: the year 5138 in both.
_MILLISECONDS, _LATEST = 1e11, 1e14

After = Mapping[str, Sequence[str]]


class Problem(NamedTuple):
    """Something that could not be read."""

    kind: str
    stage: str | None
    found: str


class Entry(NamedTuple):
    """A stage that has begun: where it is, and what is known of how it got there. Times are microseconds since 1970."""

    state: State
    started_at: int | None = None
    ended_at: int | None = None
    error: str | None = None


_PENDING = Entry(State.PENDING)
#: Work on hold is a matter of this store: nobody would know what releases it.
_STATES: dict[str, State] = {str(state): state for state in State if state is not State.ON_HOLD}
_WITHOUT_ERROR = frozenset({State.DONE, State.PENDING, State.IN_PROGRESS})


class Stages(NamedTuple):
    """The stages of a row that have begun, in order; the others have not."""

    begun: dict[str, Entry]
    problems: list[Problem]


class Data(NamedTuple):
    """The data of an item, and the same as it is stored."""

    value: dict[str, Any]
    text: str
    problems: list[Problem]


class _Names(NamedTuple):
    """What the entries of a stage are called."""

    stage: str
    started: str
    ended: str
    elapsed: str
    error: str


class Reader:
    """Reads the stages of rows of one pipeline. `after` names its stages in order, each with those before it."""

    def __init__(self, after: After) -> None:
        self._stages = [
            (_Names(stage, *(stage + suffix for suffix in _SUFFIXES)), before) for stage, before in after.items()
        ]
        self._known = frozenset(name for names, _ in self._stages for name in names)

    def read(self, raw: bytes | None) -> Stages:
        problems: list[Problem] = []
        said = _object(raw, problems)
        begun: dict[str, Entry] = {}
        passed: set[str] = set()
        for names, before in self._stages:
            stage = names.stage
            entry = _PENDING if said is None else _entry(names, said, problems)
            if before and not passed.issuperset(before):
                if entry is not None and entry.state is not State.PENDING:
                    lacking = ", ".join(name for name in before if name not in passed)
                    problems.append(Problem("out_of_order", stage, f"{entry.state}, though {lacking} has not passed"))
                continue
            if entry is None:
                problems.append(Problem("stage_missing", stage, ""))
                entry = _PENDING
            elif entry.ended_at is None and entry.state in FINISHED:
                problems.append(Problem("end_missing", stage, str(entry.state)))
            begun[stage] = entry
            if entry.state in PASSED:
                passed.add(stage)
        if said is not None and not self._known.issuperset(said):
            problems += self._unknown(said)
        return Stages(begun, problems)

    def _unknown(self, said: Mapping[str, Any]) -> list[Problem]:
        """Stages that the pipeline does not have, each once."""
        found: dict[str, Any] = {}
        for name, value in said.items():
            if name not in self._known:
                base = next((name.removesuffix(suffix) for suffix in _SUFFIXES if name.endswith(suffix)), name)
                found[base] = value if base == name else found.get(base)
        return [Problem("stage_unknown", storable(base, SHOWN), _shown(value)) for base, value in found.items()]


def read_key(raw: bytes | None, row: int) -> tuple[str, list[Problem]]:
    """The item's key; one made of the row's number if there is none that will do."""
    try:
        return check_key(raw.decode() if raw is not None else ""), []
    except (HoldfastError, UnicodeDecodeError):
        return f"legacy-row-{row}", [Problem("key_unusable", None, _shown(raw))]


def read_data(raw: bytes | None) -> Data:
    """The item's data, whatever they are."""
    if raw is None or not raw.strip():
        return Data({}, "{}", [])
    try:
        value = _parsed(raw)
    except (ValueError, RecursionError):
        return _as_text(raw, Problem("data_unreadable", None, _shown(raw)))
    if value is None:
        return Data({}, "{}", [])
    kept = value if isinstance(value, dict) else {LEGACY_DATA: value}
    try:
        text = codec.encode(kept)
    except ValueRefused as error:
        return _as_text(raw, Problem("data_refused", None, str(error)))
    return Data(kept, text, [] if kept is value else [Problem("data_no_object", None, _shown(raw))])


def with_key(data: Data, key: bytes) -> Data:
    """The same with the key that could not be the item's key, unless something bears that name already."""
    kept = {LEGACY_KEY: codec.plain_text(key.decode(errors="replace"), 10_000), **data.value}
    return data._replace(value=kept, text=codec.encode(kept))


def _parsed(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # This one reads what Python writes although it is no JSON: NaN, Infinity, half of a character.
        return json.loads(raw)


def _repeated(raw: bytes, value: Mapping[str, Any]) -> list[str]:
    """The names that come more than once; where every name has its colon, there are none."""
    if raw.count(b'":') == len(value) and not _BLANK_BEFORE_COLON.search(raw):
        return []
    pairs: list[tuple[str, Any]] = json.loads(raw, object_pairs_hook=list)
    names = [name for name, _ in pairs]
    return sorted({name for name in names if names.count(name) > 1}) if len(names) > len(value) else []


def _object(raw: bytes | None, problems: list[Problem]) -> dict[str, Any] | None:
    if raw is None or not raw.strip():
        problems.append(Problem("stages_missing", None, "" if raw is None else _shown(raw)))
        return None
    try:
        value = _parsed(raw)
        if isinstance(value, dict):
            problems += [Problem("entry_repeated", None, storable(name, SHOWN)) for name in _repeated(raw, value)]
            return value
    except (ValueError, RecursionError):
        problems.append(Problem("stages_unreadable", None, _shown(raw)))
        return None
    problems.append(Problem("stages_missing" if value is None else "stages_no_object", None, _shown(raw)))
    return None


def _entry(names: _Names, said: Mapping[str, Any], problems: list[Problem]) -> Entry | None:
    """What is said of one stage; None if nothing is."""
    get = said.get
    started, ended, elapsed, error = get(names.started), get(names.ended), get(names.elapsed), get(names.error)
    word = get(names.stage)
    # Most entries say nothing: to ask for each takes longer than all else.
    started = None if started is None or started == "" else _time(names.stage, "started", started, problems)
    ended = None if ended is None or ended == "" else _time(names.stage, "ended", ended, problems)
    elapsed = None if elapsed is None or elapsed == "" else _elapsed(names.stage, elapsed, problems)
    error = None if error is None or error == "" else storable(error if isinstance(error, str) else _shown(error))
    if word is None or word == "":
        if (started, ended, elapsed, error) == (None, None, None, None):
            return None
        problems.append(Problem("status_missing", names.stage, _rest(names, said)))
        return _PENDING
    state = _STATES.get(word) if isinstance(word, str) else None
    if state is None:
        state = _state(names.stage, word, problems)
    if started is not None and ended is not None:
        if ended < started:
            problems.append(Problem("ended_before_started", names.stage, _rest(names, said)))
            started = None
    elif elapsed is not None and started is not None:
        ended = started + elapsed
    elif elapsed is not None and ended is not None:
        started = max(0, ended - elapsed)
    if error is not None and state in _WITHOUT_ERROR:
        kind = "error_of_passed_stage" if state is State.DONE else "error_of_open_stage"
        problems.append(Problem(kind, names.stage, error[:SHOWN]))
        error = None
    return Entry(state, started, ended, error)


def _state(stage: str, word: object, problems: list[Problem]) -> State:
    if not isinstance(word, str):
        problems.append(Problem("status_unreadable", stage, _shown(word)))
        return State.PENDING
    state = _STATES.get(word.strip().lower())
    if state is None:
        problems.append(Problem("status_unknown", stage, storable(word, SHOWN)))
        return State.PENDING
    return state


def _time(stage: str, what: str, value: object, problems: list[Problem]) -> int | None:
    try:
        return _instant(value)
    except (ValueError, OverflowError):
        problems.append(Problem("time_unreadable", stage, f"{what}: {_shown(value)}"))
        return None


def _instant(value: object) -> int:
    """Microseconds since 1970, from a text in ISO form (UTC unless it says otherwise) or a number of (milli)seconds."""
    if isinstance(value, str):
        text = value.strip()
        try:
            given = datetime.fromisoformat(text)
        except ValueError:
            if not _NUMBER.fullmatch(text):
                raise
            value = float(text)
        else:
            micros = (given - (_EPOCH if given.tzinfo is None else _EPOCH_UTC)) // _MICROSECOND
            if micros < 0:
                raise ValueError(value)
            return micros
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < _LATEST:
        raise ValueError(value)
    return round(value * (SECOND if value < _MILLISECONDS else 1000))


def _elapsed(stage: str, value: object, problems: list[Problem]) -> int | None:
    try:
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise ValueError
        seconds = float(value)
        if not 0 <= seconds < _MILLISECONDS:
            raise ValueError
    except (ValueError, OverflowError):
        problems.append(Problem("elapsed_unreadable", stage, _shown(value)))
        return None
    return round(seconds * SECOND)


def _rest(names: _Names, said: Mapping[str, Any]) -> str:
    """All that is said of a stage beside its status."""
    found = {
        suffix[1:]: said[name] for suffix, name in zip(_SUFFIXES, names[1:], strict=True) if said.get(name) is not None
    }
    return _shown(found)


def _as_text(raw: bytes, problem: Problem) -> Data:
    value = {LEGACY_DATA: codec.plain_text(raw.decode(errors="replace"), codec.MAX_BYTES)}
    try:
        return Data(value, codec.encode(value), [problem])
    except ValueRefused:
        return Data({}, "{}", [problem])


def _shown(value: object) -> str:
    """What was found, short and without secrets."""
    if isinstance(value, bytes):
        return storable(value[: 4 * SHOWN].decode(errors="replace"), SHOWN)
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        text = f"this {type(value).__name__}"
    return storable(text[: 4 * SHOWN], SHOWN)
