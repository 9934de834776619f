"""Sends heartbeats for rows while handlers work on them, on a connection of its own.

Each heartbeat takes one statement per claim. A lost row is reported to `on_lost` and dropped. A failed heartbeat is soon
retried, and logged at most once a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection

from holdfast.adopt.database_errors import Complaints
from holdfast.adopt.rows.heartbeat import heartbeat
from holdfast.adopt.table.held_row import Held

OnLost = Callable[[Held], None]


class _Heartbeat:
    """The rows to renew: each as it was claimed, and as the last heartbeat left it. Thread-safe."""

    #: Held during a heartbeat.
    _beating: Any

    def __init__(self, engine: Any, every_seconds: float, on_lost: OnLost) -> None:
        self._engine = engine
        self._every = every_seconds
        self._on_lost = on_lost
        self._rows: dict[int, tuple[Held, Held]] = {}
        self._lock = threading.Lock()
        self._connection: Any = None
        self._complaints = Complaints()

    def add(self, held: Held) -> None:
        if "heartbeat" in held.mapping.columns:
            with self._lock:
                self._rows[id(held)] = (held, held)
            self._start()

    def _start(self) -> None:
        raise NotImplementedError

    def _while_taking(self, held: Held) -> Any:
        """If only the heartbeat column fences the row, it must not be finished while a heartbeat is under way."""
        return self._beating if held.mapping.fence == ("heartbeat",) else contextlib.nullcontext()

    def _take(self, held: Held) -> Held:
        with self._lock:
            return self._rows.pop(id(held), (held, held))[1]

    def _renew(self, connection: Connection) -> None:
        """Send one heartbeat. Rows that were taken out meanwhile are ignored."""
        with self._lock:
            before = [now for _, now in self._rows.values()]
        with connection.begin():
            beaten = heartbeat(connection, before)
        sent = {id(one) for one in before}
        renewed = {(one.mapping, one.key_values): one for one in beaten.won}
        gone = []
        with self._lock:
            for first, now in list(self._rows.values()):
                if id(now) not in sent:
                    continue
                if (found := renewed.get((now.mapping, now.key_values))) is not None:
                    self._rows[id(first)] = (first, found)
                else:
                    del self._rows[id(first)]
                    gone.append(first)
        for one in gone:
            self._on_lost(one)

    def _failed(self, error: Exception) -> float:
        """Log the error; return the seconds until the next try."""
        self._complaints.warn("the heartbeat could not be sent and will be retried: %s", error)
        return min(self._every / 4, 1.0)


class ThreadHeartbeat(_Heartbeat):
    """Sends heartbeats from a thread, for a sync engine."""

    def __init__(self, engine: Any, every_seconds: float, on_lost: OnLost) -> None:
        super().__init__(engine, every_seconds, on_lost)
        self._beating = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="holdfast-beat", daemon=True)
            self._thread.start()

    def take(self, held: Held) -> Held:
        """Stop sending heartbeats for this row; return it as the last one left it."""
        with self._while_taking(held):
            return self._take(held)

    def stop(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(5.0)

    def beat(self) -> None:
        """Send one heartbeat now."""
        with self._beating:
            if self._rows:
                self._connection = self._connection or self._engine.connect()
                self._renew(self._connection)

    def _run(self) -> None:
        wait = self._every
        while not self._ended.wait(wait):
            try:
                self.beat()
                wait = self._every
            except Exception as error:
                wait = self._failed(error)
                self._drop_connection()
        self._drop_connection()

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()


class TaskHeartbeat(_Heartbeat):
    """Sends heartbeats from a task on the running event loop; a handler that blocks the loop blocks them, too."""

    def __init__(self, engine: Any, every_seconds: float, on_lost: OnLost) -> None:
        super().__init__(engine, every_seconds, on_lost)
        self._beating = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def _start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="holdfast-beat")

    async def take(self, held: Held) -> Held:
        async with self._while_taking(held):
            return self._take(held)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._task
        await self._drop_connection()

    async def beat(self) -> None:
        async with self._beating:
            if self._rows:
                self._connection = self._connection or await self._engine.connect()
                await self._connection.run_sync(self._renew)

    async def _run(self) -> None:
        wait = self._every
        while True:
            await asyncio.sleep(wait)
            try:
                await self.beat()
                wait = self._every
            except Exception as error:
                wait = self._failed(error)
                await self._drop_connection()

    async def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                await connection.close()
