"""From microseconds and millionths to the types of Python, and from these to JSON and words."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, localcontext
from typing import Any, ClassVar

import pytest

from holdfast.answers.answer import Answer, Answers
from holdfast.answers.json_of import json_of
from holdfast.answers.text_tables import aligned, in_words, spoken, table
from holdfast.answers.units import amount, day, instant, micros_since_1970

NOON = datetime(2026, 2, 1, 12, tzinfo=UTC)


class Part(Answer, frozen=True):
    _brief: ClassVar = ("name", "cost")

    name: str
    cost: Decimal | None


class Parts(Answers[Part]):
    __slots__ = ()


class Whole(Answer, frozen=True):
    _brief: ClassVar = ("name", "at", "parts")

    name: str
    at: datetime
    until: datetime | None
    on: date
    took: timedelta | None
    lease: timedelta
    counts: Mapping[str, int]
    names: tuple[str, ...]
    first: Part
    parts: Parts
    pairs: tuple[Part, ...]
    given: Any


FACTS: dict[str, Any] = {
    "name": "<b>",
    "at": micros_since_1970(NOON, what="at"),
    "on": 20_485,
    "took_us": 1_500_000,
    "lease_seconds": 30.0,
    "counts": {"done": 2},
    "names": ["a", "b"],
    "first": {"name": "x", "cost": 400_000},
    "parts": [{"name": "y", "cost": None}],
    "pairs": [{"name": "z"}],
    "unknown": 1,
}


def test_facts_are_read_as_the_types_of_the_attributes_say() -> None:
    whole = Whole.of(FACTS)
    assert (whole.at, whole.until, whole.on) == (NOON, None, date(2026, 2, 1))
    assert (whole.took, whole.lease) == (timedelta(seconds=1.5), timedelta(seconds=30))
    assert (whole.first, whole.pairs) == (Part("x", Decimal("0.4")), (Part("z", None),))
    assert whole.parts == Parts([Part("y", None)]) and isinstance(whole.parts, Parts)
    assert (whole.names, whole.given) == (("a", "b"), None)
    with pytest.raises(KeyError, match="name"):
        Part.of({"cost": 1})


def test_json_has_iso_texts_decimal_texts_and_seconds_in_names() -> None:
    assert Whole.of(FACTS).json() == {
        "name": "<b>",
        "at": "2026-02-01T12:00:00.000000Z",
        "until": None,
        "on": "2026-02-01",
        "took_seconds": 1.5,
        "lease_seconds": 30.0,
        "counts": {"done": 2},
        "names": ["a", "b"],
        "first": {"name": "x", "cost": "0.4"},
        "parts": [{"name": "y", "cost": None}],
        "pairs": [{"name": "z", "cost": None}],
        "given": None,
    }
    assert json_of({"took": timedelta(seconds=1.5), "at": None}) == {"took_seconds": 1.5, "at": None}
    assert json_of((Decimal("1E+2"), Decimal("0.40"), date(2026, 2, 1))) == ["100", "0.40", "2026-02-01"]
    with pytest.raises(TypeError, match="no JSON form"):
        json_of(object())


def test_a_repr_is_brief_and_html_has_tables_within_tables() -> None:
    whole = Whole.of(FACTS)
    assert repr(whole) == "<Whole name='<b>' at=2026-02-01T12:00:00.000000Z parts=1>"
    assert repr(Parts([Part("y", None)] * 4)) == "<Parts of 4: <Part name='y'>, <Part name='y'>, <Part name='y'>, …>"
    html = whole._repr_html_()
    assert "&lt;b&gt;" in html and "<b>" not in html
    assert html.count("<table>") == 4


def test_amounts_are_exact_whatever_the_decimal_context_of_the_caller_is() -> None:
    with localcontext(prec=2):
        assert str(amount(12_345_678_000_001)) == "12345678.000001"
    assert [str(amount(n)) for n in (0, 1, 400_000, 100_000_000, -5)] == ["0", "0.000001", "0.4", "100", "-0.000005"]
    assert aligned([Decimal("1.5"), Decimal("1000.125")]) == ["1.500", "1,000.125"]


def test_what_is_beyond_the_calendar_of_python_is_its_first_or_last_day() -> None:
    assert (instant(2**63 - 1), instant(-(2**63))) == (
        datetime.max.replace(tzinfo=UTC),
        datetime.min.replace(tzinfo=UTC),
    )
    assert (day(10**9), day(-(10**9))) == (date.max, date.min)


def test_lengths_and_tables_are_for_people() -> None:
    assert [spoken(timedelta(seconds=n)) for n in (0.0001, 0.012, 3.4, 320)] == ["< 1 ms", "12 ms", "3.4 s", "5 m 20 s"]
    assert in_words((None, NOON, Decimal("1E+1"), "x")) == "-, 2026-02-01T12:00:00.000000Z, 10, x"
    rows = [["a", 1, "long text of many words"], ["b", 20, None]]
    assert table(["k", "n", "text"], rows, width=16) == ["k   n  text", "a   1  long tex…", "b  20  -"]
    assert table(["k", "n", "text"], rows, width=8, least=("text",)) == ["k   n", "a   1", "b  20"]
