"""Sends heartbeats for rows while handlers work on them, on a connection of its own.

Each heartbeat takes one statement per claim. A lost row is reported to `on_lost` and dropped. A failed heartbeat is soon
retried, and logged at most once a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine

from holdfast.adopt.rows.heartbeat import heartbeat
from holdfast.adopt.table.held_row import Finished, Held
from holdfast.model.logs import logger

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

log = logger("holdfast.adopt")

OnLost = Callable[[Held], None]


class _Rows:
    """The rows to renew: each as it was claimed, and as the last heartbeat left it. Thread-safe."""

    def __init__(self, on_lost: OnLost) -> None:
        self._rows: dict[int, tuple[Held, Held]] = {}
        self._lock = threading.Lock()
        self._on_lost = on_lost

    def add(self, held: Held) -> bool:
        if "heartbeat" not in held.mapping.columns:
            return False
        with self._lock:
            self._rows[id(held)] = (held, held)
        return True

    def take(self, held: Held) -> Held:
        with self._lock:
            _, now = self._rows.pop(id(held), (held, held))
        return now

    def current(self) -> list[Held]:
        with self._lock:
            return [now for _, now in self._rows.values()]

    def absorb(self, before: list[Held], beaten: Finished) -> None:
        """Apply the result of a heartbeat of these rows. Rows that were taken out meanwhile are ignored."""
        asked = {id(one) for one in before}
        stands = {(one.mapping, one.key_values): one for one in beaten.won}
        gone = []
        with self._lock:
            for first, now in list(self._rows.values()):
                if id(now) not in asked:
                    continue
                renewed = stands.get((now.mapping, now.key_values))
                if renewed is not None:
                    self._rows[id(first)] = (first, renewed)
                else:
                    del self._rows[id(first)]
                    gone.append(first)
        for one in gone:
            self._on_lost(one)


def _is_told_by_beats(held: Held) -> bool:
    """Whether only the heartbeat column fences the row: then it must not be finished while a heartbeat is under way."""
    return held.mapping.fence == ("heartbeat",)


class _Complaints:
    """Logs at most one warning per minute."""

    def __init__(self) -> None:
        self._next = 0.0

    def say(self, text: str, *values: Any) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + 60.0
            log.warning(text, *values)


class ThreadHeartbeat:
    """Sends heartbeats from a thread."""

    def __init__(self, engine: Engine, every_seconds: float, on_lost: OnLost) -> None:
        self._rows = _Rows(on_lost)
        self._engine = engine
        self._every = every_seconds
        self._beating = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._connection: Connection | None = None
        self._complaints = _Complaints()

    def add(self, held: Held) -> None:
        if self._rows.add(held):
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="holdfast-beat", daemon=True)
                self._thread.start()

    def take(self, held: Held) -> Held:
        """Stop sending heartbeats for this row; return it as the last one left it."""
        if _is_told_by_beats(held):
            with self._beating:
                return self._rows.take(held)
        return self._rows.take(held)

    def stop(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(5.0)

    def beat(self) -> None:
        """Send one heartbeat now."""
        with self._beating:
            rows = self._rows.current()
            if not rows:
                return
            if self._connection is None:
                self._connection = self._engine.connect()
            with self._connection.begin():
                beaten = heartbeat(self._connection, rows)
            self._rows.absorb(rows, beaten)

    def _run(self) -> None:
        wait = self._every
        while not self._ended.wait(wait):
            try:
                self.beat()
                wait = self._every
            except Exception as error:
                self._complaints.say("the heartbeat could not be sent, and is tried again: %s", error)
                self._drop_connection()
                wait = min(self._every / 4, 1.0)
        self._drop_connection()

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()


class TaskHeartbeat:
    """Sends heartbeats from a task on the running event loop; a handler that blocks the loop blocks them, too."""

    def __init__(self, engine: AsyncEngine, every_seconds: float, on_lost: OnLost) -> None:
        self._rows = _Rows(on_lost)
        self._engine = engine
        self._every = every_seconds
        self._beating = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._connection: AsyncConnection | None = None
        self._complaints = _Complaints()

    def add(self, held: Held) -> None:
        if self._rows.add(held) and self._task is None:
            self._task = asyncio.create_task(self._run(), name="holdfast-beat")

    async def take(self, held: Held) -> Held:
        if _is_told_by_beats(held):
            async with self._beating:
                return self._rows.take(held)
        return self._rows.take(held)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._task
        await self._drop_connection()

    async def beat(self) -> None:
        async with self._beating:
            rows = self._rows.current()
            if not rows:
                return
            if self._connection is None:
                self._connection = await self._engine.connect()
            async with self._connection.begin():
                beaten = await heartbeat(self._connection, rows)
            self._rows.absorb(rows, beaten)

    async def _run(self) -> None:
        wait = self._every
        while True:
            await asyncio.sleep(wait)
            try:
                await self.beat()
                wait = self._every
            except Exception as error:
                self._complaints.say("the heartbeat could not be sent, and is tried again: %s", error)
                await self._drop_connection()
                wait = min(self._every / 4, 1.0)

    async def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                await connection.close()
