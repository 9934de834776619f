"""Runs a loop's handlers in child processes, so that a handler that crashes or is killed affects only its own row.

The child saves the outcome and runs the effects itself, because functions cannot be sent to another process. It first asks
its parent, which sends the row's heartbeats and may have handed the row back.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import enum
import os
import socket
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec
from sqlalchemy import Engine

from holdfast.adopt.loop.calls import RowCall
from holdfast.adopt.loop.counters import Counters
from holdfast.adopt.loop.saving import saving
from holdfast.adopt.loop.state import LoopState
from holdfast.adopt.table.held_row import Held
from holdfast.errors import ProcessDied, UsageError
from holdfast.runtime import child_messages
from holdfast.runtime.process_pool import Conversation

#: The fields of Held to send; both processes have the mapping.
_FIELDS = ("key", "attempt", "token", "version", "started_at", "beat_at", "row")

#: Types of column values that JSON lacks. A datetime is a date, too: the first type that fits is used.
_TYPES = {kind.__name__: kind for kind in (dt.datetime, dt.date, dt.time, dt.timedelta, Decimal, uuid.UUID, bytes)}


@dataclass(frozen=True)
class RowConversation(Conversation[RowCall, BaseException | None]):
    """The parent's side of the conversation."""

    _loop: LoopState
    #: Stops the heartbeats of a row, and returns it as the last one left it.
    _taken: Callable[[Held], Held]
    _save: Callable[[RowCall, BaseException], None]
    _saved: Callable[[RowCall], None]

    def talk(self, call: RowCall, line: socket.socket) -> None:
        line.settimeout(call.timeout_seconds)
        child_messages.send(line, _packed_row(call.job.held))
        child_messages.receive(line)
        if not call.end():
            raise EOFError  # timed out or handed back meanwhile: the child must not write
        call.is_being_saved = True
        line.settimeout(None)
        try:
            child_messages.send(line, _packed_row(self._taken(call.job.held)))
            self._count(call, child_messages.receive(line))
        except (EOFError, OSError):
            self._save(call, ProcessDied("its process died while it saved the outcome"))
            raise
        self._saved(call)

    def _count(self, call: RowCall, answer: dict[str, Any]) -> None:
        """Add the child's counters, and set the row aside if the child did."""
        counters = self._loop.counters
        counters.add(**answer["counted"])
        for error in answer["errors"]:
            counters.add_error(error)
        if answer["aside"] is not None:
            seconds, is_refused = answer["aside"]
            self._loop.set_aside(call.job.held.key_values, None if is_refused else seconds)

    def raised(self, call: RowCall, error: BaseException) -> BaseException:
        return error

    def not_run(self, call: RowCall) -> BaseException:
        return KeyboardInterrupt("no child process could be started")  # hands the row back


@dataclass(frozen=True)
class RowChild:
    """The child's side: runs the rows it receives, one after another."""

    _line: socket.socket
    _loop: LoopState

    def run(self) -> None:
        # The inherited connections belong to the parent: do not close them.
        self._loop.engine.dispose(close=False)
        while True:
            try:
                self._run_one(self._receive())
            except EOFError:
                return

    def _run_one(self, held: Held) -> None:
        loop, job = self._loop, self._loop.job(held)
        returned: Any = None
        error: BaseException | None = None
        try:
            returned = loop.handler(job)
            if asyncio.iscoroutine(returned):
                returned = asyncio.run(returned)
        except BaseException as raised:
            error = raised if isinstance(raised, Exception) else RuntimeError(f"the handler raised {raised!r}")
        # The parent may kill this process as soon as it has answered.
        sys.stdout.flush()
        sys.stderr.flush()
        child_messages.send(self._line, {})
        held = self._receive()
        loop.counters = Counters()
        saving(loop, job, held, returned, error)
        numbers = {name: n for name, n in loop.counters.as_dict().items() if isinstance(n, int) and n}
        aside = loop.aside().get(held.key_values)
        waits = None if aside is None else [max(0.0, aside.until - time.monotonic()), aside.is_refused]
        child_messages.send(self._line, {"counted": numbers, "errors": list(loop.counters.errors), "aside": waits})

    def _receive(self) -> Held:
        fields = {name: _unpacked(value) for name, value in child_messages.receive(self._line).items()}
        if isinstance(fields["key"], list):
            fields["key"] = tuple(fields["key"])
        return Held(self._loop.mapping, **fields)


def prepare_fork(engine: Engine, name: str) -> None:
    """Close idle connections before a fork.

    SQLite's locks are per process, and a child trusts the state it inherited: if the parent has the file open, the child's
    writes may be lost.
    """
    engine.dispose()
    file = engine.url.database
    if engine.dialect.name == "sqlite" and file and os.path.realpath(file) in _open_files():
        raise UsageError(
            f'{name}: isolate="process": {file} is open in this process; close its connections before the loop runs'
        )


def _open_files() -> set[str]:
    try:
        return {os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")}
    except OSError:
        return set()


def _packed_row(held: Held) -> dict[str, Any]:
    return {name: _packed(getattr(held, name), held) for name in _FIELDS}


def _packed(value: Any, held: Held) -> Any:
    """The value as JSON. An object encodes a mapping, or a value of a type that JSON lacks."""
    if isinstance(value, enum.Enum):
        return {"enum": [type(value).__module__, type(value).__qualname__, value.name]}
    if value is None or isinstance(value, (int, float)):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (list, tuple)):
        return [_packed(one, held) for one in value]
    if isinstance(value, Mapping):
        return {"mapping": [[_packed(key, held), _packed(one, held)] for key, one in value.items()]}
    for name, kind in _TYPES.items():
        if isinstance(value, kind):
            return {name: msgspec.to_builtins(value)}
    raise UsageError(
        f'{held}: isolate="process": a {type(value).__name__} cannot be sent to another process; '
        "name the columns that the handler needs with columns="
    )


def _unpacked(value: Any) -> Any:
    if isinstance(value, list):
        return [_unpacked(one) for one in value]
    if not isinstance(value, dict):
        return value
    [(kind, what)] = value.items()
    if kind == "mapping":
        return {_unpacked(key): _unpacked(one) for key, one in what}
    if kind == "enum":
        module, path, name = what
        found: Any = sys.modules[module]
        for part in path.split("."):
            found = getattr(found, part)
        return found[name]
    return msgspec.convert(what, _TYPES[kind])
