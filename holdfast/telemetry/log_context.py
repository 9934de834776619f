"""Log records that name the attempt they belong to, in any logger and for any handler; and records as lines of JSON.

The attempt is in a context variable, so that tasks and threads that inherit the context of a handler have it, too. A record
gets it when it is made: no logger, handler or formatter of the program is touched.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

from holdfast.model.log_lines import plain_message
from holdfast.model.redact import redact
from holdfast.telemetry.attributes import Attributes


class Attempt(Protocol):
    """What runs in a handler."""

    def _about(self) -> Attributes: ...


#: The attempt whose handler runs here; None outside of them.
attempt_of_task: ContextVar[Attempt | None] = ContextVar("holdfast_attempt", default=None)

#: What every record has. Everything else was added by the program.
_USUAL = frozenset([*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "holdfast"])


@contextmanager
def about_attempt(attempt: Attempt) -> Iterator[None]:
    """Records that are made meanwhile belong to this attempt, whatever thread makes them."""
    before = attempt_of_task.set(attempt)
    try:
        yield
    finally:
        attempt_of_task.reset(before)


class _Records:
    """Makes records as the program does, and adds the attempt as `record.holdfast`."""

    def __init__(self, make: Callable[..., logging.LogRecord]) -> None:
        self.make = make

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = self.make(*args, **kwargs)
        if (attempt := attempt_of_task.get()) is not None:
            record.holdfast = {**attempt._about(), **_span_here()}
        return record


_lock = threading.Lock()
#: How many workers run in this process, and what makes records meanwhile.
_working = 0
_records = _Records(logging.LogRecord)


@contextmanager
def name_attempts() -> Iterator[None]:
    """Have records name attempts, from the first worker of this process to the end of the last."""
    global _working, _records
    with _lock:
        _working += 1
        if _working == 1:
            # A new one each time: the program may have built its own on the last one.
            _records = _Records(logging.getLogRecordFactory())
            logging.setLogRecordFactory(_records)
    try:
        yield
    finally:
        with _lock:
            _working -= 1
            # If the program has built on it meanwhile, it stays. Without attempts it adds nothing.
            if not _working and logging.getLogRecordFactory() is _records:
                logging.setLogRecordFactory(_records.make)


def _span_here() -> dict[str, str]:
    """The current span, if the program traces."""
    trace = sys.modules.get("opentelemetry.trace")
    here = None if trace is None else trace.get_current_span().get_span_context()
    if trace is None or here is None or not here.is_valid:
        return {}
    return {"trace_id": trace.format_trace_id(here.trace_id), "span_id": trace.format_span_id(here.span_id)}


def prefix(about: Attributes) -> str:
    """How a line of `ctx.log` begins."""
    return f"[{about['holdfast.item.key']} {about['holdfast.stage']} #{about['holdfast.attempt']}] "


class JsonLines(logging.Formatter):
    """A record as one line of JSON. Its keys name the attempt, so the beginning of the message does not repeat it."""

    def format(self, record: logging.LogRecord) -> str:
        about: Attributes = getattr(record, "holdfast", {})
        message = plain_message(record)
        if "holdfast.item.key" in about:
            message = message.removeprefix(prefix(about))
        line: dict[str, object] = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")[:-6] + "Z",
            "level": record.levelname,
            "logger": _encodable(str(record.name)),
            "message": _encodable(message),
            **about,
        }
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        if record.exc_text:
            line["exception"] = _text(record.exc_text)
        if record.stack_info:
            line["stack"] = _text(record.stack_info)
        for name, value in vars(record).items():
            if name not in _USUAL:
                line.setdefault(_text(name), value if isinstance(value, (bool, int, float)) else _text(value))
        return _on_one_line(msgspec.json.encode(line).decode())


def _on_one_line(text: str) -> str:
    """JSON with all that cannot be printed as escapes: there are more ends of lines than the line feed."""
    return text if text.isprintable() else "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in text)


def _text(value: object) -> str:
    """Any value as text that can be encoded, without secrets."""
    return _encodable(redact(str(value)))


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
