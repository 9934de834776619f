"""Rows of a query, on any database that SQLAlchemy supports.

The rows are saved to disk before the first is yielded: the transaction on the other database is as short as the query, and
later changes there do not affect this look.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, ClassVar
from urllib.parse import quote

import msgspec

from holdfast.errors import UsageError, ValueRefused
from holdfast.model import codec
from holdfast.model.redact import ESCAPE, is_ambiguous
from holdfast.sources import readers
from holdfast.sources.contract import Found, Kept, Reader, Source, SourceFailed
from holdfast.sources.rows import BadRow, found_in

MAX_BYTES = 1000 * 1000 * 1000
QUERY_SECONDS = 300.0
_IN_MEMORY_BYTES = 1024 * 1024
_FETCHED = 1000
#: SQLite checks after this many steps whether to go on.
_STEPS = 20_000


def _url(value: Any, what: str) -> str:
    given = readers.text(value, what)
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    if is_ambiguous(given):
        raise UsageError(f"{what}: the address cannot be read: {ESCAPE}")
    try:
        make_url(given)
    except (ArgumentError, ValueError):
        # The address is not shown: it may hold a password.
        raise UsageError(f"{what}: this is not the address of a database; write it like 'sqlite:///books.db'") from None
    return given


class Sql(Source):
    """A query with the key in one column."""

    kind = "sql"
    options: ClassVar[Mapping[str, Reader]] = {
        "sql": readers.text,
        "url": _url,
        "key": readers.text,
        "mark": readers.text,
        "max_bytes": readers.size,
        "query_timeout": readers.some_time,
    }
    needed = ("url",)

    def look(self, memory: dict[str, Any]) -> Iterator[Found | Kept]:
        key, mark = self.settings.get("key", "key"), self.settings.get("mark")
        with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES) as aside:
            self._fetch(aside, key)
            aside.seek(0)
            for line in aside:
                try:
                    found = found_in(msgspec.json.decode(line), key, mark=mark)
                except BadRow as error:
                    self.skip(f"a row: {error}")
                else:
                    yield found

    def _fetch(self, aside: Any, key: str) -> None:
        from sqlalchemy.exc import SQLAlchemyError

        try:
            with self._connected() as connection:
                rows = connection.execution_options(
                    stream_results=True, max_row_buffer=_FETCHED, no_parameters=True
                ).exec_driver_sql(self.settings["sql"])
                if not rows.returns_rows:
                    raise SourceFailed("the query returns no rows: write a SELECT")
                columns = list(rows.keys())
                if key not in columns:
                    raise SourceFailed(f"the query has no column {key!r}; it has: {', '.join(columns)[:200]}")
                self._set_aside(rows, columns, aside)
        except SQLAlchemyError as error:
            self.check()
            raise SourceFailed(f"the query failed: {_said(error)}") from None
        except ImportError as error:
            raise SourceFailed(f"the database needs a package that is not there: {error}") from None

    def _set_aside(self, rows: Any, columns: list[str], aside: IO[bytes]) -> None:
        most, size = self.settings.get("max_bytes", MAX_BYTES), 0
        for number, row in enumerate(rows, start=1):
            self.check()
            try:
                line = codec.encode(dict(zip(columns, row, strict=True))).encode() + b"\n"
            except ValueRefused as error:
                self.skip(f"row {number}: {error}")
                continue
            size += len(line)
            if size > most:
                raise SourceFailed(f"the query returns more than {most:,} bytes; if that is right, set max_bytes")
            aside.write(line)

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        """A read-only connection with a time limit for its queries, if the database supports one."""
        from sqlalchemy import create_engine
        from sqlalchemy.engine import make_url
        from sqlalchemy.pool import NullPool

        url = make_url(self.settings["url"])
        seconds = self.settings.get("query_timeout", QUERY_SECONDS)
        arguments: dict[str, Any] = {}
        if url.get_backend_name() == "sqlite":
            arguments["creator"] = lambda: self._sqlite(url.database)
        elif url.get_backend_name() == "postgresql":
            # The driver that holdfast uses, unless another is named.
            url = url.set(drivername="postgresql+psycopg") if url.drivername == "postgresql" else url
            if url.get_driver_name() in ("psycopg", "psycopg2"):
                arguments["connect_args"] = {"connect_timeout": 10}
        engine = create_engine(url, poolclass=NullPool, **arguments)
        try:
            with engine.connect() as connection:
                if url.get_backend_name() == "postgresql":
                    # For this transaction only, because of poolers.
                    connection.exec_driver_sql("SET TRANSACTION READ ONLY")
                    connection.exec_driver_sql(f"SET LOCAL statement_timeout = {round(seconds * 1000)}")
                yield connection
        finally:
            engine.dispose()

    def _sqlite(self, database: str | None) -> sqlite3.Connection:
        if not database or database == ":memory:":
            raise SourceFailed("a database in memory is empty: name a file, like sqlite:///books.db")
        path = Path(self.folder / database)
        if not path.exists():
            # A missing file must not become a new, empty database.
            raise SourceFailed(f"{path} does not exist")
        connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=10, check_same_thread=False)
        connection.set_progress_handler(self._interrupts, _STEPS)
        return connection

    def _interrupts(self) -> int:
        try:
            self.check()
        except Exception:
            return 1
        return 0


def _said(error: Exception) -> str:
    """The message of the database in one line, without the statement."""
    return str(getattr(error, "orig", None) or error).strip().splitlines()[0][:300]
