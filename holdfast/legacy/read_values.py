"""Read single values of an old database as well as possible: keys, data, times, amounts. Pure.

What cannot be read is added to the problems; nothing here raises.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from holdfast.clock import SECOND
from holdfast.errors import HoldfastError, UsageError, ValueRefused
from holdfast.model import codec
from holdfast.model.error_fingerprint import storable
from holdfast.model.item import check_key
from holdfast.model.money import micros

#: The fields for data that is not an object, and for a key that could not be used.
LEGACY_DATA, LEGACY_KEY = "legacy_data", "legacy_key"
#: How much of the value a problem shows.
SHOWN = 200

_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = _EPOCH.replace(tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_BLANK_BEFORE_COLON = re.compile(rb"\s:")
_NUMBER = re.compile(r"\d{1,20}(?:\.\d{0,20})?")
#: Larger numbers are milliseconds since 1970, up to the latest. Both limits are the year 5138.
_MILLISECONDS, _LATEST = 1e11, 1e14
_MOST_ATTEMPTS = 1_000_000
_PRIORITIES = range(-(2**31), 2**31)


class ImportProblem(NamedTuple):
    """Something that could not be read."""

    kind: str
    stage: str | None
    found: str


class Payment(NamedTuple):
    """An amount spent, in millionths, its time, and the model."""

    amount: int
    at: int
    model: str


class OldData(NamedTuple):
    """The data of an item, and its stored form."""

    value: dict[str, Any]
    text: str
    problems: list[ImportProblem]


def is_nothing(value: object) -> bool:
    return value is None or value is UNSET or value == ""


def read_priority(said: Any, problems: list[ImportProblem], *, largest_first: bool = False) -> int:
    """The priority; smaller numbers are claimed first."""
    if is_nothing(said):
        return 0
    try:
        priority = int(str(said))
        if priority not in _PRIORITIES or -priority not in _PRIORITIES:
            raise ValueError
    except ValueError:
        problems.append(ImportProblem("priority_unreadable", None, shown(said)))
        return 0
    return -priority if largest_first else priority


def read_payment(stage: str | None, said: Mapping[str, Any], problems: list[ImportProblem]) -> Payment | None:
    """The payment in one row of a log of costs; None if there is none."""
    amount = read_amount(stage, said.get("amount"), problems)
    at = read_time(stage, "at", said.get("at"), problems)
    if amount and at is None:
        problems.append(ImportProblem("cost_undated", stage, shown(said.get("amount"))))
    model = said.get("model")
    return Payment(amount, at or 0, "" if is_nothing(model) else storable(text_of(model), SHOWN)) if amount else None


def parsed_object(column: str, raw: bytes, problems: list[ImportProblem]) -> dict[str, Any]:
    """The JSON object in a column; an empty one if there is none."""
    if not raw.strip():
        return {}
    try:
        value = parsed(raw)
        if isinstance(value, dict):
            problems += [ImportProblem("entry_repeated", None, storable(name, SHOWN)) for name in _repeated(raw, value)]
            return value
    except (ValueError, RecursionError):
        problems.append(ImportProblem("column_unreadable", None, f"{column}: {shown(raw)}"))
        return {}
    if value is not None:
        problems.append(ImportProblem("column_no_object", None, f"{column}: {shown(raw)}"))
    return {}


def read_key(said: Any, row: int) -> tuple[str, list[ImportProblem]]:
    """The key of an item; one made from the row number if there is no valid key."""
    raw = (
        None
        if said is UNSET or said is None
        else said
        if isinstance(said, bytes)
        else text_of(said).encode(errors="replace")
    )
    try:
        return check_key(raw.decode() if raw is not None else ""), []
    except (HoldfastError, UnicodeDecodeError):
        return f"legacy-row-{row}", [ImportProblem("key_unusable", None, shown(raw))]


def read_data(raw: Any) -> OldData:
    """The data of an item: a column of JSON, or a value found in one."""
    if raw is None or raw is UNSET or (isinstance(raw, bytes) and not raw.strip()):
        return OldData({}, "{}", [])
    try:
        value = parsed(raw) if isinstance(raw, bytes) else raw
    except (ValueError, RecursionError):
        return _as_text(raw, ImportProblem("data_unreadable", None, shown(raw)))
    if value is None:
        return OldData({}, "{}", [])
    kept = value if isinstance(value, dict) else {LEGACY_DATA: value}
    try:
        text = codec.encode(kept)
    except ValueRefused as error:
        return _as_text(
            raw if isinstance(raw, bytes) else repr(raw).encode(), ImportProblem("data_refused", None, str(error))
        )
    return OldData(kept, text, [] if kept is value else [ImportProblem("data_no_object", None, shown(raw))])


def with_key(data: OldData, key: Any) -> OldData:
    """The data with the unusable key in it, unless that field exists already."""
    kept = {LEGACY_KEY: codec.plain_text(text_of(key), 10_000), **data.value}
    return data._replace(value=kept, text=codec.encode(kept))


def parsed(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # This parser accepts what Python writes beyond JSON: NaN, Infinity, lone surrogates.
        return json.loads(raw)


def _repeated(raw: bytes, value: Mapping[str, Any]) -> list[str]:
    """The names that occur more than once. If there are as many colons as names, there are none."""
    if raw.count(b'":') == len(value) and not _BLANK_BEFORE_COLON.search(raw):
        return []
    pairs: list[tuple[str, Any]] = json.loads(raw, object_pairs_hook=list)
    return sorted(name for name, n in Counter(name for name, _ in pairs).items() if n > 1)


def read_time(stage: str | None, what: str, value: object, problems: list[ImportProblem]) -> int | None:
    if is_nothing(value):
        return None
    try:
        return _instant(value)
    except (ValueError, OverflowError):
        problems.append(ImportProblem("time_unreadable", stage, f"{what}: {shown(value)}"))
        return None


def _instant(value: object) -> int:
    """Microseconds since 1970, from an ISO text (UTC by default) or a number of (milli)seconds."""
    if isinstance(value, str):
        text = value.strip()
        try:
            given = datetime.fromisoformat(text)
        except ValueError:
            if not _NUMBER.fullmatch(text):
                raise
            value = float(text)
        else:
            since = (given - (_EPOCH if given.tzinfo is None else _EPOCH_UTC)) // _MICROSECOND
            if since < 0:
                raise ValueError(value)
            return since
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < _LATEST:
        raise ValueError(value)
    return round(value * (SECOND if value < _MILLISECONDS else 1000))


def read_elapsed(stage: str, value: object, problems: list[ImportProblem]) -> int | None:
    if is_nothing(value):
        return None
    try:
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise ValueError
        seconds = float(value)
        if not 0 <= seconds < _MILLISECONDS:
            raise ValueError
    except (ValueError, OverflowError):
        problems.append(ImportProblem("elapsed_unreadable", stage, shown(value)))
        return None
    return round(seconds * SECOND)


def read_result(stage: str, value: object, problems: list[ImportProblem]) -> str | None:
    """The stored form of a result; None if there is none, or it cannot be stored."""
    try:
        return None if value is UNSET else codec.encode(value)
    except ValueRefused as error:
        problems.append(ImportProblem("result_refused", stage, str(error)))
        return None


def read_error(value: object) -> str:
    return storable(value if isinstance(value, str) else shown(value))


def read_attempts(stage: str | None, said: Any, problems: list[ImportProblem]) -> int | None:
    if is_nothing(said):
        return None
    try:
        attempts = int(said) if not isinstance(said, (bool, float)) else -1
    except (ValueError, TypeError):
        attempts = -1
    if not 0 <= attempts <= _MOST_ATTEMPTS:
        problems.append(ImportProblem("attempts_unreadable", stage, shown(said)))
        return None
    return attempts


def read_amount(stage: str | None, said: Any, problems: list[ImportProblem]) -> int:
    if is_nothing(said):
        return 0
    try:
        return micros(said)
    except UsageError:
        problems.append(ImportProblem("cost_unreadable", stage, shown(said)))
        return 0


def text_of(value: Any) -> str:
    return (
        value.decode(errors="replace")
        if isinstance(value, bytes)
        else value
        if isinstance(value, str)
        else shown(value)
    )


def _as_text(raw: bytes, problem: ImportProblem) -> OldData:
    value = {LEGACY_DATA: codec.plain_text(raw.decode(errors="replace"), codec.MAX_BYTES)}
    try:
        return OldData(value, codec.encode(value), [problem])
    except ValueRefused:
        return OldData({}, "{}", [problem])


def shown(value: object) -> str:
    """The value, shortened and without secrets."""
    if isinstance(value, bytes):
        return storable(value[: 4 * SHOWN].decode(errors="replace"), SHOWN)
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (ValueError, TypeError, RecursionError):
        text = f"this {type(value).__name__}"
    return storable(text[: 4 * SHOWN], SHOWN)
