"""Sends heartbeats for rows while handlers work on them, on a connection of its own.

Each heartbeat takes one statement per claim. A lost row is reported to `on_lost` and dropped. A failed heartbeat is soon
retried, and logged at most once a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

from sqlalchemy import Connection, Engine
from sqlalchemy.util import await_only, greenlet_spawn

from holdfast.adopt.loop.sync_or_async_engine import Bell, lock_for
from holdfast.adopt.loop.transact import for_single_statements
from holdfast.adopt.rows.heartbeat import heartbeat
from holdfast.adopt.sqlalchemy_errors import Complaints
from holdfast.adopt.table.held_row import Held


class Heartbeats:
    """The rows to renew: each as it was claimed, and as the last heartbeat left it. Thread-safe.

    A thread sends the heartbeats or, with an async engine, a task on the running event loop; a handler that blocks the
    event loop blocks that task, too.
    """

    def __init__(self, engine: Engine, every_seconds: float, on_lost: Callable[[Held], None]) -> None:
        self._engine = engine
        self._every = every_seconds
        self._on_lost = on_lost
        self._rows: dict[int, tuple[Held, Held]] = {}
        self._lock = threading.Lock()
        #: Held during a heartbeat.
        self._beating = lock_for(engine)
        self._ended = Bell(engine)
        self._sender: threading.Thread | asyncio.Task[None] | None = None
        self._connection: Connection | None = None
        self._complaints = Complaints()

    def add(self, held: Held) -> None:
        if "heartbeat" not in held.mapping.columns:
            return
        with self._lock:
            self._rows[id(held)] = (held, held)
        if self._sender is None:
            if self._engine.dialect.is_async:
                self._sender = asyncio.create_task(greenlet_spawn(self._run), name="holdfast-beat")
            else:
                self._sender = threading.Thread(target=self._run, name="holdfast-beat", daemon=True)
                self._sender.start()

    def take(self, held: Held) -> Held:
        """Stop sending heartbeats for this row; return it as the last one left it."""
        if held.mapping.fence == ("heartbeat",):
            with (
                self._beating
            ):  # a row that only this column fences must not be finished while a heartbeat is under way
                return self._taken_out(held)
        return self._taken_out(held)

    def _taken_out(self, held: Held) -> Held:
        with self._lock:
            return self._rows.pop(id(held), (held, held))[1]

    def stop(self) -> None:
        self._ended.ring()
        if isinstance(self._sender, threading.Thread):
            self._sender.join(5.0)
        elif self._sender is not None:
            await_only(asyncio.wait([self._sender], timeout=5.0))

    def _run(self) -> None:
        wait = self._every
        try:
            while not self._ended.wait(wait):
                try:
                    self._beat()
                    wait = self._every
                except Exception as error:
                    self._complaints.warn("the heartbeat could not be sent and will be retried: %s", error)
                    wait = min(self._every / 4, 1.0)
                    self._drop_connection()
        finally:
            self._drop_connection()

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()

    def _beat(self) -> None:
        """Send one heartbeat. Rows that were taken out meanwhile are ignored."""
        with self._beating:
            with self._lock:
                before = [now for _, now in self._rows.values()]
            if not before:
                return
            self._connection = self._connection or for_single_statements(self._engine).connect()
            with self._connection.begin():
                beaten = heartbeat(self._connection, before)
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
