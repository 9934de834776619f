"""Copies of a store: one is prepared, and every run starts from a copy of it, at the same address.

The user's data is never touched: a copy is a new SQLite file, or a new database on the PostgreSQL server at an address. The
address stays the same because the tested file may read it when it is loaded.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from holdfast.errors import StoreError, UsageError
from holdfast.store.kind import kind_of_address
from holdfast.store.postgres_address import MISSING_DRIVER, read_url, with_database
from holdfast.store.sqlite_files import make_database

#: Memory that must be left free besides the copies.
SPARE_BYTES = 64 * 1024 * 1024


class Copies(Protocol):
    """The copy that runs use, and the state it starts with."""

    url: str

    def keep(self) -> None:
        """Make the present content of the copy the start of every run."""
        ...

    def fresh(self) -> None:
        """Restore the copy to that."""
        ...


@contextmanager
def copies_for(store: str | None, folder: Path, template: str | None) -> Iterator[Copies]:
    """Copies for the kind of store at an address, SQLite files by default; removed at the end."""
    kind = "sqlite" if store is None else kind_of_address(store)
    if kind == "sqlite":
        with _sqlite(folder, template) as files:
            yield files
    elif store is not None and kind == "postgres":
        with _postgres(store, template) as databases:
            yield databases
    else:
        raise UsageError(
            "--store is neither sqlite: nor the address of a PostgreSQL server, as postgresql://user@host/"
        )


# SQLite ---------------------------------------------------------------------------------------------------------------


@contextmanager
def _sqlite(folder: Path, template: str | None) -> Iterator[_Files]:
    source = None if template is None else Path(template)
    if source is not None and not source.is_file():
        raise UsageError(f"the template {template} is not a file: name a SQLite database that every run begins with")
    place = Path(tempfile.mkdtemp(prefix="holdfast-crashtest-", dir=_memory(source) or folder))
    try:
        files = _Files(place / "store.db")
        if source is not None:
            _copy(source, files.path)
        yield files
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _memory(source: Path | None) -> str | None:
    """A file system in memory, if there is room: unlike a crash of the machine, a killed process does not affect it."""
    if not os.access("/dev/shm", os.W_OK):
        return None
    size = 0 if source is None else source.stat().st_size + sum(one.stat().st_size for one in _blobs(source).rglob("*"))
    return "/dev/shm" if shutil.disk_usage("/dev/shm").free > 4 * size + SPARE_BYTES else None


class _Files:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite:///{quote(str(path))}"
        self._kept = path.with_name("kept.db")

    def keep(self) -> None:
        _copy(self.path, self._kept)

    def fresh(self) -> None:
        for old in self.path.parent.glob(f"{self.path.name}*"):
            if old != _blobs(self.path):
                old.unlink()
        make_database(self.path)
        shutil.copyfile(self._kept, self.path)
        _copy_blobs(self._kept, self.path)


def _copy(source: Path, target: Path) -> None:
    """Copy everything that was committed, including what is still in the log."""
    make_database(target)
    old, new = sqlite3.connect(f"file:{quote(str(source))}?mode=ro", uri=True), sqlite3.connect(target)
    try:
        old.backup(new)
        new.execute("PRAGMA journal_mode = WAL")
    except sqlite3.Error as error:
        raise UsageError(f"{source} cannot be copied: {error}") from error
    finally:
        old.close()
        new.close()
    _copy_blobs(source, target)


def _copy_blobs(source: Path, target: Path) -> None:
    """Replace the kept content beside a database by that beside another."""
    shutil.rmtree(_blobs(target), ignore_errors=True)
    if _blobs(source).is_dir():
        shutil.copytree(_blobs(source), _blobs(target))


def _blobs(database: Path) -> Path:
    return Path(f"{database}.blobs")


# PostgreSQL -----------------------------------------------------------------------------------------------------------


@contextmanager
def _postgres(store: str, template: str | None) -> Iterator[_Databases]:
    databases = _Databases(store, template)
    try:
        yield databases
    finally:
        databases.close()


class _Databases:
    def __init__(self, store: str, template: str | None) -> None:
        try:
            import psycopg
        except ImportError as error:
            raise UsageError(f"{MISSING_DRIVER} ({error})") from error

        self._psycopg = psycopg
        self._name = f"holdfast_crashtest_{secrets.token_hex(6)}"
        self._kept = f"{self._name}_kept"
        self.url = with_database(store, self._name)
        server = None
        try:
            self._server = server = psycopg.connect(read_url(store)[0], autocommit=True, connect_timeout=10)
            self._make(self._name, template or "template1")
        except psycopg.Error as error:
            if server is not None:
                server.close()
            raise StoreError(
                f"no database for the crash test could be created on {read_url(store)[2]}: {' '.join(str(error).split())} "
                f"(its user must have the right to create databases; or use SQLite: --store sqlite:)"
            ) from error

    def keep(self) -> None:
        self._drop(self._kept)
        self._make(self._kept, self._name)

    def fresh(self) -> None:
        self._drop(self._name)
        self._make(self._name, self._kept)

    def close(self) -> None:
        for name in (self._name, self._kept):
            self._drop(name)
        self._server.close()

    def _make(self, name: str, template: str) -> None:
        # An earlier connection to the template may still be closing, and only one copy can be made at a time.
        self._server.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s AND datname LIKE %s",
            (template, "holdfast_crashtest_%"),
        )
        self._run("CREATE DATABASE {} TEMPLATE {}", name, template)

    def _drop(self, name: str) -> None:
        self._run("DROP DATABASE IF EXISTS {} WITH (FORCE)", name)

    def _run(self, text: str, *names: str) -> None:
        sql: Any = self._psycopg.sql
        self._server.execute(sql.SQL(text).format(*(sql.Identifier(name) for name in names)))
