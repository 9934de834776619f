"""Results go through one encoder: everybody gets their JSON form, or the stage fails at once and says why."""

from __future__ import annotations

import decimal
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

from holdfast import BatchContext, Context, Holdfast, Item, Pipeline
from tests.support.bench import Bench
from tests.support.forms import FORMS, heading


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
    "a set": (lambda: {1, 2}, "set"),
    "bytes": (lambda: {"a": b"raw"}, "bytes at a"),
    "an integer as key": (lambda: {1: "one"}, "object key of type int"),
    "an object": (object, "object"),
    "a decimal that is no number": (lambda: [decimal.Decimal("NaN")], "NaN at [0]"),
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
def test_a_result_without_a_json_form_fails_at_once_and_says_why(run: Bench, isolate: Any):
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
        assert (odd.state, odd.attempts) == ("failed", 1), name
        assert odd.error.startswith(f"item {name!r}, stage 'work': the result cannot be kept: ")
        assert said in odd.error, name
        assert len(odd.error) < 400, name
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


# Values of other types ------------------------------------------------------------------------------------------------


@pytest.mark.req("P3", "V12")
@pytest.mark.fault(57)
@pytest.mark.parametrize("isolate", [None, "process"])
def test_everybody_sees_the_json_form_of_a_result_hot_and_cold(run: Bench, isolate: Any):
    """The next stage in the same process, a stage in another process, and whoever reads it from the database."""
    hashed: dict[str, Any] = {}
    pipeline = Pipeline("p")

    def normalise(form: Any) -> Any:
        hashed[repr(form)] = form
        return form

    @pipeline.stage(isolate=isolate, normalise=None if isolate else normalise)
    def work(item: Item, ctx: Context) -> Any:
        return FORMS[item.key][0]()

    @pipeline.stage(after="work")
    def check(item: Item, ctx: Context) -> Any:
        return repr(ctx.result("work")) == repr(FORMS[item.key][1])

    ran = run(pipeline, FORMS, concurrency=2)
    assert {name: ran.result(name, "check") for name in FORMS} == dict.fromkeys(FORMS, True)
    for name, (_, form) in FORMS.items():
        assert repr(ran.result(name, "work")) == repr(form), name
    assert isolate or set(hashed) == {repr(form) for _, form in FORMS.values()}


@pytest.mark.req("P3")
def test_a_version_that_returns_the_json_form_instead_of_the_object_makes_nothing_run_again(run: Bench):
    """What a stage put out is compared by its JSON form, in batches too."""
    after_runs: list[str] = []

    def library(version: str, which: int) -> Pipeline:
        pipeline = Pipeline("p")

        @pipeline.stage(version=version, batch=50)
        def work(items: list[Item], ctx: BatchContext) -> list[Any]:
            return [FORMS[item.key][0]() if which == 0 else FORMS[item.key][1] for item in items]

        @pipeline.stage(after="work")
        def after(item: Item, ctx: Context) -> None:
            after_runs.append(item.key)

        return pipeline

    run(library("1", 0), FORMS)
    run.app(library("2", 1)).reprocess("p")
    ran = run(library("2", 1))
    assert sorted(after_runs) == sorted(FORMS)
    assert ran.states("work") == {"done": len(FORMS)}
    assert {ran.stage(name, "work").version for name in FORMS} == {"2"}


@pytest.mark.req("P3")
@pytest.mark.fault(57)
@pytest.mark.parametrize("isolate", [None, "process"])
def test_a_paid_answer_is_the_same_the_first_time_and_from_the_record(run: Bench, isolate: Any, tmp_path: Path):
    """Its price is worked out from the object itself, which may know more than its JSON form."""
    paid, seen = tmp_path / "paid", tmp_path / "seen"
    seen.mkdir()
    pipeline = Pipeline("p")

    def price(value: Any) -> decimal.Decimal:
        with paid.open("a") as file:
            file.write(f"{type(value).__name__}\n")
        return decimal.Decimal("0.01")

    @pipeline.stage(isolate=isolate, backoff=0)
    def work(item: Item, ctx: Context) -> Any:
        got = ctx.once("call", FORMS[item.key][0], cost=price)
        with (seen / item.key.replace(" ", "-")).open("a") as file:
            file.write(f"{got!r}\n")
        if ctx.attempt == 1:
            raise RuntimeError("once more")
        return got

    ran = run(pipeline, FORMS, concurrency=2)
    assert ran.states("work") == {"done": len(FORMS)}
    for name, (_, form) in FORMS.items():
        assert (seen / name.replace(" ", "-")).read_text() == f"{form!r}\n{form!r}\n", name
    assert sorted(paid.read_text().split()) == sorted(type(make()).__name__ for make, _ in FORMS.values())


