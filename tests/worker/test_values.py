"""Results go through one encoder: the identical value comes back, or the stage fails at once and says why."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import resource
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast import BatchContext, Context, Item, Pipeline
from tests.support.bench import Bench


class Point(NamedTuple):
    x: int


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Book:
    title: str


def _nested(depth: int) -> Any:
    value: Any = "bottom"
    for _ in range(depth):
        value = [value]
    return value


def _cyclic() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


#: What a handler may not return, and what it is told.
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "NUL": (lambda: {"a": ["x\0y"]}, "NUL character at a[0]"),
    "NUL in a key": (lambda: {"x\0y": 1}, "NUL character"),
    "a lone surrogate": (lambda: ["\ud800"], "lone surrogate at [0]"),
    "a surrogate in a key": (lambda: {"\udfff": 1}, "lone surrogate"),
    "NaN": (lambda: {"a": float("nan")}, "nan at a"),
    "infinity": (lambda: [float("-inf")], "-inf at [0]"),
    "a tuple": (lambda: {"a": (1, 2)}, "tuple at a"),
    "a named tuple": (lambda: Point(1), "Point"),
    "a set": (lambda: {1, 2}, "set"),
    "bytes": (lambda: {"a": b"raw"}, "bytes at a"),
    "an integer as key": (lambda: {1: "one"}, "object key of type int"),
    "a datetime": (lambda: datetime.datetime.now(), "datetime"),
    "a decimal": (lambda: [decimal.Decimal("1.5")], "Decimal at [0]"),
    "a uuid": (lambda: uuid.UUID(int=1), "UUID"),
    "an enum": (lambda: Colour.RED, "Colour"),
    "a dataclass": (lambda: Book("V."), "Book"),
    "an object": (object, "object"),
    "a generator": (lambda: (n for n in range(3)), "generator"),
    "a function": (lambda: _nested, "function"),
    "an integer of ten thousand digits": (lambda: 10**10_000, "integer"),
    "deep nesting": (lambda: _nested(101), "deeper than 100"),
    "very deep nesting": (lambda: _nested(100_000), "deeper than 100"),
    "a circle": (_cyclic, "deeper than 100"),
    "two hundred megabytes": (lambda: "x" * (200 << 20), "the limit is"),
    "a hundred megabytes in pieces": (lambda: {"a": ["x" * 1000] * 100_000}, "the limit is"),
}

KEPT: dict[str, Callable[[], Any]] = {
    "nothing": lambda: None,
    "false": lambda: False,
    "an empty text": lambda: "",
    "an empty list": list,
    "big integers": lambda: [2**63, -(2**63), 2**64, 10**400],
    "floats": lambda: [0.1, -0.0, 1e308, 5e-324, 1.0],
    "text of all planes": lambda: "a\u0301 \u2028 \U0001f600 \x7f \x1b[31m <script>",
    "an empty key": lambda: {"": {"": []}},
    "the deepest that may be": lambda: _nested(100),
    "six megabytes": lambda: {"text": "ä" * (3 << 20)},
    "quotes and slashes": lambda: '"\\/\b\f\n\r\t',
}


@pytest.mark.fault(55, 56, 57)
@pytest.mark.parametrize("isolate", [None, "process"])
def test_a_result_that_would_come_back_changed_fails_at_once_and_says_why(run: Bench, isolate: Any):
    """One attempt, a message that names item, stage and type, and the others go on: the same on both databases."""
    pipeline = Pipeline("p")

    @pipeline.stage(isolate=isolate)
    def work(item: Item, ctx: Context) -> Any:
        return REFUSED[item.key][0]() if item.key in REFUSED else "plain"

    @pipeline.stage(after="work")
    def after(item: Item, ctx: Context) -> Any:
        return ctx.result("work")

    ran = run(pipeline, [*REFUSED, "even-1", "even-2"], concurrency=2)
    for name, (_, said) in REFUSED.items():
        odd = ran.stage(name, "work")
        assert (odd["state"], odd["attempts"]) == ("failed", 1), name
        assert odd["error"].startswith(f"item {name!r}, stage 'work': the result cannot be kept: ")
        assert said in odd["error"], name
        assert len(odd["error"]) < 400, name
    assert ran.states("after") == {"done": 2}


@pytest.mark.fault(55, 57)
@pytest.mark.parametrize("isolate", [None, "process"])
def test_every_value_that_is_kept_comes_back_as_it_was(run: Bench, isolate: Any):
    pipeline = Pipeline("p")

    @pipeline.stage(isolate=isolate)
    def work(item: Item, ctx: Context) -> Any:
        return KEPT[item.key]()

    @pipeline.stage(after="work", isolate=isolate)
    def check(item: Item, ctx: Context) -> Any:
        return repr(ctx.result("work")) == repr(KEPT[item.key]())

    ran = run(pipeline, KEPT, concurrency=2)
    assert {name: ran.result(name, "check") for name in KEPT} == dict.fromkeys(KEPT, True)
    for name, value in KEPT.items():
        assert repr(ran.result(name, "work")) == repr(value()), name


@pytest.mark.fault(57)
def test_one_odd_verdict_in_a_batch_spoils_nothing_but_itself(run: Bench):
    pipeline = Pipeline("p")

    @pipeline.stage(batch=10)
    def work(items: list[Item], ctx: BatchContext) -> list[Any]:
        return [b"raw" if item.key == "odd" else item.key for item in items]

    ran = run(pipeline, ["a", "odd", "b"])
    assert ran.states("work") == {"done": 2, "failed": 1}
    assert ran.state("odd", "work") == "failed"


@pytest.mark.fault(56)
def test_a_result_far_beyond_the_limit_is_refused_without_being_written_out(run: Bench, tmp_path: Path):
    """A small object whose JSON would be two hundred megabytes costs a few times the limit, not the whole of it."""
    peaks = tmp_path / "peaks"
    pipeline = Pipeline("p")

    @pipeline.stage(isolate="process")
    def work(item: Item, ctx: Context) -> Any:
        with peaks.open("a") as file:
            file.write(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10}\n")
        return ["x" * 1000] * 200_000 if item.key == "large" else None

    ran = run(pipeline, ["large", "small"], concurrency=1)
    assert (ran.state("large", "work"), ran.state("small", "work")) == ("failed", "done")
    # One child runs both: the second call sees the peak that the first one's result left.
    before, after = map(int, peaks.read_text().split())
    assert after - before < 100, "megabytes"


@pytest.mark.fault(55)
def test_keys_and_data_of_every_kind_reach_the_handler_unchanged(run: Bench):
    """What an item brings along is bound by the same rules as what a handler returns."""
    seen: dict[str, Any] = {}
    data = {"text": "ä\u2028\U0001f600", "big": 2**70, "list": [None, True, 1.5], "": {}}
    keys = ["ordinary", "with space", "ünï-\U0001f600", "a'b\"c\\d", "%s{0}$1", "x" * 1000, "../etc/passwd", "\x1b[31m"]
    pipeline = Pipeline("p")

    @pipeline.stage()
    def work(item: Item, ctx: Context) -> Any:
        seen[item.key] = item.data
        return item.key

    ran = run(pipeline, [{"key": key, **data} for key in keys])
    assert seen == dict.fromkeys(keys, data)
    assert [ran.result(key, "work") for key in keys] == keys
