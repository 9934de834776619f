"""News by NOTIFY: which stages have something to claim."""

from __future__ import annotations

import select
import time
from collections.abc import Collection
from typing import TYPE_CHECKING

import psycopg

from holdfast.errors import StoreUnavailable
from holdfast.store.driver import Row
from holdfast.store.postgres_address import channel

if TYPE_CHECKING:
    from holdfast.store.postgres import Postgres

#: News names so many stages at most; of more, workers look for themselves.
MOST_TOLD = 100


def telling(schema: str, stages: Collection[int]) -> str:
    """The statement that tells whoever listens."""
    told = f", '{','.join(map(str, stages))}'" if 0 < len(stages) <= MOST_TOLD else ""
    return f"NOTIFY {channel(schema)}{told}"


class Notifications:
    """News by LISTEN, on the connection of whoever asks. If it is lost, there is no news until it is back.

    There is none behind a pooler, either: a session that is handed round would go on listening, and tell whoever has it.
    """

    def __init__(self, driver: Postgres) -> None:
        self._driver = driver
        self._listening_on: psycopg.Connection[Row] | None = None

    def wait(self, timeout_seconds: float) -> Collection[int] | None:
        try:
            conn = self._driver.connection
            if conn is not self._listening_on:
                [(backend,)] = self._driver.run_text("SELECT pg_catalog.pg_backend_pid()")
                if backend == conn.info.backend_pid:  # a pooler makes up one of its own
                    self._driver.run_text(f"LISTEN {channel(self._driver.dialect.schema)}")
                self._listening_on = conn
                return ()  # what was said while nobody listened is not known
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
        """The stages that were named since the last look; none if somebody named none."""
        said: list[bytes] = []
        while (one := libpq.notifies()) is not None:
            said.append(one.extra)
        if not said:
            return None
        return {int(stage) for stages in said for stage in stages.split(b",")} if all(said) else ()

    def close(self) -> None:
        self._listening_on = None
