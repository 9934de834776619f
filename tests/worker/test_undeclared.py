"""In tests, handlers that use what their stages do not say they read are told of."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from holdfast import Context, Item, Pipeline
from holdfast.testing import UndeclaredInput, warn_of_undeclared_input
from tests.support.bench import Bench

pytestmark = [pytest.mark.req("J13"), pytest.mark.parametrize("database", ["sqlite"])]

PAGE = {"key": "page", "url": "u", "meta": {"html": "h", "seen": 1}, "queries": ["tide"]}

#: What a handler does with the data of an item, and what it is told of if it says that it reads `url` and `meta.html`.
USES: dict[str, tuple[Callable[[Any], Any], set[str]]] = {
    "what it reads": (lambda data: data["url"] + data["meta"]["html"], set()),
    "a field": (lambda data: data["queries"], {"queries"}),
    "a field that is not there": (lambda data: data.get("title"), {"title"}),
    "whether there is a field": (lambda data: "title" in data, {"title"}),
    "a field within one": (lambda data: data["meta"].get("seen"), {"meta.seen"}),
    "all of it": (lambda data: {**data}["url"], {"queries"}),
    "all of it, and all within": (json.dumps, {"queries", "meta.seen"}),
    "a copy": (lambda data: copy.deepcopy(data)["url"], {"queries", "meta.seen"}),
    "all of it as the result": (lambda data: data, {"queries", "meta.seen"}),
    "items": (lambda data: [name for name, _ in data.items()], {"queries"}),
}


def told(run: Bench, pipeline: Pipeline) -> tuple[list[str], Any]:
    with warnings.catch_warnings(record=True) as caught, warn_of_undeclared_input():
        warnings.simplefilter("always")
        ran = run(pipeline, [PAGE, {**PAGE, "key": "another page"}])
    return [str(one.message) for one in caught if one.category is UndeclaredInput], ran


def reading(use: Callable[[Any], Any], reads: Sequence[str] | None) -> Pipeline:
    pipeline = Pipeline("p")
    pipeline.stage(name="fetch", reads=reads)(lambda item, ctx: use(item.data))
    return pipeline


@pytest.mark.parametrize("how", USES)
def test_a_handler_that_uses_what_it_does_not_say_it_reads_is_told_of_once(run: Bench, how: str):
    use, expected = USES[how]
    said, ran = told(run, reading(use, ["url", "meta.html"]))
    assert ran.states("fetch") == {"done": 2}
    assert {line.split("'")[3] for line in said} == expected
    assert len(said) == len(expected)
    if said:
        assert said[0].startswith("stage 'fetch' uses '") and said[0].endswith("add it to reads=")
    plain = use(json.loads(json.dumps({name: value for name, value in PAGE.items() if name != "key"})))
    assert ran.result("page", "fetch") == plain, "it is given the same"


@pytest.mark.parametrize("reads", [None, ["url", "meta", "queries", "title"]])
@pytest.mark.parametrize("how", USES)
def test_who_reads_everything_is_told_of_nothing(run: Bench, how: str, reads: Sequence[str] | None):
    assert told(run, reading(USES[how][0], reads))[0] == []


def test_a_result_of_a_stage_that_does_not_come_directly_before_is_told_of(run: Bench):
    pipeline = Pipeline("p")
    pipeline.stage(name="fetch")(lambda item, ctx: "text")
    pipeline.stage(name="tidy", after="fetch")(lambda item, ctx: ctx.result("fetch"))

    @pipeline.stage(after="tidy")
    def analyse(item: Item, ctx: Context) -> Any:
        return [ctx.result("tidy"), ctx.result("fetch")]

    said, _ = told(run, pipeline)
    [line] = said
    assert line.startswith("stage 'analyse' uses the result of 'fetch', which does not come directly before it")


def test_outside_of_tests_nobody_listens(run: Bench):
    seen: list[type] = []
    run(reading(lambda data: seen.append(type(data)), ["url"]), [PAGE])
    assert seen == [dict]
