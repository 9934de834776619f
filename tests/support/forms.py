"""Values of many types, and the JSON form of each: what a handler, a provider's library or a parser may return."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import pathlib
import types
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple

import attrs
import bs4
import msgspec
import numpy
import pydantic
from hypothesis import strategies as st


class Author(pydantic.BaseModel):
    name: str
    born: datetime.date


class Book(pydantic.BaseModel):
    title: str
    price: Decimal
    authors: list[Author]
    tags: set[str] = {"new"}


class Page(msgspec.Struct, rename="camel", tag="page"):
    page_number: int
    content: Any


@dataclasses.dataclass
class Chunk:
    text: str
    weight: Any


@attrs.define
class Edge:
    source: str
    weight: Any


class Point(NamedTuple):
    x: Any
    y: Any


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


def heading() -> str:
    """A text that drags its whole document along."""
    found = bs4.BeautifulSoup("<h1>A <b>bold</b> name</h1>", "html.parser").b
    assert found is not None and isinstance(found.string, str) and type(found.string) is not str
    return found.string


_AT = datetime.datetime(2026, 3, 2, 10, 30, tzinfo=datetime.UTC)
_ID = uuid.UUID("12345678-1234-5678-1234-567812345678")

FORMS: dict[str, tuple[Callable[[], Any], Any]] = {
    "a pydantic model": (
        lambda: Book(title="V.", price=Decimal("1.50"), authors=[Author(name="T. P.", born=datetime.date(1937, 5, 8))]),
        {"title": "V.", "price": "1.50", "authors": [{"name": "T. P.", "born": "1937-05-08"}], "tags": ["new"]},
    ),
    "a struct": (
        lambda: Page(1, [Chunk("a", numpy.float32(0.5))]),
        {"type": "page", "pageNumber": 1, "content": [{"text": "a", "weight": 0.5}]},
    ),
    "a dataclass": (lambda: Chunk("a", Decimal("0.10")), {"text": "a", "weight": "0.10"}),
    "an attrs class": (lambda: Edge("a", (1, 2)), {"source": "a", "weight": [1, 2]}),
    "a text of its own": (heading, "bold"),
    "a numpy integer": (lambda: numpy.int64(7), 7),
    "a numpy float": (lambda: numpy.float64(0.1), 0.1),
    "a numpy boolean": (lambda: [numpy.bool_(True)], [True]),
    "a numpy text": (lambda: numpy.str_("a"), "a"),
    "an array without dimensions": (lambda: numpy.array(3), 3),
    "a numpy instant": (lambda: numpy.datetime64("2026-03-02T10:30:00.000000001"), "2026-03-02T10:30:00.000000001"),
    "a decimal": (lambda: Decimal("1.50"), "1.50"),
    "a datetime": (lambda: _AT, "2026-03-02T10:30:00+00:00"),
    "a naive datetime": (lambda: _AT.replace(tzinfo=None), "2026-03-02T10:30:00"),
    "a date": (lambda: _AT.date(), "2026-03-02"),
    "a time": (lambda: _AT.time(), "10:30:00"),
    "a length of time": (lambda: datetime.timedelta(minutes=1, microseconds=1), 60.000001),
    "a uuid": (lambda: _ID, str(_ID)),
    "an enum": (lambda: Colour.RED, "red"),
    "an enum of numbers": (lambda: [Level.HIGH], [3]),
    "a tuple": (lambda: (1, ("a", None)), [1, ["a", None]]),
    "a named tuple": (lambda: Point(1, Point(2, 3)), [1, [2, 3]]),
    "a path": (lambda: pathlib.PurePosixPath("/books/v.pdf"), "/books/v.pdf"),
    "a mapping": (lambda: types.MappingProxyType({Colour.RED: heading()}), {"red": "bold"}),
    "all of them": (
        lambda: {"rows": [Chunk(heading(), Page(2, Edge("b", _ID)))], Colour.RED: (Decimal(1), _AT.date())},
        {
            "rows": [
                {
                    "text": "bold",
                    "weight": {"type": "page", "pageNumber": 2, "content": {"source": "b", "weight": str(_ID)}},
                }
            ],
            "red": ["1", "2026-03-02"],
        },
    ),
}


# Any mix of them ------------------------------------------------------------------------------------------------------


class Text(str):
    __slots__ = ()


class Whole(int):
    pass


class Part(float):
    pass


@dataclasses.dataclass(slots=True)
class Slotted:
    a: Any


text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
finite = st.floats(allow_nan=False, allow_infinity=False)


def pair(strategy: st.SearchStrategy[Any], make: Any = None, form: Any = None) -> st.SearchStrategy[tuple[Any, Any]]:
    """A value, and the form it should have."""
    return strategy.map(lambda one: (make(one) if make else one, form(one) if form else one))


leaves = st.one_of(
    pair(st.none() | st.booleans() | st.integers() | finite | text),
    pair(text, Text),
    pair(text, bs4.NavigableString),
    pair(text, numpy.str_, lambda one: str(numpy.str_(one))),
    pair(st.integers(), Whole),
    pair(finite, Part),
    pair(finite, numpy.float64),
    pair(st.integers(-(2**63), 2**63 - 1), numpy.int64),
    pair(st.booleans(), numpy.bool_),
    pair(finite, numpy.array),
    pair(st.decimals(allow_nan=False, allow_infinity=False), form=str),
    pair(st.datetimes(timezones=st.none() | st.just(datetime.UTC)), form=datetime.datetime.isoformat),
    pair(st.dates(), form=datetime.date.isoformat),
    pair(st.times(), form=datetime.time.isoformat),
    pair(
        st.timedeltas(-datetime.timedelta(days=36500), datetime.timedelta(days=36500)),
        form=datetime.timedelta.total_seconds,
    ),
    pair(st.uuids(), form=str),
    pair(st.just(Colour.RED), form=lambda one: "red"),
    pair(st.just(pathlib.PurePosixPath("a/b")), form=str),
)


def with_parts(inner: st.SearchStrategy[tuple[Any, Any]]) -> st.SearchStrategy[tuple[Any, Any]]:
    many = st.lists(inner, max_size=4)
    named = st.dictionaries(text, inner, max_size=4)
    return st.one_of(
        many.map(lambda pairs: ([one for one, _ in pairs], [form for _, form in pairs])),
        many.map(lambda pairs: (tuple(one for one, _ in pairs), [form for _, form in pairs])),
        named.map(
            lambda pairs: ({Text(k): one for k, (one, _) in pairs.items()}, {k: f for k, (_, f) in pairs.items()})
        ),
        inner.map(lambda pair: (Chunk("t", pair[0]), {"text": "t", "weight": pair[1]})),
        inner.map(lambda pair: (Edge("t", pair[0]), {"source": "t", "weight": pair[1]})),
        inner.map(lambda pair: (Slotted(pair[0]), {"a": pair[1]})),
        inner.map(lambda pair: (Point(pair[0], 1), [pair[1], 1])),
        inner.map(lambda pair: (pydantic.RootModel[Any]([1]), [1])),
    )


#: Values with the forms they should have.
mixed = st.recursive(leaves, with_parts, max_leaves=12)
