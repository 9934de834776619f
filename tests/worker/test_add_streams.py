"""Any number of items is added in constant memory: as they come, unless a list says that they belong together."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from holdfast import Added, Holdfast, Pipeline, UsageError, store_engine
from holdfast.engine import add as adding
from tests.support.together import listening

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


def commits_of(app: Holdfast, items: list[Any]) -> int:
    reached: list[str] = []
    with listening(reached.append):
        app.add("books", items)
    return reached.count("commit.before")


def test_a_list_is_written_in_one_transaction_up_to_a_size_and_a_longer_one_in_chunks(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adding, "WHOLE_ITEMS", 30)
    app.add("books", ["first"])
    assert commits_of(app, list(some(30))) == 1
    assert commits_of(app, [f"more {n}" for n in range(31)]) == 4
    monkeypatch.setattr(adding, "WHOLE_CHARACTERS", 1000)
    assert commits_of(app, [{"key": f"long {n}", "text": "x" * 90} for n in range(20)]) == 2


#: A program that adds a list, and is killed before the first commit after so many insertions.
KILLED = """
import os, signal, sys
from holdfast import Holdfast, Pipeline, points
from holdfast.engine import add

url, n, at = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
add.CHUNK, add.WHOLE_ITEMS, inserts = 10, 30, 0
books = Pipeline("books")
books.stage(name="read")(print)

def kill(point):
    global inserts
    inserts += point == "store.insert_items"
    if point == "commit.before" and inserts == at:
        os.kill(os.getpid(), signal.SIGKILL)

points.listen(kill)
with Holdfast(url, [books.spec]) as app:
    app.add("books", [{"key": f"b{number:03}", "n": number} for number in range(n)])
"""


@pytest.mark.parametrize(("n", "at", "added"), [(30, 1, 0), (30, 2, 30), (31, 2, 10)])
def test_a_list_is_added_as_a_whole_or_not_at_all_whenever_its_program_is_killed_unless_it_is_too_long(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch, n: int, at: int, added: int
) -> None:
    """Whatever was added, the same `add` again adds the rest."""
    monkeypatch.setattr(adding, "WHOLE_ITEMS", 30)
    app.add("books", ["first"])
    subprocess.run([sys.executable, "-c", KILLED, app.url, str(n), str(at)], timeout=120)
    assert len(keys(app)) == 1 + added
    assert sum(app.add("books", list(some(n)))) == n
    assert len(keys(app)) == 1 + n


def test_a_list_that_another_writer_overtakes_is_merged_again_and_written_as_a_whole(app: Holdfast, url: str) -> None:
    app.add("books", list(some(3)))
    rounds: list[int] = []

    def merge(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
        if not rounds:
            with Holdfast(url, app.pipelines) as other:
                other.add("books", [{"key": "b002", "n": 100}])
        rounds.append(old["n"])
        if len(rounds) > 4:
            raise ValueError("not twice")
        return {"n": old["n"] + new["n"]}

    with pytest.raises(UsageError, match="not twice"):
        app.add("books", [{"key": f"b00{n}", "n": 1} for n in range(4)], merge=merge)
    # Neither the new one nor those that nobody else has changed.
    assert [app.show(key).data["n"] for key in keys(app)] == [0, 1, 100]
    rounds[:] = [1]
    assert app.add("books", [{"key": f"b00{n}", "n": 1} for n in range(4)], merge=merge) == Added(1, 3, 0)
    assert [app.show(key).data["n"] for key in keys(app)] == [1, 2, 101, 1]


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
