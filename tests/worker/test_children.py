"""Children: items that an item waits for. The stage that waits begins once, when the last of them has ended, however."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from holdfast import Context, DefinitionError, Item, Permanent, Pipeline, Skip
from holdfast.engine.complete import complete
from holdfast.engine.fail import fail
from holdfast.engine.finish_leases import FinishedAttempt, FollowOn
from holdfast.engine.prune import prune_items
from holdfast.model.states import State
from tests.support.bench import QUICK, Bench
from tests.support.harness import App
from tests.support.processes import wait_for
from tests.support.several import Several
from tests.support.steps import Trouble, write
from tests.support.together import at_once, held_at, meeting_at


@pytest.fixture
def app(store: Any, clock: Any) -> App:
    """Books that wait for their chunks: make → gather, and chunk → polish."""
    app = App(store, clock)
    app.pipeline({"chunk": [], "polish": ["chunk"]}, name="chunks", max_attempts=2)
    app.pipeline({"make": [], "gather": ["make"]}, name="books", only={"gather": {"after_children": "chunks"}})
    return app


def make(app: App, key: str, *children: str, when: str = "skip", pipeline: str = "chunks") -> None:
    """A book is made, and submits its chunks."""
    app.name = "books"
    app.add([key])
    [lease] = app.claim(stage="make")
    finished = app.finished(lease, None)
    finished.follow_ons = [FollowOn(pipeline, child, "{}", when, True) for child in children]
    app.store.write(lambda tx: complete(tx, [finished]))


def take(app: App, key: str, stage: str = "chunk", worker: str = "w") -> Any:
    """The lease of one chunk."""
    app.name = "chunks"
    leases = app.claim(worker, stage=stage, most=100)
    [mine] = [lease for lease in leases if lease.key == key]
    for lease in leases:
        if lease is not mine:
            app.release(lease)
    return mine


def end(app: App, key: str, how: str = "done") -> None:
    """Bring a chunk to its end."""
    if how == "cancelled":
        app.name = "chunks"
        app.cancel(key=key)
        return
    lease = take(app, key)
    if how == "failed":
        app.permanent(lease)
    elif how == "exhausted":
        app.fail(lease)
        app.promote()
        app.fail(take(app, key))
    elif how == "exhausted by a death":
        exhaust_by_death(app, key, lease)
    else:
        app.complete(lease)
        if how == "failed late":
            app.permanent(take(app, key, "polish"))
        elif how == "skipped":
            app.skip(take(app, key, "polish"))
        else:
            app.complete(take(app, key, "polish"))


def exhaust_by_death(app: App, key: str, lease: Any) -> None:
    """Workers die over it until nobody tries any more."""
    for number in itertools.count():
        app.kill("w" if number == 0 else f"victim-{number}")
        if app.states(key) == {"chunk": "exhausted"}:
            return
        take(app, key, worker=f"victim-{number + 1}")


def gather(app: App, key: str = "book") -> str | None:
    app.name = "books"
    return app.states(key).get("gather")


# When it begins -------------------------------------------------------------------------------------------------------

ENDS = ("done", "skipped", "failed", "failed late", "exhausted", "exhausted by a death", "cancelled")


@pytest.mark.req("V1")
@pytest.mark.parametrize("how", ENDS)
def test_the_stage_begins_when_the_last_child_has_ended_however_it_ended(app: App, how: str):
    make(app, "book", "c1", "c2")
    assert gather(app) is None
    end(app, "c1")
    assert gather(app) is None
    end(app, "c2", how)

    assert gather(app) == "pending"
    assert app.counts() == app.recount()


@pytest.mark.req("V1")
@pytest.mark.parametrize("how", ENDS)
def test_a_child_that_ended_early_is_not_waited_for(app: App, how: str):
    make(app, "book", "c1", "c2")
    end(app, "c1", how)
    assert gather(app) is None
    end(app, "c2")
    assert gather(app) == "pending"


def test_a_child_between_two_stages_has_not_ended(app: App):
    make(app, "book", "c1")
    lease = take(app, "c1")
    app.complete(lease)
    assert gather(app) is None
    lease = take(app, "c1", "polish")
    assert gather(app) is None
    app.fail(lease, delay=60)
    assert gather(app) is None, "it waits for another attempt"


def test_without_children_the_stage_begins_at_once(app: App):
    make(app, "book")
    assert gather(app) == "pending"


def test_children_in_another_pipeline_are_not_waited_for(app: App):
    app.pipeline({"other": []}, name="others")
    make(app, "book", "x", pipeline="others")
    assert gather(app) == "pending"


def test_follow_ons_that_are_no_children_are_not_waited_for(app: App):
    app.name = "books"
    app.add(["book"])
    [lease] = app.claim(stage="make")
    finished = app.finished(lease, None)
    finished.follow_ons = [FollowOn("chunks", "c1", "{}", "skip", False)]
    app.store.write(lambda tx: complete(tx, [finished]))
    assert gather(app) == "pending"


@pytest.mark.req("V10")
def test_a_child_of_two_parents_lets_both_go_on(app: App):
    make(app, "book", "shared", "mine")
    make(app, "brook", "shared")
    end(app, "mine")
    assert (gather(app, "book"), gather(app, "brook")) == (None, None)
    end(app, "shared")
    assert (gather(app, "book"), gather(app, "brook")) == ("pending", "pending")


def test_a_child_that_had_ended_before_it_was_submitted_is_not_waited_for(app: App):
    make(app, "book", "c1")
    end(app, "c1")
    make(app, "brook", "c1")
    assert gather(app, "brook") == "pending"
    make(app, "creek", "c1", when="rerun")
    assert gather(app, "creek") is None, "it was begun again"
    app.complete(take(app, "c1"))
    assert gather(app, "creek") == "pending"


@pytest.mark.req("V1")
def test_a_child_that_waits_for_children_of_its_own_has_not_ended(app: App):
    """book waits for chunk, chunk waits for piece."""
    app.pipeline({"piece": []}, name="pieces")
    app.pipeline({"split": [], "join": ["split"]}, name="nested", only={"join": {"after_children": "pieces"}})
    app.pipeline({"make": [], "gather": ["make"]}, name="books", only={"gather": {"after_children": "nested"}})
    make(app, "book", "chunk", pipeline="nested")
    app.name = "nested"
    [lease] = app.claim(stage="split")
    finished = app.finished(lease, None)
    finished.follow_ons = [FollowOn("pieces", "piece", "{}", "skip", True)]
    app.store.write(lambda tx: complete(tx, [finished]))
    assert gather(app) is None, "the chunk waits for its piece"
    app.name = "pieces"
    app.complete(app.claim()[0])
    assert gather(app) is None, "the chunk goes on"
    app.name = "nested"
    app.complete(app.claim(stage="join")[0])
    assert gather(app) == "pending"


def test_a_parent_that_waits_for_a_stage_and_for_children_needs_both(app: App):
    app.pipeline(
        {"make": [], "check": ["make"], "gather": ["make", "check"]},
        name="books",
        only={"gather": {"after_children": "chunks"}},
    )
    for order in (("child", "check"), ("check", "child")):
        book = f"book {order[0]}"
        make(app, book, f"c {order[0]}")
        for which in order:
            assert gather(app, book) is None
            if which == "child":
                end(app, f"c {order[0]}")
            else:
                app.name = "books"
                app.complete(app.claim(stage="check")[0])
        assert gather(app, book) == "pending"


# What is said meanwhile -----------------------------------------------------------------------------------------------


@pytest.mark.req("J5", "V1")
def test_an_item_that_waits_for_its_children_is_not_done(app: App):
    make(app, "book", "c1", "c2")
    end(app, "c1")
    app.name = "books"
    assert app.status("book") == "pending"
    end(app, "c2")
    app.name = "books"
    app.complete(app.claim(stage="gather")[0])
    assert app.status("book") == "done"


def test_an_item_that_waits_for_its_children_is_not_pruned(app: App):
    make(app, "book", "c1")
    app.clock.advance(1_000_000)
    number = app.stage("make").pipeline
    assert app.store.write(lambda tx: prune_items(tx, number, tx.now)) == 0
    end(app, "c1")
    app.name = "books"
    app.complete(app.claim(stage="gather")[0])
    app.clock.advance(1_000_000)
    assert app.store.write(lambda tx: prune_items(tx, number, tx.now)) == 1


def test_why_names_the_children_that_are_waited_for(run: Bench, url: str):
    chunks = Pipeline("chunks")
    chunks.stage(name="chunk")(lambda item, ctx: None)
    books = books_of([f"c{number}" for number in range(3)], lambda item, ctx: None)
    bench = Several(url, [chunks])
    app = bench.app(books, ["book"])
    with bench.serving(books, stages=("make", "gather")):
        wait_for(lambda: len(app.items(pipeline="chunks")) == 3)
    why = app.why("book")
    bench.close()

    assert (why.stage, why.reason) == ("gather", "children")
    assert "'gather' waits for 3 children in 'chunks'" in why.text


# Once, whoever comes first --------------------------------------------------------------------------------------------


def parallel(app: App, *works: Callable[[App], None]) -> None:
    """Each in a thread with a connection of its own."""
    others = [app.beside() for _ in works]
    at_once(*(lambda work=work, mine=mine: work(mine) for work, mine in zip(works, others, strict=True)))
    for other in others:
        other.store.close()


def ending(lease: Any, how: str) -> Callable[[App], None]:
    """End a child in a transaction that several may be in at once."""

    def work(mine: App) -> None:
        if how == "done":
            mine.store.write(lambda tx: complete(tx, [mine.finished(lease, None)]))
        elif how == "failed":
            mine.store.write(lambda tx: complete(tx, [FinishedAttempt(lease, State.FAILED, "1", error="no")]))
        elif how == "exhausted":
            mine.store.write(lambda tx: fail(tx, [FinishedAttempt(lease, State.RETRY_LATER, "1", error="no")]))
        else:
            mine.name = "chunks"
            mine.cancel(key=lease.key)

    return work


@pytest.mark.req("V1", "V10")
@pytest.mark.parametrize("point", ["store.parents_of", "store.lock_items", "store.open_items", "commit.before"])
@pytest.mark.parametrize(
    "ends", list(itertools.product(["done", "exhausted"], ["done", "failed", "cancelled"])), ids="-".join
)
@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_two_children_that_end_at_once_let_the_parent_go_on_once(app: App, point: str, ends: Sequence[str]):
    """Neither sees that the other has ended, until one of them has committed."""
    app.pipeline({"chunk": []}, name="chunks", max_attempts=1)
    make(app, "book", "c1", "c2")
    leases = [take(app, key) for key in ("c1", "c2")]
    done = threading.Event()
    works = [then(ending(lease, how), done.set) for lease, how in zip(leases, ends, strict=True)]
    # Who comes second waits for the parent, and cannot come that far before the first has committed.
    late = point in ("store.open_items", "commit.before")
    with held_at(point, until=lambda: done.is_set() or someone_waits(app)) if late else meeting_at(point, 2):
        parallel(app, *works)

    assert gather(app) == "pending"
    assert app.counts() == app.recount()
    assert len(app.claim(stage="gather", most=10)) == 1


def then(work: Callable[[App], None], after: Callable[[], None]) -> Callable[[App], None]:
    def both(mine: App) -> None:
        work(mine)
        after()

    return both


def someone_waits(app: App) -> bool:
    probe = app.store.another()
    try:
        [(n,)] = probe.read(
            lambda tx: probe.driver.run_text(
                "SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            )
        )
        return bool(n)
    finally:
        probe.close()


@pytest.mark.req("V1", "V10")
@pytest.mark.parametrize("first", ["child", "parent"])
@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_a_child_that_ends_while_another_parent_asks_for_it_wakes_that_parent(app: App, first: str):
    """The child was there before and is about to end; the parent has submitted it and is about to wait for it. Whoever
    commits second must see the other."""
    make(app, "book", "c1")
    app.complete(take(app, "c1"))
    lease = take(app, "c1", "polish")
    app.name = "books"
    app.add(["brook"])
    [parent] = app.claim(stage="make")
    finished = app.finished(parent, None)
    finished.follow_ons = [FollowOn("chunks", "c1", "{}", "skip", True)]
    works: dict[str, Callable[[App], None]] = {
        "child": ending(lease, "done"),
        "parent": lambda mine: mine.store.write(lambda tx: complete(tx, [finished])),
    }
    second_done = threading.Event()

    def second(mine: App) -> None:
        arrived.wait(20)
        works["parent" if first == "child" else "child"](mine)
        second_done.set()

    with held_at("commit.before", until=lambda: second_done.is_set() or someone_waits(app)) as arrived:
        parallel(app, works[first], second)

    assert gather(app, "book") == "pending"
    assert gather(app, "brook") == "pending"
    assert app.counts() == app.recount()


@pytest.mark.fault(26)
@pytest.mark.req("V2")
@pytest.mark.parametrize("kind", Trouble.KINDS)
@pytest.mark.parametrize("nth", [2, 5, 8])
def test_the_stage_begins_once_though_the_transaction_ran_twice(app: App, kind: str, nth: int):
    make(app, "book", "c1")
    app.complete(take(app, "c1"))
    lease = take(app, "c1", "polish")
    trouble = Trouble(kind, nth)
    write(app.store, lambda tx: complete(tx, [app.finished(lease, None)]), trouble=trouble)

    assert trouble.fired
    assert gather(app) == "pending"
    assert app.counts() == app.recount()


@pytest.mark.req("V1", "V10")
@pytest.mark.parametrize("seed", range(4))
def test_in_any_order_each_parent_goes_on_exactly_once_and_only_after_its_last_child(app: App, seed: int):
    """Parents share children; everything happens in an order drawn by lot, some of it in one commit."""
    rng = random.Random(seed)
    children = [f"c{number}" for number in range(10)]
    wanted = {f"book-{number}": rng.sample(children, rng.randint(0, 4)) for number in range(6)}
    app.name = "books"
    app.add(list(wanted))
    todo = [(lease, wanted[lease.key]) for lease in app.claim(stage="make", most=10)]
    born: dict[str, int] = {}
    ended: set[str] = set()
    submitted: set[str] = set()
    made: set[str] = set()
    for _ in range(500):
        if todo and rng.random() < 0.4:
            group = [todo.pop(rng.randrange(len(todo))) for _ in range(min(len(todo), rng.randint(1, 3)))]
            finished = []
            for lease, chunks in group:
                one = app.finished(lease, None)
                one.follow_ons = [FollowOn("chunks", child, "{}", "skip", True) for child in chunks]
                finished.append(one)
                submitted.update(chunks)
                made.add(lease.key)
            app.store.write(lambda tx, finished=finished: complete(tx, finished))
        elif submitted - ended:
            app.name = "chunks"
            leases = app.claim(stage=rng.choice(["chunk", "polish"]), most=rng.randint(1, 3))
            done = [app.finished(lease, None) if rng.random() < 0.8 else failed(lease) for lease in leases]
            app.store.write(lambda tx, done=done: complete(tx, done))
            ended |= {
                one.lease.key for one in done if one.state is State.FAILED or one.lease.stage == app.stage("polish").id
            }
        app.name = "books"
        for key, chunks in wanted.items():
            ready = key in made and set(chunks) <= ended
            assert (app.states(key).get("gather") is not None) is ready, f"{key} waits for {chunks}; ended: {ended}"
        if not todo and ended == submitted:
            break
    for lease in app.claim(stage="gather", most=100):
        born[lease.key] = born.get(lease.key, 0) + 1
    assert born == dict.fromkeys(wanted, 1)
    assert app.counts() == app.recount()


def failed(lease: Any) -> FinishedAttempt:
    return FinishedAttempt(lease, State.FAILED, "1", error="no")


# Through workers ------------------------------------------------------------------------------------------------------


def books_of(children: Sequence[str], gather: Callable[[Item, Context], Any], **settings: Any) -> Pipeline:
    """make → gather, where every book has these chunks."""
    books = Pipeline("books")

    @books.stage(**settings)
    def make(item: Item, ctx: Context) -> None:
        for child in children:
            ctx.submit("chunks", f"{item.key}/{child}", {"n": child}, child=True)

    books.stage(name="gather", after="make", after_children="chunks")(gather)
    return books


@pytest.fixture
def shelves(url: str) -> Iterator[Callable[[Pipeline], Several]]:
    benches: list[Several] = []

    def make(chunks: Pipeline) -> Several:
        benches.append(Several(url, [chunks]))
        return benches[-1]

    yield make
    for bench in benches:
        bench.close()


@pytest.mark.req("V1")
@pytest.mark.parametrize("how", ["thread", "process"])
def test_a_stage_that_waits_for_its_children_sees_how_they_ended(shelves: Callable[[Pipeline], Several], how: str):
    chunks = Pipeline("chunks")

    @chunks.stage(max_attempts=1, backoff=QUICK)
    def chunk(item: Item, ctx: Context) -> Any:
        number = int(item.key.partition("/")[2])
        if number % 10 == 0:
            raise Permanent("torn")
        if number % 10 == 1:
            raise ValueError("out of attempts")
        return Skip("empty") if number % 10 == 2 else None

    def count(item: Item, ctx: Context) -> Any:
        gathered.append(item.key)
        return {"chunks": ctx.children("chunks"), "others": ctx.children("books")}

    gathered: list[str] = []
    books = Pipeline("books")

    @books.stage()
    def make(item: Item, ctx: Context) -> None:
        for number in range(20):
            ctx.submit("chunks", f"{item.key}/{number}", child=True)

    books.stage(name="gather", after="make", after_children="chunks", isolate="process" if how == "process" else None)(
        count
    )
    ran = shelves(chunks)(books, ["book-1", "book-2"])

    for key in ("book-1", "book-2"):
        assert ran.result(key, "gather") == {"chunks": {"done": 16, "failed": 4}, "others": {}}
    if how == "thread":
        assert sorted(gathered) == ["book-1", "book-2"], "each once"


@pytest.mark.req("V1", "V10")
def test_several_workers_bring_each_parent_on_once(url: str, shelves: Callable[[Pipeline], Several]):
    chunks = Pipeline("chunks")
    chunks.stage(name="chunk", backoff=QUICK)(lambda item, ctx: None)
    gathered: list[tuple[str, dict[str, int]]] = []
    books = books_of(
        [str(number) for number in range(10)], lambda item, ctx: gathered.append((item.key, ctx.children("chunks")))
    )
    bench = shelves(chunks)
    bench.app(books, [f"book-{number}" for number in range(30)])
    with bench.serving(books), bench.serving(books), bench.serving(books) as (_, ran):
        wait_for(lambda: ran.states("gather") == {"done": 30})

    assert sorted(gathered) == sorted((f"book-{number}", {"done": 10}) for number in range(30))
    assert ran.states("chunk") == {"done": 300}
    assert ran.app.check() == []


def test_a_stage_retried_by_a_person_begins_at_once_for_its_children_have_ended(
    shelves: Callable[[Pipeline], Several],
):
    chunks = Pipeline("chunks")
    chunks.stage(name="chunk")(lambda item, ctx: None)
    broken = threading.Event()
    broken.set()

    def gather(item: Item, ctx: Context) -> Any:
        if broken.is_set():
            raise Permanent("not yet")
        return ctx.children("chunks")

    bench, books = shelves(chunks), books_of(["1", "2"], gather)
    assert bench(books, ["book"]).state("book", "gather") == "failed"
    broken.clear()
    bench.app(books).retry(stage="gather")
    assert bench(books).result("book", "gather") == {"done": 2}


@pytest.mark.req("V12")
def test_a_stage_that_waits_for_children_comes_after_the_stage_that_submits_them():
    with pytest.raises(DefinitionError, match="after_children='chunks' needs after="):
        Pipeline("books").stage(name="gather", after_children="chunks")(lambda item, ctx: None)
