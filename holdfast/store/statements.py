"""Loads the statements of sql/ and renders them in one dialect.

A statement is written once. In its text
    :name               is a parameter;
    {in name}           compares with every element of a list parameter of numbers ({in name text}: of texts);
    {fits value name}   compares a value with every pattern in a list parameter; one that fits is enough;
    {list name}         stands for a list parameter of numbers as a table with one column, `value`;
    {rows a type, ...}  stands for the rows of the parameter `rows`, as a table with these columns;
    {values a type, …}  the same as the source of a plain INSERT; the first columns may be parameters (`:stage bigint`), which
                        are the same in every row;
    {sum value}         adds up whole numbers; an absurdly large one does not overflow the sum;
    {add table.column}  in an upsert: what is there and what is given, added up in the same way;
    {by index}          after a table makes the database use that index, where statistics could lead it elsewhere;
    {instant value}     shows microseconds since 1970 as a time, for people;
    {generation}        is the sum of all generations;
    {stands}            says whether the outcome `o` stands: its stage was not sent back, and is not run again;
    {word}              is replaced by the dialect's text for that word (`skip_locked`, for example);
    holdfast_xxx        is a table or view of ours, wherever the dialect keeps it.
A file in the dialect's folder may override a statement, or define one for this database only; it begins with the reason.
"""

from __future__ import annotations

import builtins
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

from holdfast.model.plausible import MOST_IN_ALL

_HEAD = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")
_MACRO = re.compile(r"\{(\w+)(?: ([^}]*))?\}")
_TABLE = re.compile(r"\bholdfast_(\w+)")

#: The sum of all generations. Of one that is absurdly large, a part: the sum cannot leave its column, and every change shows.
GENERATION = """CAST((SELECT COALESCE(SUM(generation - generation / 1000000000000000 * 1000000000000000), 0)
    FROM holdfast_pipelines) AS BIGINT)"""

#: Whether an item is leased is asked first, and at which stage only then: SQLite takes long to compare pairs.
_STANDS = """(SELECT COUNT(*) FROM holdfast_waiting w WHERE w.stage = o.stage AND w.item = o.item
       AND w.priority = (SELECT i.priority FROM holdfast_items i WHERE i.id = o.item)) = 0
  AND (SELECT COUNT(*) FROM holdfast_delayed d WHERE d.item = o.item AND d.stage = o.stage) = 0
  AND (SELECT COUNT(*) FROM holdfast_holds h WHERE h.stage = o.stage AND h.item = o.item) = 0
  AND NOT (o.item IN (SELECT l.item FROM holdfast_leases l)
           AND (o.item, o.stage) IN (SELECT l.item, l.stage FROM holdfast_leases l))"""

#: After the name of a statement about stages of items: of its rows, only where they are.
PLACES = ", places"

Params = dict[str, Any]


