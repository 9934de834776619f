"""Typed values: data is checked when it is added, a result before it is saved, and handlers get instances of both."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Literal, TypedDict

import msgspec
import pydantic
import pytest

from holdfast import BatchContext, Context, Holdfast, Item, Pipeline, Skip, UsageError
from tests.support.bench import QUICK, Bench, Ran

pytestmark = pytest.mark.req("P13")

Isolate = Literal["process"] | None


class Book(pydantic.BaseModel):
    pages: int
    title: str = "untitled"


class Summary(msgspec.Struct):
    words: int
    of: Book


@dataclasses.dataclass
class Chunk:
    text: str
    seen: list[str] = dataclasses.field(default_factory=list)


class Note(TypedDict):
    text: str


def stored(url: str, table: str) -> list[str | None]:
    """The fingerprints in a table."""
    text = f"SELECT type FROM holdfast_{table}"
    with Holdfast(url) as app:
        driver = app.store.driver
        return [type_ for (type_,) in app.store.read(lambda tx: driver.run(driver.dialect.render(text, text), {}))]


def books(**more: Any) -> Pipeline[Book]:
    return Pipeline("books", data=Book, **more)


@pytest.mark.parametrize("isolate", [None, "process"])
def test_handlers_get_instances_of_data_and_of_results(run: Bench, isolate: Isolate) -> None:
    pipeline = books()

    @pipeline.stage(isolate=isolate)
    def summarise(item: Item[Book], ctx: Context) -> Summary:
        assert isinstance(item.data, Book)
        return Summary(item.data.pages * 300, item.data)

    @pipeline.stage(after=summarise, isolate=isolate)
    async def chunk(item: Item[Book], ctx: Context) -> list[Chunk]:
        by_function, by_name = ctx.result(summarise), ctx.result("summarise")
        assert isinstance(by_function, Summary) and by_function == by_name
        assert by_function is not by_name
        return [Chunk(f"{by_function.words} words of {by_function.of.title}")]

    @pipeline.stage(after=chunk, returns=Note, isolate=isolate)
    def note(item: Item[Book], ctx: Context) -> Any:
        [one] = ctx.result(chunk)
        assert isinstance(one, Chunk) and one.seen == []
        return {"text": one.text}

    ran = run(pipeline, [{"key": "a", "pages": 2}, ("b", Book(pages=1, title="B"))], concurrency=2)
    assert ran.result("a", "note") == {"text": "600 words of untitled"}
    assert ran.result("b", "chunk") == [{"text": "300 words of B", "seen": []}]
    assert ran.app.show("a").data == {"pages": 2, "title": "untitled"}


@pytest.mark.parametrize("isolate", [None, "process"])
def test_a_batch_gets_instances_and_returns_a_value_of_the_type_for_each(run: Bench, isolate: Isolate) -> None:
    pipeline = books()

    @pipeline.stage(batch=10, isolate=isolate, max_attempts=1)
    def summarise(items: list[Item[Book]], ctx: BatchContext) -> list[Note | Skip]:
        assert all(isinstance(item.data, Book) for item in items)
        wrong: Any = {"text": 3}
        return [
            Skip("odd") if item.key == "odd" else wrong if item.key == "wrong" else Note(text=item.data.title)
            for item in items
        ]

    ran = run(pipeline, [{"key": key, "pages": 1, "title": key} for key in ("a", "odd", "wrong", "b")])
    assert ran.states("summarise") == {"done": 2, "skipped": 1, "exhausted": 1}
    assert ran.result("b", "summarise") == {"text": "b"}
    assert "result.text: expected str, got int" in (ran.stage("wrong", "summarise").error or "")


def test_an_item_that_does_not_fit_is_refused_with_its_path_and_nothing_of_its_list_is_added(run: Bench) -> None:
    pipeline = books()

    @pipeline.stage
    def summarise(item: Item[Book], ctx: Context) -> None: ...

    app = run.app(pipeline)
    with pytest.raises(UsageError, match=r"^books: item 'x': data\.pages: expected a valid integer"):
        app.add("books", [{"key": "a", "pages": 1}, {"key": "x", "pages": "many"}])
    with pytest.raises(UsageError, match=r"^books: item 'x': data\.pages: it is missing"):
        app.add("books", ["x"])
    with pytest.raises(UsageError, match=r"^books: item 'x': data: expected"):
        app.add("books", [("x", 3)])
    assert stored(run.url, "items") == []

    def stream() -> Iterator[dict[str, Any]]:
        yield {"key": "a", "pages": 1}
        yield {"key": "a", "pages": 2}
        yield {"key": "x"}

    with pytest.raises(UsageError, match=r"data\.pages: it is missing; the 1 items before it were added"):
        app.add("books", stream())


def test_a_program_that_does_not_know_the_type_is_told_once_that_nothing_is_checked(
    url: str, run: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline, untyped = Pipeline("books", data=Book, store=url), Pipeline("plain", store=url)

    @pipeline.stage(max_attempts=1)
    def work(item: Item[Book], ctx: Context) -> None: ...

    @untyped.stage()
    def other(item: Item, ctx: Context) -> None: ...

    untyped.register()
    pipeline.add([{"key": "fits", "pages": 1}])
    assert "type" not in caplog.text
    for key in ("unchecked", "again"):
        with Holdfast(url) as stranger:
            assert stranger.add("plain", [{"key": key, "pages": "many"}]).new == 1
            assert stranger.add("books", iter([{"key": key, "pages": "many"}])).new == 1
    [line] = [one.getMessage() for one in caplog.records if "type" in one.getMessage()]
    assert line.startswith("books: the data of its items has a type, which this program does not know")
    pipeline.run()
    with Holdfast(url) as app:
        error = app.show("unchecked", pipeline="books").stage("work").error
    assert error.startswith("ValueMismatch: item 'unchecked', stage 'work': data.pages: expected a valid integer")
    assert "add it again with data that fits" in error


def test_merged_data_is_checked_as_well(run: Bench) -> None:
    pipeline = books()

    @pipeline.stage
    def summarise(item: Item[Book], ctx: Context) -> None: ...

    app = run.app(pipeline, [{"key": "a", "pages": 1}])

    def spoil(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
        return {"pages": "many"}

    with pytest.raises(UsageError, match=r"^books: item 'a': data\.pages: expected a valid integer"):
        app.add("books", [{"key": "a", "pages": 2}], merge=spoil)
    with pytest.raises(UsageError, match="item 'a'"):
        app.add("books", iter([{"key": "a", "pages": 2}]), merge=spoil)
    assert app.show("a").data["pages"] == 1


def test_what_a_source_finds_and_does_not_fit_is_a_bad_row(url: str) -> None:
    pipeline = books(store=url)
    rows = [{"key": "a", "pages": 1}, {"key": "b", "pages": "many"}, {"key": "c", "pages": 3, "unknown": 1}]
    pipeline.source("shelf", list=rows)
    got: list[Book] = []

    @pipeline.stage
    def summarise(item: Item[Book], ctx: Context) -> None:
        got.append(item.data)

    pipeline.run()
    assert sorted(one.pages for one in got) == [1, 3]
    with Holdfast(url) as app:
        [look] = app.events(event="discovered")
        assert (look.data["bad"], look.data["new"]) == (1, 2)
        assert "data.pages: expected a valid integer" in look.data["first_bad"]
        assert app.show("c").data == {"pages": 3, "title": "untitled"}


@pytest.mark.parametrize("isolate", [None, "process"])
def test_what_is_submitted_to_a_pipeline_of_this_process_is_checked(url: str, isolate: Isolate) -> None:
    shelf, pages = Pipeline("shelf"), Pipeline("pages", data=Book)
    given = {"instance": Book(pages=1), "plain": {"pages": 2}, "wrong": {"pages": "many"}, "nothing": None}

    @shelf.stage(isolate=isolate, max_attempts=1)
    def submit(item: Item, ctx: Context) -> None:
        ctx.submit("pages", item.key, given[item.key])

    @pages.stage
    def read(item: Item[Book], ctx: Context) -> int:
        return item.data.pages

    with Holdfast(url, [shelf.spec, pages.spec]) as app:
        app.add("shelf", given)
        app.run()
        ran = Ran(app)
        assert ran.states("submit") == {"done": 2, "exhausted": 2}
        assert app.show("plain", "pages").stage("read").result == 2
        assert "pages: item 'wrong': data.pages: expected a valid integer" in (
            app.show("wrong", "shelf").stage("submit").error or ""
        )
        assert stored(url, "items").count(pages.spec.type) == 2


@pytest.mark.parametrize("isolate", [None, "process"])
def test_a_result_that_does_not_fit_is_a_failed_attempt_and_the_next_one_may_fit(run: Bench, isolate: Isolate) -> None:
    pipeline = Pipeline("p")

    @pipeline.stage(returns=Summary, isolate=isolate, backoff=QUICK)
    def summarise(item: Item, ctx: Context) -> Any:
        ctx.cost("0.10")
        return {"words": "many" if ctx.attempt == 1 else 3, "of": {"pages": 1}}

    ran = run(pipeline, ["a"])
    assert ran.result("a", "summarise") == {"words": 3, "of": {"pages": 1, "title": "untitled"}}
    [failed] = ran.events("attempt_failed")
    assert "item 'a', stage 'summarise': result.words: expected int, got str" in failed.data["error"]
    assert ran.stage("a", "summarise").attempts == 2
    assert ran.app.costs().total.spent == Decimal("0.20")


def test_a_handler_without_types_gets_and_returns_what_it_did(run: Bench) -> None:
    pipeline = Pipeline("p")

    @pipeline.stage
    def work(item: Item, ctx: Context) -> dict[str, Any]:
        return {"data": item.data, "unknown": Book(pages=1)}

    @pipeline.stage(after=work)
    def check(item: Item, ctx: Context) -> bool:
        return (
            ctx.result(work) == ctx.result("work") == {"data": {"n": 1}, "unknown": {"pages": 1, "title": "untitled"}}
        )

    ran = run(pipeline, [{"key": "a", "n": 1}])
    assert ran.result("a", "check") is True
    assert stored(run.url, "items") == [None]
    assert stored(run.url, "outcomes") == [None, None]


@pytest.mark.parametrize("isolate", [None, "process"])
def test_items_and_outcomes_carry_the_fingerprints_of_their_types(run: Bench, isolate: Isolate) -> None:
    pipeline = books()

    @pipeline.stage(isolate=isolate)
    def summarise(item: Item[Book], ctx: Context) -> Note:
        ctx.event("user.read")  # not a routine completion
        return Note(text="x")

    @pipeline.stage(after=summarise, isolate=isolate)
    def again(item: Item[Book], ctx: Context) -> Note:
        return ctx.result(summarise)

    run(pipeline, [{"key": "a", "pages": 1}])
    assert stored(run.url, "items") == [pipeline.spec.type]
    assert stored(run.url, "outcomes") == [pipeline.spec.stage("again").type] * 2
    assert None not in (pipeline.spec.type, pipeline.spec.stage("again").type)


def test_old_data_that_does_not_fit_fails_its_item_with_the_path_and_others_go_on(run: Bench) -> None:
    before = Pipeline("books")

    @before.stage(name="summarise")
    def nothing(item: Item, ctx: Context) -> None: ...

    run.app(before, [{"key": "old", "pages": "many"}, {"key": "fits", "pages": "3"}])
    pipeline = books()

    @pipeline.stage(max_attempts=2, backoff=QUICK)
    def summarise(item: Item[Book], ctx: Context) -> int:
        return item.data.pages

    ran = run(pipeline, [{"key": "new", "pages": 1}])
    assert ran.states("summarise") == {"done": 2, "exhausted": 1}
    error = ran.stage("old", "summarise").error or ""
    assert "item 'old', stage 'summarise': data.pages: expected a valid integer" in error
    assert ran.stage("old", "summarise").attempts == 2


def test_old_data_that_does_not_fit_does_not_end_the_others_of_its_batch(run: Bench) -> None:
    before = Pipeline("books")

    @before.stage(name="summarise")
    def nothing(item: Item, ctx: Context) -> None: ...

    run.app(before, [{"key": "a", "pages": 1}, {"key": "old", "pages": "many"}, {"key": "b", "pages": 2}])
    pipeline = books()

    @pipeline.stage(batch=10, max_attempts=2, backoff=QUICK)
    def summarise(items: list[Item[Book]], ctx: BatchContext) -> list[int]:
        return [item.data.pages for item in items]

    ran = run(pipeline)
    assert ran.states("summarise") == {"done": 2, "exhausted": 1}
    assert "data.pages" in (ran.stage("old", "summarise").error or "")


@pytest.mark.parametrize("isolate", [None, "process"])
def test_an_old_result_that_does_not_fit_fails_its_item_names_plan_and_others_go_on(
    run: Bench, isolate: Isolate
) -> None:
    before = Pipeline("p")

    @before.stage
    def extract(item: Item, ctx: Context) -> dict[str, Any]:
        return {"text": 3} if item.key == "old" else {"text": "x"}

    run(before, ["old", "fits"])
    pipeline = Pipeline("p")

    @pipeline.stage(name="extract")
    def typed(item: Item, ctx: Context) -> Note:
        return Note(text="x")

    @pipeline.stage(after="extract", isolate=isolate, max_attempts=1)
    def use(item: Item, ctx: Context) -> str:
        return ctx.result(typed)["text"]

    ran = run(pipeline, ["new"])
    assert ran.states("use") == {"done": 2, "exhausted": 1}
    error = ran.stage("old", "use").error or ""
    assert "the result of 'extract' does not fit its type: result.text: expected str, got int" in error
    assert "`holdfast plan`" in error


def test_what_an_attempt_will_use_is_computed_from_an_instance(run: Bench) -> None:
    pipeline = Pipeline("books", data=Book, resources={"model": {"budget": 100}})

    @pipeline.stage(resource="model", estimate=lambda item: item.data.pages, units={"pages": lambda i: i.data.pages})
    def summarise(item: Item[Book], ctx: Context) -> int:
        return item.data.pages

    assert run(pipeline, [{"key": "a", "pages": 3}]).result("a", "summarise") == 3
