"""Any number of items is added in constant memory: as they come, unless a list says that they belong together."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from holdfast import Added, Holdfast, Pipeline, UsageError, store_engine
from holdfast.engine import add as adding

pytestmark = pytest.mark.req("V7")


@pytest.fixture
def app(url: str) -> Iterator[Holdfast]:
    books = Pipeline("books")

    @books.stage()
    def read(item: Any, ctx: Any) -> None: ...

    with Holdfast(url, [books.spec]) as app:
        yield app


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adding, "CHUNK", 10)


def keys(app: Holdfast) -> list[str]:
    return [one.key for one in app.items(most=1000)]


def some(n: int, *, then: object = None) -> Iterator[Any]:
    yield from ({"key": f"b{number:03}", "n": number} for number in range(n))
    if then is not None:
        yield then


def test_what_a_generator_yields_is_added_as_it_comes_and_progress_is_told(app: Holdfast) -> None:
    told: list[int] = []
    assert app.add("books", some(25), progress=lambda added: told.append(sum(added))) == Added(25, 0, 0)
    assert told == [10, 20, 25]
    assert len(keys(app)) == 25


def test_a_bad_item_of_a_generator_leaves_those_before_it_and_says_how_many(app: Holdfast) -> None:
    with pytest.raises(UsageError, match=r"item 26 has no 'key'.*; the 20 items before it were added"):
        app.add("books", some(25, then={"n": 1}))
    assert len(keys(app)) == 20
    # The same again, mended, goes on.
    assert app.add("books", some(25)) == Added(5, 0, 20)


def test_a_bad_item_of_a_list_leaves_nothing(app: Holdfast) -> None:
    with pytest.raises(UsageError, match="item 26 has no 'key'"):
        app.add("books", list(some(25, then={"n": 1})))
    assert keys(app) == []


def test_a_generator_whose_items_belong_together_is_checked_first(app: Holdfast) -> None:
    with pytest.raises(UsageError, match="item 26 has no 'key'"):
        app.add("books", some(25, then={"n": 1}), atomic=True)
    assert keys(app) == []
    with pytest.raises(UsageError, match="the 20 items before it were added"):
        app.add("books", list(some(25, then={"n": 1})), atomic=False)


def test_a_key_that_comes_again_later_is_merged(app: Holdfast) -> None:
    assert app.add("books", iter([{"key": "a", "n": 1}, {"key": "a", "n": 2}])) == Added(1, 1, 0)
    assert app.show("a").data == {"n": 2}


def test_whoever_makes_the_items_may_use_the_same_object(app: Holdfast) -> None:
    def asking() -> Iterator[str]:
        for n in range(25):
            yield f"b{n}"
            assert app.status().pipelines[0].name == "books"

    app.add("books", ["first"])
    assert app.add("books", asking()) == Added(25, 0, 0)


@pytest.fixture
def connection(url: str) -> Iterator[Any]:
    """In a transaction of the program's."""
    engine = store_engine(url)
    with engine.begin() as connection:
        yield connection
    engine.dispose()


def test_within_a_transaction_of_the_program_a_generator_is_added_as_it_comes(app: Holdfast, connection: Any) -> None:
    told: list[int] = []
    yielded: list[int] = []

    def counted() -> Iterator[Any]:
        for number, item in enumerate(some(25), start=1):
            yielded.append(number)
            # The program may use its transaction meanwhile.
            assert connection.execute(sa.text("SELECT 1")).scalar() == 1
            yield item

    app.register()
    added = app.add("books", counted(), connection=connection, progress=lambda _: told.append(len(yielded)))
    assert (added, told) == (Added(25, 0, 0), [10, 20, 25])
    assert keys(app) == []
    connection.commit()
    assert len(keys(app)) == 25


def test_a_bad_item_of_a_generator_in_a_transaction_says_what_is_in_it(app: Holdfast, connection: Any) -> None:
    app.register()
    there = "the 20 items before it are in your transaction: roll it back, or commit them"
    with pytest.raises(UsageError, match=rf"item 26 has no 'key'.*; {there}"):
        app.add("books", some(25, then={"n": 1}), connection=connection)
    connection.rollback()
    assert keys(app) == []


@pytest.mark.parametrize("how", [list, iter])
def test_what_belongs_together_is_checked_before_the_transaction_has_any_of_it(
    app: Holdfast, connection: Any, how: Any
) -> None:
    app.register()
    with pytest.raises(UsageError, match=r"item 26 has no 'key': .'n': 1.$"):
        app.add("books", how(list(some(25, then={"n": 1}))), connection=connection, atomic=True)
    connection.commit()
    assert keys(app) == []


def peak(app: Holdfast, first: int, n: int, **where: Any) -> int:
    tracemalloc.start()
    try:
        app.add("books", ({"key": f"{first + number}", "text": "x" * 2000} for number in range(n)), **where)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_ten_times_as_many_items_take_no_more_memory(app: Holdfast) -> None:
    peak(app, 0, 50)  # what is made once
    assert peak(app, 1_000, 1000) < 2 * peak(app, 10_000, 100)


def test_ten_times_as_many_items_in_a_transaction_take_no_more_memory(app: Holdfast, connection: Any) -> None:
    app.register()
    peak(app, 0, 50, connection=connection)
    assert peak(app, 1_000, 1000, connection=connection) < 2 * peak(app, 10_000, 100, connection=connection)