class Statement:
    """One statement in one dialect: its text, and its list parameters."""

    __slots__ = ("columns", "lists", "name", "row", "shared", "text")

    def __init__(
        self,
        name: str,
        text: str,
        lists: frozenset[str],
        columns: tuple[str, ...],
        row: str = "",
        shared: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.text = text
        self.lists = lists
        self.columns = columns
        #: The part of an INSERT that stands for its rows, for a driver with a faster way to insert many.
        self.row = row
        #: Parameters that every row begins with.
        self.shared = shared


class Dialect(ABC):
    """How SQL text differs between the databases."""

    name: str
    #: This dialect's text for each word in braces.
    words: Mapping[str, str]

    @abstractmethod
    def parameter(self, name: str) -> str:
        """How a parameter is written."""

    @abstractmethod
    def is_in(self, name: str, kind: str) -> str:
        """A comparison with every element of a list parameter."""

    @abstractmethod
    def fits(self, value: str, name: str) -> str:
        """Whether a value fits any pattern of a list parameter."""

    @abstractmethod
    def list(self, name: str) -> str:
        """A list parameter as a table expression."""

    @abstractmethod
    def rows(self, columns: Sequence[tuple[str, str]]) -> str:
        """The parameter `rows` as a table expression."""

    @abstractmethod
    def values(self, shared: Sequence[tuple[str, str]], columns: Sequence[tuple[str, str]]) -> tuple[str, str]:
        """The parameter `rows`, each row after the shared parameters, as the source of an INSERT; and the part that stands for
        the rows."""

    @abstractmethod
    def table(self, name: str) -> str:
        """One of our tables or views."""

    @abstractmethod
    def by(self, index: str) -> str:
        """What follows the name of a table to be read by this index."""

    @abstractmethod
    def instant(self, microseconds: str) -> str:
        """Microseconds since 1970 as a time, for people: text in ISO 8601 where the database has no type for it."""

    @abstractmethod
    def pack_list(self, values: Sequence[Any]) -> Any:
        """A list as a parameter that `is_in` understands."""

    def pack_lists(self, statement: Statement, params: Params) -> Params:
        """These parameters, the lists among them packed."""
        for name in statement.lists:
            params[name] = self.pack_list(params[name])
        return params

    @abstractmethod
    def glob_pattern(self, pattern: str) -> str:
        """A pattern of keys (`model.key_pattern`) for `{glob}` and `{fits}`."""

    @abstractmethod
    def pack_rows(self, rows: Sequence[Sequence[Any]]) -> Any:
        """Rows as the parameter that `rows` understands."""

    def literal(self, text: str) -> str:
        """Text outside of parameters, as the driver wants it."""
        return text

    def render(self, name: str, text: str) -> Statement:
        lists: set[str] = set()
        columns: builtins.list[tuple[str, str]] = []
        shared: builtins.list[tuple[str, str]] = []
        row = ""

        def macro(found: re.Match[str]) -> str:
            nonlocal row
            word, rest = found.group(1), found.group(2)
            if word == "in":
                parameter, _, kind = rest.partition(" ")
                lists.add(parameter)
                return self.is_in(parameter, kind or "bigint")
            if word == "list":
                lists.add(rest)
                return self.list(rest)
            if word in ("rows", "values"):
                for column, kind in (part.split() for part in rest.split(",")):
                    (shared if column.startswith(":") else columns).append((column.lstrip(":"), kind))
                if word == "rows":
                    return self.rows(columns)
                text, row = self.values(shared, columns)
                return text
            if word == "fits":
                value, _, parameter = rest.rpartition(" ")
                lists.add(parameter)
                return self.fits(value, parameter)
            if word == "by":
                return self.by(rest)
            if word == "instant":
                return self.instant(rest)
            if word == "sum":
                return f"CAST(SUM({_bounded(rest)}) AS BIGINT)"
            if word == "add":
                # What is given may be the difference to what is there.
                return f"{_bounded(rest)} + {_bounded('excluded.' + rest.rpartition('.')[2], 10 * MOST_IN_ALL)}"
            if word == "stands":
                return _STANDS
            if word == "generation":
                return GENERATION
            return self.words[word]

        text = self.literal(text)
        text = _MACRO.sub(macro, text)
        text = _PARAMETER.sub(lambda found: self.parameter(found.group(1)), text)
        text = _TABLE.sub(lambda found: self.table(found.group(1)), text)
        names = tuple(column for column, _ in columns)
        return Statement(name, text, frozenset(lists), names, row, tuple(name for name, _ in shared))

    def statements(self) -> dict[str, Statement]:
        """Every statement in this dialect, by name."""
        return {name: self.render(name, text) for name, text in _texts(self.name).items()}


def _bounded(value: str, most: int = MOST_IN_ALL) -> str:
    """A whole number that cannot make a sum leave its column."""
    return f"CASE WHEN {value} < -{most} THEN -{most} WHEN {value} > {most} THEN {most} ELSE {value} END"


class Statements(dict[str, Statement]):
    """The statements of a dialect by name, each rendered when it is first used: a store uses a few of many."""

    def __init__(self, dialect: Dialect) -> None:
        super().__init__()
        self._dialect = dialect
        # Read now: when a statement is first used, a transaction is open.
        self._texts = _texts(dialect.name)

    def __missing__(self, name: str) -> Statement:
        # Two threads may both render it, with the same result.
        text = self._texts[name.removesuffix(PLACES)]
        if name.endswith(PLACES):
            text = f"SELECT item, stage, state FROM ({text}) AS found"
        statement = self[name] = self._dialect.render(name, text)
        return statement

    @classmethod
    def of(cls, dialect: Dialect) -> Statements:
        """Shared by all connections to the same tables."""
        place = (dialect.name, dialect.table(""))
        if place not in _known:
            if len(_known) >= MOST_KNOWN:
                _known.clear()
            _known[place] = cls(dialect)
        return _known[place]


#: By dialect and schema. A process that has seen many schemas forgets them all.
_known: dict[tuple[str, str], Statements] = {}
MOST_KNOWN = 8


@cache
def _texts(dialect: str) -> dict[str, str]:
    folder = resources.files(__package__) / "sql"
    texts: dict[str, str] = {}
    for place in (folder, folder / dialect):
        if not place.is_dir():
            continue
        for file in sorted(place.iterdir(), key=lambda entry: entry.name):
            if file.name.endswith(".sql"):
                parts = _HEAD.split(file.read_text(encoding="utf-8"))
                for name, text in zip(parts[1::2], parts[2::2], strict=True):
                    if place is folder and name in texts:
                        raise ValueError(f"two statements are named {name!r}")
                    texts[name] = _bare(text)
    return texts


def _bare(text: str) -> str:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("--")]
    return "\n".join(lines).strip().rstrip(";")
