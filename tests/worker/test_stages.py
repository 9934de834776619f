"""A decorated function is a stage, and still the function."""

from __future__ import annotations

import asyncio
import inspect
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from types import MethodType
from typing import Any

import pytest

from holdfast import DefinitionError, Pipeline, UsageError
from holdfast.model.stage import Stage, StageSpec

library = Pipeline("library")


@library.stage
def extract(item: Any, ctx: Any) -> Any:
    """Read it."""
    return {"n": len(item.key)}


@library.stage(name="cut", after=extract)
async def chunk(item: Any, ctx: Any, size: int = 2) -> Any:
    return ctx.result(extract)["n"] // size


@library.stage(after=[extract, "cut"], isolate="process")
def weigh(item: Any, ctx: Any) -> Any:
    ctx.effect(note, "weighed")
    return ctx.result(chunk) + ctx.result("extract")["n"]


def note(connection: Any, text: str) -> None:
    """An effect, known to the child process by its name."""


def test_a_stage_may_be_named_by_its_function(url: str) -> None:
    library.store = url
    assert [(stage.name, stage.after) for stage in library.spec.stages] == [
        ("extract", ()),
        ("cut", ("extract",)),
        ("weigh", ("extract", "cut")),
    ]
    library.add(["abcd"])
    summary = library.run()
    assert [stage.states for stage in summary.pipelines[0].stages] == [{"done": 1}] * 3
    with library._app() as app:
        assert [one.result for one in app.show("abcd").stages] == [{"n": 4}, 2, 6]


def test_what_the_decorator_returns_is_called_as_the_function() -> None:
    class Item:
        key = "abc"

    assert isinstance(extract, Stage) and extract.name == "extract" and chunk.name == "cut"
    assert extract(Item(), None) == extract(item=Item(), ctx=None) == {"n": 3}
    assert (extract.__name__, extract.__doc__, extract.__module__) == ("extract", "Read it.", __name__)
    assert str(inspect.signature(chunk)) == "(item: 'Any', ctx: 'Any', size: 'int' = 2) -> 'Any'"
    assert repr(chunk).startswith("<stage 'cut': <function chunk at ")


def test_inspect_and_asyncio_know_which_stage_is_async() -> None:
    for knows in (inspect.iscoroutinefunction, asyncio.iscoroutinefunction):
        assert knows(chunk) and not knows(extract)
    assert inspect.isfunction(inspect.unwrap(chunk))


def test_a_stage_is_pickled_by_its_name_and_found_in_another_process() -> None:
    assert pickle.loads(pickle.dumps(extract)) is extract
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        assert pool.submit(_name_there, extract).result() == "extract"


def _name_there(stage: Any) -> str:
    return str(stage.name) if stage is extract else "another"


def test_a_stage_in_a_class_is_a_method_of_it() -> None:
    pipeline = Pipeline("p")

    class Shop:
        @pipeline.stage(name="sell")
        def sell(self, ctx: Any) -> Any:
            return self, ctx

    shop = Shop()
    assert shop.sell(1) == (shop, 1)
    assert isinstance(shop.sell, MethodType) and isinstance(Shop.sell, Stage)


def test_one_function_may_be_a_stage_of_two_pipelines() -> None:
    first, second = Pipeline("first"), Pipeline("second")

    @first.stage(name="read")
    @second.stage()
    def load(item: Any, ctx: Any) -> Any: ...

    @second.stage(after=load)
    def keep(item: Any, ctx: Any) -> Any: ...

    assert [stage.name for stage in first.spec.stages] == ["read"]
    assert second.spec.stage("keep").after == ("load",)
    assert first.spec.stage("read").handler is second.spec.stage("load").handler


def test_a_decorated_function_is_a_handler_by_its_path() -> None:
    """As a job file names it: what is called is the function."""
    spec = StageSpec("again", chunk)
    assert spec.is_async and inspect.isfunction(spec.handler)


def test_a_function_that_is_no_stage_here_is_refused() -> None:
    pipeline = Pipeline("p")
    for wrong in (note, extract, [extract]):
        with pytest.raises(DefinitionError, match="is not a stage of this pipeline"):
            pipeline.stage(after=wrong)(lambda item, ctx: None)
    twice = pipeline.stage(name="a")(extract)
    pipeline.stage(name="b")(extract)
    pipeline.stage(name="c", after=twice)(note)
    assert pipeline.spec.stage("c").after == ("a",)
    with pytest.raises(DefinitionError, match="is 2 stages of this pipeline"):
        pipeline.stage(after=extract)(lambda item, ctx: None)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("retries", "max_attempts"),
        ("max_attempt", "max_attempts"),
        ("depends_on", "after"),
        ("needs", "after"),
        ("rate_limit", "resource"),
        ("time_limit", "timeout"),
        ("batch_size", "batch"),
        ("normalize", "normalise"),
    ],
)
def test_an_unknown_setting_suggests_the_right_one(given: str, meant: str) -> None:
    with pytest.raises(
        DefinitionError, match=rf"'{given}' is unknown; there are: name, after.*\(did you mean '{meant}'\?\)"
    ):
        Pipeline("p").stage(**{given: 3})  # type: ignore[call-overload]


def test_a_name_in_place_of_the_function_is_refused_with_how_to_write_it() -> None:
    with pytest.raises(DefinitionError, match="write the name of a stage as name='extract'"):
        Pipeline("p").stage("extract")  # type: ignore[call-overload]


def test_a_result_is_asked_for_by_a_name_or_a_stage(run: Any) -> None:
    pipeline = Pipeline("p")

    @pipeline.stage
    def first(item: Any, ctx: Any) -> Any:
        with pytest.raises(UsageError, match=r"ctx.result: .* is not a stage: give its name"):
            ctx.result(note)
        return "checked"

    assert run(pipeline, ["x"]).result("x", "first") == "checked"
