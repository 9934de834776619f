"""Every key of a job file, its value and its purpose. The checks and the JSON Schema are both made from these tables; keys of
limits and of guards are those of `model.resource` and `model.guard_conditions`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from zoneinfo import ZoneInfo

from holdfast.errors import HoldfastError, UsageError
from holdfast.jobfile.shapes import VARIABLE, Either, Free, KeySpec, Many, Named, Scalar, Schema, Table
from holdfast.model.durations import seconds
from holdfast.model.guard_conditions import Guards
from holdfast.model.money import micros
from holdfast.model.rate import Rate
from holdfast.model.resource import ResourceSpec
from holdfast.store.kind import kind_of_address

_WORD = r"[^\W\d]\w*"
_DOTTED = re.compile(rf"{_WORD}(?:\.{_WORD})*(?:\.{_WORD}|:{_WORD}(?:\.{_WORD})*)")


def is_dotted(text: str) -> bool:
    """Whether this can be the full dotted path of a function."""
    return bool(_DOTTED.fullmatch(text))


def _dotted(value: str, where: str) -> None:
    if not is_dotted(value):
        raise UsageError(
            f"{where}: {value!r} is not a full dotted path, expected package.module.name, or package.module:object.name"
        )


def _store(value: str, where: str) -> None:
    if kind_of_address(value) is None:
        # The address is not shown: it may hold a password in an unexpected place.
        raise UsageError(f"{where}: an address of no known kind, expected sqlite:///PATH or postgresql://…")


def _not_empty(value: str, where: str) -> None:
    if not value.strip():
        raise UsageError(f"{where}: the text is empty, expected one that says something")


def _longer_than_zero(value: Any, where: str) -> None:
    if seconds(value, what=where) <= 0:
        raise UsageError(f"{where}: {value!r} is too short, expected more than zero")


def _at_least(least: float) -> Callable[[Any, str], None]:
    def read(value: Any, where: str) -> None:
        if value < least:
            raise UsageError(f"{where}: {value!r} is too small, expected {least} or more")

    return read


def _estimate(value: Any, where: str) -> None:
    if isinstance(value, str) and is_dotted(value):
        return
    try:
        micros(value, what=where)
    except UsageError as error:
        raise UsageError(f"{error}, or the full dotted path of a function of the item") from None


def _amount(value: Any, where: str) -> None:
    micros(value, what=where)


def _process(value: str, where: str) -> None:
    if value != "process":
        raise UsageError(f"{where}: {value!r} is unknown, expected process")


def _limit(key: str, **beside: Any) -> Callable[[Any, str], None]:
    """Let the model read one limit; `beside` are the settings that it requires."""
    return _through(lambda value: ResourceSpec.read("", {key: value, **beside}, where="@"))


def _of_breaker(key: str) -> Callable[[Any, str], None]:
    return _through(lambda value: ResourceSpec.read("", {"breaker": {key: value}}, where="@"))


def _guard(key: str) -> Callable[[Any, str], None]:
    return _through(lambda value: Guards.read({key: value}, where="@"))


def _zone(value: str, where: str) -> None:
    try:
        ZoneInfo(value)
    except (OSError, ValueError, KeyError):
        raise UsageError(f"{where}: {value!r} is not a time zone, expected one like Europe/Berlin") from None


def _through(read: Callable[[Any], object]) -> Callable[[Any, str], None]:
    def one(value: Any, where: str) -> None:
        try:
            read(value)
        except HoldfastError as error:
            raise UsageError(re.sub(r"^@(?:: \w+)*: ", "", str(error))) from None

    return one


def _text(expected: str, read: Callable[[Any, str], object], **more: Any) -> Scalar:
    return Scalar(expected, (str,), {"type": "string", **more}, read)


def _time(read: Callable[[Any, str], object]) -> Scalar:
    pattern = rf"^\s*([0-9.]+(us|ms|s|m|h|d))+\s*$|^\s*[0-9.]+([eE][-+]?[0-9]+)?\s*$|{VARIABLE['pattern']}"
    described: Schema = {"type": ["number", "string"], "minimum": 0, "pattern": pattern, "examples": ["30s", "1h30m"]}
    return Scalar("a length of time, as in 45s, 30m or 1h30m", (int, float, str), described, read)


def _whole(read: Callable[[Any, str], object]) -> Scalar:
    return Scalar("a whole number of 1 or more", (int,), {"type": "integer", "minimum": 1}, read)


def _money(read: Callable[[Any, str], object]) -> Scalar:
    described: Schema = {"type": ["number", "string"], "minimum": 0}
    return Scalar('an amount, as in "0.40"', (int, float, str), described, read)


_RATE_PATTERN = rf"^\s*[0-9][0-9_]*(\.[0-9]+)?\s*/\s*[A-Za-z]+\s*$|{VARIABLE['pattern']}"


def _rate(read: Callable[[Any, str], object]) -> Scalar:
    return _text("a rate, as in 60/min", read, pattern=_RATE_PATTERN, examples=["10/s", "60/min", "1000/hour"])


TEXT = _text("a text", _not_empty, minLength=1)
ZONE = _text("a time zone, as in Europe/Berlin", _zone, examples=["Europe/Berlin", "UTC"])
FLAG = Scalar("true or false", (bool,), {"type": "boolean"})
DOTTED = _text(
    "the full dotted path of a function, as in books.extract", _dotted, pattern=rf"[.:]|{VARIABLE['pattern']}"
)
TYPE = _text("the full dotted path of a type, as in books.Summary", _dotted, pattern=rf"[.:]|{VARIABLE['pattern']}")

BREAKER = Table(
    {
        "failures": KeySpec(_whole(_of_breaker("failures")), "how many failures in a row open it"),
        "share": KeySpec(
            Scalar(
                "a number over 0, up to 1",
                (int, float),
                {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
                _of_breaker("share"),
            ),
            "the share of failures that opens it",
        ),
        "minimum": KeySpec(_whole(_of_breaker("minimum")), "how many results there must be before the share counts"),
        "probe_after": KeySpec(_time(_of_breaker("probe_after")), "how long it stays open before one attempt probes"),
    }
)

_FLAG_OR_BREAKER = Scalar("true, false, or a mapping with 'failures', 'share', …", (bool,), {"type": "boolean"})

LIMITS = {
    "rate": KeySpec(_rate(_limit("rate")), "how often, as in 60/min"),
    "burst": KeySpec(_whole(_limit("burst", rate="1/s")), "how many at once after a pause; needs a rate"),
    "concurrency": KeySpec(_whole(_limit("concurrency")), "how many at a time"),
    "units": KeySpec(
        Named(_rate(lambda value, where: Rate.read(value, what=where)), "rate", r".{1,100}", "a text"),
        "rates of weighted units, as in tokens: 100000/min",
    ),
    "budget_per_day": KeySpec(_money(_limit("budget_per_day")), "how much may be spent in a day"),
    "budget": KeySpec(_money(_limit("budget")), "how much may be spent in all"),
    "zone": KeySpec(ZONE, "the time zone of the day"),
    "cool": KeySpec(_time(_limit("cool")), "how long a rate limit without a time cools down"),
    "cool_most": KeySpec(_time(_limit("cool_most")), "how long any rate limit may"),
    "adaptive": KeySpec(FLAG, "halve the pace on a rate limit, and let it grow back"),
    "breaker": KeySpec(Either(_FLAG_OR_BREAKER, BREAKER), "begin nothing more after failures; true, or a mapping"),
}

RESOURCE = Table(LIMITS)

GUARDS = Table(
    {
        "hours": KeySpec(
            _text("a part of the day, as in 22:00-06:00", _guard("hours")), "the part of the day for work"
        ),
        "zone": KeySpec(ZONE, "the time zone of the hours; needs hours"),
        "disk_free": KeySpec(
            Scalar("a size, as in 5GB", (int, str), {"type": ["integer", "string"], "minimum": 0}, _guard("disk_free")),
            "how much disk must be free",
        ),
        "exists": KeySpec(Many(TEXT), "a path that must exist, or several"),
        "handler": KeySpec(
            Many(DOTTED), "a function that says whether work may begin, by full dotted path, or several"
        ),
    }
)

TUNING = Table(
    {
        **LIMITS,
        "guards": KeySpec(GUARDS, "conditions for work to begin"),
        "stages": KeySpec(Named(RESOURCE, "stage"), "limits of single stages"),
    }
)

BACKOFF = Table(
    {
        "first": KeySpec(
            _time(lambda value, where: seconds(value, what=where)), "the longest wait after the first failure"
        ),
        "most": KeySpec(_time(lambda value, where: seconds(value, what=where)), "the longest wait after any"),
        "factor": KeySpec(
            Scalar("a number of 1 or more", (int, float), {"type": "number", "minimum": 1}, _at_least(1)),
            "how much longer the wait is each time",
        ),
    }
)

STAGE = Table(
    {
        "handler": KeySpec(DOTTED, "the full dotted path of a function, as in books.extract", required=True),
        "after": KeySpec(Many(TEXT), "the stage that comes before, or several"),
        "version": KeySpec(TEXT, "the version of its code, a text"),
        "max_attempts": KeySpec(_whole(_at_least(1)), "how often it is tried"),
        "timeout": KeySpec(_time(_longer_than_zero), "how long an attempt may take"),
        "batch": KeySpec(_whole(_at_least(1)), "hand over up to so many items at once"),
        "isolate": KeySpec(
            Scalar("process", (str,), {"enum": ["process"]}, _process),
            "run it in a child process that may die",
        ),
        "backoff": KeySpec(BACKOFF, "how long a failed attempt waits before the next"),
        "compatible_from": KeySpec(Many(TEXT), "an earlier version whose results still stand, or several"),
        "normalise": KeySpec(DOTTED, "a function that is applied to a result before it is compared"),
        "after_children": KeySpec(TEXT, "a pipeline whose items, submitted by this one's, must have ended"),
        "resource": KeySpec(Many(TEXT), "the resource that an attempt uses, or several"),
        "estimate": KeySpec(
            _money(_estimate), "what an attempt is expected to cost: an amount, or a function of the item"
        ),
        "max_reruns_per_hour": KeySpec(
            _whole(_at_least(1)), "how often its items may rerun each other without new data"
        ),
        "units": KeySpec(
            Named(DOTTED, "function", r".{1,100}", "a text"),
            "how many units an attempt is expected to use, by functions",
        ),
        "max_cost": KeySpec(_money(_amount), "what one item may cost at this stage"),
        "renamed_from": KeySpec(TEXT, "what the stage was called before: its results, records and history come along"),
        "reads": KeySpec(Many(TEXT), "what it uses of an item's data, by a dotted path or several"),
        "keep_previous": KeySpec(FLAG, "keep the result that a rerun replaces beside the new one"),
        "returns": KeySpec(TYPE, "the type of its results, by its full dotted path; a result that does not fit fails"),
    }
)

SOURCE = Free("a source")
ALERT = Free("an alert")

PRICE = Table(
    {
        "in": KeySpec(_money(_amount), "per million tokens read"),
        "out": KeySpec(_money(_amount), "per million tokens written"),
        "cached": KeySpec(_money(_amount), "per million tokens read from a cache; as others, if not given"),
        "cache_write": KeySpec(_money(_amount), "per million tokens written to a cache; as others, if not given"),
        "per_call": KeySpec(_money(_amount), "per call"),
    }
)

PIPELINE = Table(
    {
        "stages": KeySpec(Named(STAGE, "stage", some=True), "the stages, by name", required=True),
        "data": KeySpec(TYPE, "the type of its items' data, by its full dotted path; what does not fit is refused"),
        "merge": KeySpec(DOTTED, "the function that merges an item that is known with one that is found"),
        "sources": KeySpec(Named(SOURCE, "source"), "where items come from, by name"),
        "tuning": KeySpec(TUNING, "what may be changed while work goes on"),
        "prices": KeySpec(
            Named(PRICE, "model", r"[^\x00-\x1f\x7f]{1,200}", "up to 200 printable characters"),
            "what models cost, by name; a name may end in *",
        ),
    }
)

FILE = Table(
    {
        "store": KeySpec(
            _text("sqlite:///PATH or postgresql://…", _store), "the database: sqlite:///PATH or postgresql://…"
        ),
        "resources": KeySpec(Named(RESOURCE, "resource"), "what is shared and limited, by name"),
        "pipelines": KeySpec(Named(PIPELINE, "pipeline", some=True), "the pipelines, by name", required=True),
        "alerts": KeySpec(
            Named(ALERT, "alert", r"[^\x00-\x1f\x7f]{1,100}", "up to 100 printable characters"),
            "who is notified of what, by name",
        ),
        "blobs": KeySpec(
            _text("a folder, or an address like s3://bucket/folder", _not_empty),
            "where ctx.keep puts content: a folder, or an address like s3://bucket/folder",
        ),
    }
)
