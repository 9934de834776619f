"""Acts on paid calls and on stale results, as actions: in chunks, left and continued, undone or not."""

from __future__ import annotations

import json
from collections import Counter
from decimal import Decimal
from functools import partial
from typing import Any

import pytest

from holdfast import Context, Item, Pipeline
from holdfast.engine import actions, look_ahead, plan_and_reprocess, selection
from holdfast.engine.forget import Forget, Restore
from holdfast.engine.plan_and_reprocess import Accept, Reprocess
from holdfast.engine.resolve import Resolve
from holdfast.engine.selection import Who
from holdfast.errors import UsageError
from holdfast.model.item_filter import Which
from holdfast.model.money import micros
from tests.support.bench import QUICK, Bench, Ran

pytestmark = pytest.mark.req("J7")

KEYS = [f"page-{n}" for n in range(5)]
ME = Who("me", "because")


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (look_ahead, plan_and_reprocess, selection):
        monkeypatch.setattr(module, "CHUNK", 2)
    monkeypatch.setattr(plan_and_reprocess, "few_items", lambda *_: None)


def begun(ran: Ran, kind: actions.ActionKind) -> int:
    """An action of which only the first chunk is done."""
    action = ran.app.store.write(lambda tx: actions.begin(tx, kind, ME))
    assert action is not None and action.is_open
    return action.id


def acted_on(ran: Ran, number: int) -> list[str]:
    return sorted(item.key for item in ran.app.action(number).items)


# Paid calls -------------------------------------------------------------------------------------------------------------


def torn() -> Pipeline:
    """Every answer is malformed, and recorded all the same."""
    pipeline = Pipeline("p")

    @pipeline.stage(name="work", max_attempts=1, backoff=QUICK)
    def work(item: Item, ctx: Context) -> Any:
        return json.loads(ctx.once("call", lambda: "{torn", cost=0.40))

    return pipeline


def calls(ran: Ran) -> Counter[str]:
    return Counter(call.state for key in KEYS for call in ran.app.calls(key))


def test_answers_are_rejected_once_each_and_taken_back(run: Bench):
    ran = run(torn(), KEYS)
    number = begun(ran, Forget(Which("p")))
    assert ran.app.continue_action(number) == {"p/work": 5}
    assert acted_on(ran, number) == KEYS
    assert calls(ran) == {"rejected": 5}
    back = ran.app.undo_action(number, by="me")
    assert back == {"p/work": 5}
    assert calls(ran) == {"done": 5}
    assert back.action is not None
    again = ran.app.undo_action(back.action)
    assert again == {"p/work": 5}
    assert calls(ran) == {"rejected": 5}


def looked_through(ran: Ran, kind: actions.ActionKind) -> list[int]:
    """How many rows each chunk of an action selects."""
    place: Any = ran.app.store.read(kind.begin)
    sizes = []
    while place is not None:
        rows, place = ran.app.store.read(partial(kind.choose, place=place))
        sizes.append(len(rows))
    return sizes


def test_what_few_answers_or_doubts_fit_is_searched_in_as_many_short_transactions(run: Bench):
    """An act that searches a large store in one transaction keeps every worker of a SQLite file waiting, and a preview of it
    never ends."""
    ran = run(torn(), KEYS)
    assert looked_through(ran, Forget(Which("p"))) == [2, 2, 1]
    assert looked_through(ran, Forget(Which("p", key="page-4"))) == [0, 0, 1]
    assert looked_through(ran, Forget(Which("p", key="nowhere"))) == [0, 0, 0]
    assert ran.app.forget(key="page-4", dry_run=True) == {"p/work": 1}
    assert ran.app.forget(key="page-4") == {"p/work": 1}
    assert looked_through(ran, Restore(Which("p", key="page-4"))) == [0, 0, 1]

    ran = run(doubtful("q"), KEYS)
    assert looked_through(ran, Resolve(Which("q"), 0)) == [2, 2, 1]
    assert looked_through(ran, Resolve(Which("q", key="page-4"), 0)) == [0, 0, 1]


def test_a_preview_looks_through_so_many_entries_and_says_that_there_may_be_more(
    run: Bench, monkeypatch: pytest.MonkeyPatch
):
    ran = run(torn(), KEYS)
    monkeypatch.setattr(actions, "PREVIEWED", 4)
    [rare, all_of_them] = [
        ran.app.forget(dry_run=True, request="preview", **which) for which in ({"key": "page-4"}, {})
    ]
    assert (rare, rare.more) == ({}, True)
    assert (all_of_them, all_of_them.more) == ({"p/work": 4}, True)
    found = ran.app.forget(dry_run=True, request="preview", key="page-1")
    assert (found, found.more) == ({"p/work": 1}, True)