@pytest.mark.req("P3")
def test_a_model_that_answers_otherwise_each_time_is_asked_once(run: Bench):
    class Restless:
        asked = 0

        def model_dump(self, mode: str) -> dict[str, Any]:
            self.asked += 1
            return {"asked": self.asked}

    seen: list[Any] = []

    def work(item: Item, ctx: Context) -> Any:
        seen.append(ctx.once("call", Restless))
        if ctx.attempt == 1:
            raise RuntimeError("once more")
        return Restless()

    pipeline = Pipeline("p")
    pipeline.stage(backoff=0)(work)
    ran = run(pipeline, ["x"])
    assert seen == [{"asked": 1}, {"asked": 1}]
    assert ran.result("x", "work") == {"asked": 1}


@pytest.mark.req("P3")
def test_data_facts_and_progress_are_kept_by_their_json_form_too(run: Bench):
    values = {name.replace(" ", "_"): make() for name, (make, _) in FORMS.items()}
    forms = {name.replace(" ", "_"): form for name, (_, form) in FORMS.items()}
    pipeline = Pipeline("p")

    @pipeline.stage()
    def work(item: Item, ctx: Context) -> Any:
        if item.key == "parent":
            ctx.progress(numpy.float64(1), numpy.int64(2))
            ctx.cost(numpy.float64(0.5), facts=values)
            ctx.submit("p", heading(), values)
        return item.data == forms

    ran = run(pipeline, [{"key": numpy.str_("parent"), **values}])
    assert ran.result("parent", "work") is True, ran.stage("parent", "work")
    assert ran.result("bold", "work") is True
    [spent] = ran.app.calls("parent")
    assert spent.facts == forms


@pytest.mark.req("P3")
@pytest.mark.parametrize("isolate", [None, "process"])
def test_names_may_be_texts_of_another_class(run: Bench, isolate: Any):
    """A heading that a parser found is a natural name for the call that is made about it."""
    pipeline = Pipeline("p")

    @pipeline.stage(max_attempts=1, isolate=isolate)
    def work(item: Item, ctx: Context) -> Any:
        ctx.cost(1, resource=heading())
        return [ctx.once(heading(), lambda: 1, cost=1, resource=heading()), ctx.idempotency_key(heading())]

    with Holdfast(run.url, [pipeline.spec], resources={"bold": {}}) as app:
        app.register()
    ran = run(pipeline, ["x"])
    assert ran.state("x", "work") == "done", ran.stage("x", "work")
    assert ran.result("x", "work")[0] == 1
    assert {line.resource for line in ran.app.costs(["resource"]).sums} == {"bold"}


@pytest.mark.req("P3")
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_forgotten_await_is_named(run: Bench, kind: str):
    async def call() -> str:
        return "answer"

    def returns_it(item: Item, ctx: Context) -> Any:
        return {"text": closed(call())}

    async def returns_it_too(item: Item, ctx: Context) -> Any:
        return {"text": closed(call())}

    def closed(coroutine: Any) -> Any:
        coroutine.close()
        return coroutine

    pipeline = Pipeline("p")
    pipeline.stage()(returns_it if kind == "sync" else returns_it_too)
    ran = run(pipeline, ["x"])
    [stage] = ran.app.show("x").stages
    assert stage.state == "failed"
    assert "the result cannot be kept: a coroutine at text: the call was not awaited" in stage.error


def test_what_normalise_returns_must_have_a_json_form(run: Bench):
    pipeline = Pipeline("p")

    @pipeline.stage(normalise=set, max_attempts=1)
    def work(item: Item, ctx: Context) -> Any:
        return ["b", "a"]

    ran = run(pipeline, ["x"])
    said = "item 'x', stage 'work': what normalise returned cannot be compared: a value of type set: give a list"
    assert said in ran.stage("x", "work").error
