"""How statements travel to PostgreSQL, and rows back.

Our own connections use libpq directly, through `psycopg.pq`. A cursor does much for each statement that ours do not need;
a worker that wakes up would spend half a round trip on it. Several statements travel in one round trip. A connection of
the caller's is used through a cursor, which knows how that connection was set up.
"""

from __future__ import annotations

import hashlib
import re
import select
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer

from holdfast.store.driver import Row, quietly

#: A statement and its parameters. With None the text is sent as it is, and never prepared.
Asked = tuple[str, Mapping[str, Any] | None]

#: A statement as the server sees it, and the types of its parameters.
PreparedKey = tuple[bytes, tuple[int, ...]]

#: A statement is prepared on the server when it is run for this many times.
KEEP_FROM = 3

_GOOD = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK, pq.ExecStatus.EMPTY_QUERY)

_PARAMETER = re.compile(r"%\((\w+)\)s|%%")


class PostgresLine(Protocol):
    """A way to run statements."""

    def ask(self, text: str, params: Mapping[str, Any] | None) -> list[Row]:
        """Run a statement and return its rows."""
        ...

    def ask_all(self, asked: Sequence[Asked]) -> list[list[Row]]:
        """Run these in order, up to the first that fails."""
        ...

    def columns(self) -> list[str]:
        """The names of the columns of the rows last returned."""
        ...


class CursorLine:
    """Statements through a cursor of psycopg."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._cursor = connection.cursor(row_factory=psycopg.rows.tuple_row)

    def ask(self, text: str, params: Mapping[str, Any] | None) -> list[Row]:
        self._cursor.execute(text, params)
        return self._cursor.fetchall() if self._cursor.description is not None else []

    def ask_all(self, asked: Sequence[Asked]) -> list[list[Row]]:
        return [self.ask(text, params) for text, params in asked]

    def columns(self) -> list[str]:
        return [column.name for column in self._cursor.description or ()]


class Wire:
    """Statements through libpq. Those that are run often are prepared on the server, as long as the session belongs to this
    connection. Behind a transaction pooler it does not."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._libpq = connection.pgconn
        #: Whether more statements may be prepared.
        self._keeps = True
        self._kept: dict[PreparedKey, bytes] = {}
        self._used: Counter[PreparedKey] = Counter()
        self._readable, self._either = select.poll(), select.poll()
        self._readable.register(self._libpq.socket, select.POLLIN)
        self._either.register(self._libpq.socket, select.POLLIN | select.POLLOUT)
        self._answer: pq.abc.PGresult | None = None

    def ask(self, text: str, params: Mapping[str, Any] | None) -> list[Row]:
        if params is None:
            self._libpq.send_query(text.encode())
        else:
            key, values = _packed(text, params)
            if self._is_to_be_kept(key):
                # Preparing takes a second message, and only a pipeline sends both together.
                return self.ask_all([(text, params)])[0]
            self._send(key, values)
        self._flush()
        return self._rows(self._checked(self._answers_until(None), 1)[0])

    def ask_all(self, asked: Sequence[Asked]) -> list[list[Row]]:
        libpq = self._libpq
        wanted: list[int] = []
        sent = 0
        packed = [((text.encode(), ()), None) if params is None else _packed(text, params) for text, params in asked]
        #: The statements prepared here, and the number of the answer to each.
        new: dict[PreparedKey, int] = {}
        answers: list[pq.abc.PGresult] = []
        libpq.enter_pipeline_mode()
        try:
            for key, values in packed:
                if values is None:
                    libpq.send_query_params(key[0], None)
                else:
                    if self._is_to_be_kept(key):
                        new[key] = sent
                        self._keep(key)
                        sent += 1
                    self._send(key, values)
                wanted.append(sent)
                sent += 1
            libpq.pipeline_sync()
            self._flush()
            answers = self._answers_until(pq.ExecStatus.PIPELINE_SYNC)
            self._checked(answers, sent)
        except BaseException:
            # The pipeline may have ended before the server prepared these.
            for key, number in new.items():
                if not any(map(_is_there, answers[number : number + 1])):
                    self._kept.pop(key, None)
            raise
        finally:
            with quietly(psycopg.Error):
                libpq.exit_pipeline_mode()
        return [self._rows(answers[number]) for number in wanted]

    def columns(self) -> list[str]:
        answer = self._answer
        return [(answer.fname(n) or b"").decode() for n in range(answer.nfields)] if answer is not None else []

    # The parts ----------------------------------------------------------------------------------------------------

    def _is_to_be_kept(self, key: PreparedKey) -> bool:
        return self._keeps and key not in self._kept and self._used[key] >= KEEP_FROM - 1

    def _keep(self, key: PreparedKey) -> None:
        self._kept[key] = _name(key)
        self._libpq.send_prepare(self._kept[key], *key)

    def _checked(self, answers: list[pq.abc.PGresult], least: int) -> list[pq.abc.PGresult]:
        """These answers, if there are at least this many and none is an error."""
        try:
            _check(answers, least)
        except psycopg.errors.DuplicatePreparedStatement:
            # Another client used this session. A statement under a name of ours is ours, whoever prepared it.
            self._keeps = False
            raise
        except psycopg.errors.InvalidSqlStatementName:
            # This is not the session that the last statement ran in.
            self._keeps = False
            self._kept.clear()
            raise
        return answers

    def _send(self, key: PreparedKey, values: Sequence[bytes | None]) -> None:
        name = self._kept.get(key)
        if name is not None:
            self._libpq.send_query_prepared(name, values)
        else:
            self._used[key] += 1
            self._libpq.send_query_params(key[0], values, key[1])

    def _flush(self) -> None:
        while self._libpq.flush():
            if any(event & select.POLLIN for _, event in self._either.poll()):
                self._libpq.consume_input()

    def _answers_until(self, end: pq.ExecStatus | None) -> list[pq.abc.PGresult]:
        """All answers up to the one with this status; with None, up to the end of one request."""
        libpq = self._libpq
        answers: list[pq.abc.PGresult] = []
        while True:
            while libpq.is_busy():
                # Waiting here and not in libpq lets signals through.
                self._readable.poll()
                libpq.consume_input()
            answer = libpq.get_result()
            if answer is not None and answer.status != end:
                answers.append(answer)
            elif answer is not None or end is None:
                return answers
            if libpq.status == pq.ConnStatus.BAD:
                return answers

    def _rows(self, answer: pq.abc.PGresult) -> list[Row]:
        self._answer = answer
        if answer.status != pq.ExecStatus.TUPLES_OK:
            return []
        transformer = Transformer(self._connection)
        transformer.set_pgresult(answer)
        return transformer.load_rows(0, answer.ntuples, tuple)


