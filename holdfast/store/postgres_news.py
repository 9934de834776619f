"""Notifications by LISTEN and NOTIFY: which stages have something to claim."""

from __future__ import annotations

import select
import time
from collections.abc import Collection

import psycopg

from holdfast.errors import StoreUnavailable
from holdfast.store.driver import Driver, Row
from holdfast.store.postgres_address import channel

#: A notification names at most this many stages. If there are more, it names none and workers check all.
MOST_TOLD = 100


def telling(schema: str, stages: Collection[int]) -> str:
    """The statement that notifies the listeners."""
    told = f", '{','.join(map(str, stages))}'" if 0 < len(stages) <= MOST_TOLD else ""
    return f"NOTIFY {channel(schema)}{told}"


class Notifications:
    """Listens on the connection of the driver. While that is lost there are no notifications.

    There are none behind a pooler either: a shared session would go on listening, and notify whoever uses it next.
    """

    def __init__(self, driver: Driver, schema: str) -> None:
        self._driver = driver
        self._channel = channel(schema)
        self._listening_on: psycopg.Connection[Row] | None = None

    def wait(self, timeout_seconds: float) -> Collection[int] | None:
        try:
            conn: psycopg.Connection[Row] = self._driver.connection
            if conn is not self._listening_on:
                [(backend,)] = self._driver.run_text("SELECT pg_catalog.pg_backend_pid()")
                if backend == conn.info.backend_pid:  # a pooler invents one
                    self._driver.run_text(f"LISTEN {self._channel}")
                self._listening_on = conn
                return ()  # what was notified before is unknown
            give_up_at = time.monotonic() + timeout_seconds
            while (news := self._read(conn.pgconn)) is None:
                left = max(0.0, give_up_at - time.monotonic())
                if not select.select([conn.pgconn.socket], [], [], left)[0]:
                    break
                conn.pgconn.consume_input()
            return news
        except psycopg.Error as error:
            self._listening_on = None
            self._driver.close()
            raise StoreUnavailable(str(error).strip()) from error

    def _read(self, libpq: psycopg.pq.abc.PGconn) -> Collection[int] | None:
        """The stages named since the last call; empty if a notification named none, None without any."""
        said: list[bytes] = []
        while (one := libpq.notifies()) is not None:
            said.append(one.extra)
        if not said:
            return None
        return {int(stage) for stages in said for stage in stages.split(b",")} if all(said) else ()

    def close(self) -> None:
        self._listening_on = None
