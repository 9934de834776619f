"""A value of another type is kept by its own JSON form, wherever it lies; what has no faithful form is refused."""

from __future__ import annotations

import asyncio
import datetime
import enum
import functools
import math
import pathlib
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Any
from unittest import mock

import attrs
import bs4
import msgspec
import numpy
import pydantic
import pytest
from hypothesis import given, settings

from holdfast.errors import ValueRefused
from holdfast.model import codec
from tests.support.forms import FORMS, Chunk, Colour, Edge, Page, Slotted, Text, mixed

pytestmark = [pytest.mark.req("P3", "V12"), pytest.mark.fault(57)]


def same(one: Any, two: Any) -> bool:
    return codec.encode(one) == codec.encode(two) and repr(one) == repr(two)


@pytest.mark.parametrize("name", FORMS)
def test_a_value_is_kept_by_its_json_form_wherever_it_lies(name):
    make, form = FORMS[name]
    assert same(codec.decode(codec.encode(make())), form)
    assert same(codec.decode(codec.encode({"a": [{"b": make()}, make()]})), {"a": [{"b": form}, form]})


@settings(deadline=None)
@given(mixed)
def test_any_mix_of_types_is_kept_by_its_form_and_the_form_by_itself(value_and_form):
    value, form = value_and_form
    encoded = codec.encode(value)
    assert repr(codec.decode(encoded)) == repr(form)
    assert codec.encode(codec.decode(encoded)) == encoded
    assert codec.digest(codec.encoded(value)[1]) == codec.digest(form)


def test_decimals_never_become_floats():
    texts = ["0.1", "1.10", "12345678901234567890.123456789", "1E+30"]
    assert codec.decode(codec.encode([Decimal(one) for one in texts])) == texts


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="pydantic.v1 needs an older Python")
def test_a_model_of_pydantic_1_is_kept_by_its_fields():
    from pydantic import v1

    class Old(v1.BaseModel):
        price: Decimal
        inner: list[Any]

    value = Old(price=Decimal("1.50"), inner=[Old(price=Decimal(2), inner=[])])
    assert codec.decode(codec.encode(value)) == {"price": "1.50", "inner": [{"price": "2", "inner": []}]}


def test_what_a_model_makes_of_its_own_fields_is_its_own_affair():
    """It knows how to read bytes, sets and number keys back."""

    class Blob(pydantic.BaseModel):
        raw: bytes = b"ab"
        numbered: dict[int, str] = {1: "a"}

    assert codec.decode(codec.encode(Blob())) == {"raw": "ab", "numbered": {"1": "a"}}
    assert codec.decode(codec.encode(Page(1, {2: b"ab"}))) == {
        "type": "page",
        "pageNumber": 1,
        "content": {"2": "YWI="},
    }


class Number(pydantic.BaseModel):
    n: float


class Failing(pydantic.BaseModel):
    def model_dump(self, **kwargs: Any) -> dict[str, Any]:
        raise SystemError("no form today")


class Itself:
    def model_dump(self, mode: str) -> Any:
        return self


class More:
    def model_dump(self, mode: str) -> Any:
        return [More(), More()]


class Raw:
    def model_dump(self, mode: str) -> Any:
        return {"raw": b"x"}


class Silent:
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


class Guarded(type):
    def __getattr__(cls, name: str) -> Any:
        raise RuntimeError("not yours")


class Shut(metaclass=Guarded):
    pass


class Unreadable(Mapping[str, int]):
    def __getitem__(self, key: str) -> int:
        return 1

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[str]:
        raise KeyError("gone")


class Numbered(enum.Enum):
    ONE = 1


def without_its_field() -> Slotted:
    made = Slotted(1)
    del made.a
    return made