@lru_cache(1000)
def _name(key: PreparedKey) -> bytes:
    """The name of a prepared statement, made from the statement. Behind a pooler other clients prepare theirs in the same
    sessions, and a name that meant something else there would run the wrong statement without an error."""
    return b"holdfast_" + hashlib.blake2b(repr(key).encode(), digest_size=16).hexdigest().encode()


def _is_there(answer: pq.abc.PGresult) -> bool:
    """Whether the statement is prepared on the server now; also true if it was already."""
    return answer.status == pq.ExecStatus.COMMAND_OK or answer.error_field(pq.DiagnosticField.SQLSTATE) == b"42P05"


def _check(answers: list[pq.abc.PGresult], least: int) -> None:
    """Raise if one of these is an error, or if there are too few."""
    for answer in answers:
        if answer.status == pq.ExecStatus.FATAL_ERROR and answer.error_field(pq.DiagnosticField.SQLSTATE):
            raise psycopg.errors.error_from_result(answer)
        if answer.status not in _GOOD:
            # From libpq, not from the server: the connection is gone.
            raise psycopg.OperationalError(answer.get_error_message() or pq.ExecStatus(answer.status).name)
    if len(answers) < least:
        raise psycopg.OperationalError("the connection was lost")


def _packed(text: str, params: Mapping[str, Any]) -> tuple[PreparedKey, list[bytes | None]]:
    """The statement as the server sees it, the types of its parameters, and their values."""
    positional, names = _positional(text)
    values: list[bytes | None] = []
    types: list[int] = []
    for name in names:
        value = params[name]
        if value is None:
            values.append(None)
            types.append(0)
        else:
            kind, pack = _PACK.get(type(value)) or _pack_like(value)
            values.append(pack(value))
            types.append(kind)
    return (positional, tuple(types)), values


@lru_cache(1000)
def _positional(text: str) -> tuple[bytes, tuple[str, ...]]:
    names: dict[str, int] = {}

    def number(found: re.Match[str]) -> str:
        name = found.group(1)
        return "%" if name is None else f"${names.setdefault(name, len(names) + 1)}"

    return _PARAMETER.sub(number, text).encode(), tuple(names)


def _pack_text(value: str) -> bytes:
    packed = value.encode()
    if b"\0" in packed:
        # libpq would take what stands before it for the whole.
        raise psycopg.DataError("PostgreSQL cannot store text with a NUL character")
    return packed


#: How a value of a type travels, and as what; 0 leaves it to the server.
_PACK: dict[type, tuple[int, Callable[[Any], bytes]]] = {
    str: (0, _pack_text),
    bool: (16, lambda value: b"t" if value else b"f"),
    int: (20, lambda value: b"%d" % value),
    float: (701, lambda value: float.__repr__(value).encode()),
}


def _pack_like(value: object) -> tuple[int, Callable[[Any], bytes]]:
    for kind in (str, int, float):
        if isinstance(value, kind):
            return _PACK.setdefault(type(value), _PACK[kind])
    raise TypeError(f"a {type(value).__name__} cannot be a parameter")