@pytest.mark.parametrize("again", [False, True], ids=["bought anew", "bought anew and rejected too"])
def test_an_answer_that_was_bought_anew_is_left_alone_by_an_undo(run: Bench, again: bool):
    ran = run(torn(), KEYS)
    done = ran.app.forget()
    ran.app.retry(key="page-1")
    ran = run(torn())
    if again:
        assert ran.app.forget(key="page-1") == {"p/work": 1}
    assert done.action is not None
    assert ran.app.undo_action(done.action) == {"p/work": 4}
    assert calls(ran) == ({"done": 4, "rejected": 2} if again else {"done": 5, "rejected": 1})


def test_an_answer_that_was_bought_after_an_action_began_is_not_rejected_by_it(run: Bench):
    ran = run(torn(), KEYS)
    number = begun(ran, Forget(Which("p")))
    ran.app.forget(key="page-4")
    ran.app.retry(key="page-4")
    ran = run(torn())
    assert ran.app.continue_action(number) == {"p/work": 4}
    assert calls(ran) == {"rejected": 5, "done": 1}


def doubtful(name: str) -> Pipeline:
    """No call is ever answered."""
    pipeline = Pipeline(name)

    @pipeline.stage(name="work", max_attempts=1, backoff=QUICK)
    def work(item: Item, ctx: Context) -> Any:
        def call() -> None:
            raise TimeoutError("no answer")

        ctx.once("call", call, cost=0.40)

    return pipeline


def test_doubts_are_settled_once_each_and_that_cannot_be_undone(run: Bench):
    ran = run(doubtful("p"), KEYS)
    number = begun(ran, Resolve(Which("p"), 380_000))
    assert ran.app.continue_action(number) == {"p/work": 5}
    assert acted_on(ran, number) == KEYS
    assert ran.app.action(number).filter == {"pipeline": "p", "charged": Decimal("0.38")}
    [total] = ran.app.costs(["pipeline"]).sums
    assert (micros(total.costs), micros(total.in_doubt)) == (5 * 380_000, 0)
    with pytest.raises(UsageError, match="resolve, cannot be undone: the ledger keeps the amounts"):
        ran.app.undo_action(number)


# Stale results ----------------------------------------------------------------------------------------------------------


def library(version: str) -> Pipeline:
    books = Pipeline("books")

    @books.stage(name="read", version=version)
    def read(item: Item, ctx: Context) -> Any:
        ctx.cost(0.10)
        return item.key

    return books


def test_what_is_stale_is_sent_back_once_and_its_results_stand_after_an_undo(run: Bench):
    run(library("1"), KEYS)
    ran = Ran(run.app(library("2")))
    ran.app.register()
    number = begun(ran, Reprocess("books"))
    assert ran.app.continue_action(number) == {"read": 5}
    assert acted_on(ran, number) == KEYS
    assert ran.states("read") == {"pending": 5}
    assert ran.app.undo_action(number) == {"pending": 5}
    assert ran.states("read") == {"done": 5}
    assert ran.app.check() == []


@pytest.mark.parametrize(("limits", "most"), [({"limit": 3}, 3), ({"budget": 450_000}, 4), ({"budget": 50_000}, 0)])
def test_a_limit_holds_over_all_chunks_of_an_action(run: Bench, limits: dict[str, int], most: int):
    run(library("1"), KEYS)
    ran = Ran(run.app(library("2")))
    ran.app.register()
    assert actions.count(ran.app.store, Reprocess("books", **limits)).get("read", 0) == most
    if most:
        number = begun(ran, Reprocess("books", **limits))
        assert ran.app.continue_action(number) == {"read": most}
    else:
        assert actions.act(ran.app.store, Reprocess("books", **limits), ME) == {}
    assert ran.states("read").get("pending", 0) == most


def test_results_are_accepted_once_each_and_that_cannot_be_undone(run: Bench):
    run(library("1"), KEYS)
    ran = Ran(run.app(library("2")))
    ran.app.register()
    assert ran.app.accept("books", dry_run=True) == {"read": 5}
    number = begun(ran, Accept("books"))
    assert ran.app.continue_action(number) == {"read": 5}
    assert acted_on(ran, number) == KEYS
    assert ran.app.plan("books") == ()
    with pytest.raises(UsageError, match="accept, cannot be undone: the versions"):
        ran.app.undo_action(number)