REFUSED = {
    "an array": (lambda: numpy.array([1, 2]), r"type ndarray with 1 dimensions at a\[0\]: give its \.tolist\(\)"),
    "numpy's NaN": (lambda: numpy.float32("nan"), r"the number nan at a\[0\], which JSON does not have"),
    "numpy's bytes": (lambda: numpy.bytes_(b"x"), r"type bytes\w* at a\[0\]: store it elsewhere"),
    "no instant": (lambda: numpy.datetime64("NaT"), r"type datetime64 at a\[0\]"),
    "nanoseconds": (lambda: numpy.timedelta64(3, "ns"), r"type timedelta64 at a\[0\]"),
    "a masked number": (lambda: numpy.ma.masked, r"type MaskedConstant at a\[0\]"),
    "a number too precise": (lambda: numpy.longdouble(1), r"type longdouble at a\[0\], whose JSON form is never plain"),
    "a decimal NaN": (lambda: Decimal("NaN"), r"the value NaN at a\[0\]"),
    "a decimal infinity": (lambda: Decimal("-Infinity"), r"the value -Infinity at a\[0\]"),
    "a length of time too exact": (lambda: datetime.timedelta(10**6, 0, 1), r"1000000 days.* at a\[0\].*give text"),
    "a path that is no text": (lambda: pathlib.PurePosixPath("a\udcff"), r"lone surrogate at a\[0\]"),
    "NUL in a text of its own": (lambda: Text("a\0"), r"NUL character at a\[0\]"),
    "a dataclass with bytes": (lambda: Chunk("a", b"x"), r"type bytes at a\[0\]\.weight: store it"),
    "an attrs class with a set": (lambda: Edge("a", [{1}]), r"type set at a\[0\]\.weight\[0\]: give a list"),
    "a struct with an object": (lambda: Page(1, object()), r"type object at a\[0\]"),
    "a model with NaN": (lambda: Number(n=math.nan), r"the number nan at a\[0\]\.n"),
    "a model that fails": (
        Failing,
        r"type Failing at a\[0\], whose JSON form cannot be produced: SystemError: no form today",
    ),
    "a model that answers with itself": (Itself, r"type Itself at a\[0\], whose JSON form is never plain"),
    "a model without an end": (More, "nested deeper than 100 levels"),
    "a model that answers with bytes": (Raw, r"type bytes at a\[0\]\.raw"),
    "an object that says nothing": (Silent, r"type Silent at a\[0\]"),
    "a class that says nothing": (
        Shut,
        r"type Shut at a\[0\], whose JSON form cannot be produced: RuntimeError: not yours",
    ),
    "a mapping that fails": (Unreadable, r"an object that cannot be read: KeyError: 'gone' at a\[0\]"),
    "a field that is missing": (
        without_its_field,
        r"type Slotted at a\[0\], whose JSON form cannot be produced: AttributeError",
    ),
    "a mock": (mock.Mock, r"type Mock at a\[0\]"),
    "a mock of a text": (functools.partial(mock.Mock, spec=str), r"type Mock at a\[0\]"),
    "a class": (lambda: Chunk, r"type type at a\[0\]"),
    "a tag": (lambda: bs4.BeautifulSoup("<b>x</b>", "html.parser").b, r"type Tag at a\[0\]"),
    "an enum of numbers as key": (
        lambda: {Numbered.ONE: 1},
        r"an object key of type Numbered at a\[0\]: keys are text",
    ),
    "one key twice": (lambda: {"red": Decimal(1), Colour.RED: 2}, r"the key 'red' twice at a\[0\]"),
    "a generator": (lambda: (n for n in ()), r"type generator at a\[0\]"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_faithful_form_is_refused_with_type_and_place(name):
    make, says = REFUSED[name]
    with pytest.raises(ValueRefused, match=says):
        codec.encode({"a": [make()]})
    with pytest.raises(ValueRefused):
        codec.encode(make())


def test_a_forgotten_await_is_named():
    async def call() -> None: ...

    async def stream() -> Any:
        yield 1

    async def left_behind() -> list[str]:
        coroutine, loop = call(), asyncio.get_running_loop()
        task, future = loop.create_task(call()), loop.create_future()
        said = []
        for value in (coroutine, task, future, stream()):
            with pytest.raises(ValueRefused) as refused:
                codec.encode({"text": value})
            said.append(str(refused.value))
        coroutine.close()
        await task
        return said

    assert asyncio.run(left_behind()) == [
        "a coroutine at text: the call was not awaited",
        "a Task at text: the call was not awaited",
        "a Future at text: the call was not awaited",
        "a value of type async_generator at text: it was not read with `async for`",
    ]


def in_a_cycle(kind: str) -> Any:
    if kind == "list":
        value: Any = [Decimal(1)]
        value.append(value)
    elif kind == "object":
        value = {"d": Decimal(1)}
        value["a"] = {"b": value}
    elif kind == "struct":
        value = Page(1, None)
        value.content = Edge("a", value)
    else:
        value = {"dataclass": Chunk, "attrs class": Edge}[kind]("a", None)
        value.weight = [Decimal(1), value, value]
    return value


@pytest.mark.parametrize("kind", ["list", "object", "struct", "dataclass", "attrs class"])
def test_a_cycle_is_refused_at_once(kind):
    with pytest.raises(ValueRefused, match=r"nested deeper than 100 levels|RecursionError"):
        codec.encode(in_a_cycle(kind))


def test_a_leaf_may_lie_as_deep_as_a_plain_one():
    value: Any = Decimal(1)
    for _ in range(100):
        value = (value,)
    assert codec.encode(value) == "[" * 100 + '"1"' + "]" * 100
    with pytest.raises(ValueRefused, match="nested deeper"):
        codec.encode((value,))


@pytest.mark.fault(56)
def test_a_form_that_is_too_large_is_refused_with_its_size():
    with pytest.raises(ValueRefused, match=r"the limit is 1,000: store it elsewhere"):
        codec.encode(Chunk("x" * 990, None), limit=1000)
    with pytest.raises(ValueRefused, match=r"more parts than fit into the limit"):
        codec.encode(MappingProxyType({str(n): 1 for n in range(200)}), limit=1000)


def test_nothing_is_imported_for_the_types_of_others():
    """What is recognised is recognised by its class."""
    code = "import sys, holdfast; print(sorted({'pydantic', 'numpy', 'attrs', 'attr', 'bs4'} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.strip() == "[]"


def test_a_uuid_and_a_date_inside_a_struct_are_text():
    class Stamped(msgspec.Struct):
        id: uuid.UUID
        day: datetime.date

    form = codec.decode(codec.encode([Stamped(uuid.UUID(int=1), datetime.date(2026, 1, 1))]))
    assert form == [{"id": "00000000-0000-0000-0000-000000000001", "day": "2026-01-01"}]


def test_an_attrs_class_of_the_old_kind_is_kept_by_its_fields():
    @attrs.frozen(slots=False)
    class Old:
        a: Any
        _hidden: Any = 1

    assert codec.decode(codec.encode(Old(Decimal(1)))) == {"a": "1", "_hidden": 1}
