"""Killed around paid calls: the provider, who counts every request, is the judge."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.engine import reconcile_money
from holdfast.model.money import micros
from holdfast.model.states import OPEN, State
from holdfast.store.postgres_address import read_url
from tests.support.cluster import Cluster
from tests.support.effort import effort
from tests.support.money import charged
from tests.support.paid_books import STEPS, Tables, app_for, tell_of
from tests.support.paid_server import Call, PaidServer, answer_to
from tests.support.paid_workers import Herd
from tests.support.processes import wait_for
from tests.support.proxy import Proxy
from tests.support.steps import ask, quick_url
from tools.torture import torture

#: How many kills at random points; how many lost replies, one for every commit in the life of an item.
KILLS, COMMITS = effort(14, 1000), effort(12, 20)


class Scene:
    """A store with one of the paid pipelines, its provider and its workers."""

    def __init__(self, url: str, folder: Path, name: str, stack: ExitStack, workers_url: str | None = None) -> None:
        self.url = url
        self.name = name
        self.server = stack.enter_context(PaidServer(folder / "calls"))
        self.app: Holdfast = stack.enter_context(app_for(url, name))
        self.app.register()
        self.own = Tables(None if url.startswith("sqlite:") else read_url(url)[1])
        self.own.create(url)
        self.herd = stack.enter_context(Herd(workers_url or url, folder, name, self.server.environment))

    def add(self, *keys: str) -> None:
        self.app.add(self.name, keys)

    def wait_until_done(self, timeout: float = 30.0) -> None:
        try:
            wait_for(self.is_done, timeout)
        except AssertionError:
            raise AssertionError(f"not done: {self.app.status()}\n{self.herd.said}") from None

    def is_done(self) -> bool:
        waits_for_nobody = OPEN - {State.ON_HOLD}
        return not any(
            waits_for_nobody & stage.states.keys() for one in self.app.status().pipelines for stage in one.stages
        )

    def work_off(self) -> None:
        """One worker that nobody kills does the rest."""
        pid = self.herd.start()
        self.wait_until_done()
        assert self.app.check() == []
        self.herd.kill(pid)

    def wait_until_killed(self, pid: int) -> None:
        wait_for(lambda: pid not in self.herd.alive())

    def kill_after_reply(self, when: Callable[[Call], bool], who: str = "pid") -> None:
        """The provider has the caller killed, or the worker whose child it is, once it has sent its reply; the caller has
        the reply, and can do nothing with it."""

        def after_reply(call: Call) -> None:
            if when(call):
                tell_of(self.herd.ledger, killed=getattr(call, who), how="after the provider's reply")
                os.kill(getattr(call, who), signal.SIGKILL)

        self.server.says = lambda call: {"wait": True} if when(call) else {}
        self.server.after_reply = after_reply

    def starts(self, key: str) -> int:
        """How often a handler has started on an item."""
        return sum(line["key"] == key for line in self.herd.told("start"))

    def documents(self) -> list[str]:
        return [row[0] for row in self.own.read(self.url)["documents"]]

    def doubts(self) -> Counter[str]:
        return Counter(event.data["idempotency_key"] for event in self.app.events(event="in_doubt", most=10_000))

    def result(self, key: str) -> Any:
        return self.app.show(key).stages[0].result

    def state(self, key: str) -> str:
        return str(self.app.show(key).stages[0].state)


@pytest.fixture
def scene(database: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[[str], Scene]]:
    with ExitStack() as stack:
        url = stack.enter_context(quick_url(database, request))
        yield lambda name: Scene(url, tmp_path, name, stack)


# Between the call's return and its record -----------------------------------------------------------------------------


@pytest.mark.fault(2)
@pytest.mark.req("V4", "D4")
def test_a_call_whose_caller_is_killed_before_the_record_is_made_once_more_and_said_to_be_in_doubt(
    scene: Callable[[str], Scene],
):
    paid = scene("called")
    paid.add("page-1", "page-2")
    paid.kill_after_reply(lambda call: call.key == "page-1" and call.nth == 1)
    paid.wait_until_killed(paid.herd.start(concurrency=1))
    paid.work_off()

    first, second = paid.server.calls("page-1")
    assert first.idempotency == second.idempotency
    assert first.pid != second.pid
    assert paid.doubts() == {first.idempotency: 1}
    assert len(paid.server.calls("page-2")) == 1
    assert paid.result("page-1") == answer_to("page-1", "call")
    assert paid.documents() == ["page-1", "page-2"]
    money = {
        one.item: (micros(one.costs), micros(one.in_doubt), micros(one.spent)) for one in paid.app.costs(["item"]).sums
    }
    assert money == {"page-1": (400_000, 400_000, 800_000), "page-2": (400_000, 0, 400_000)}


@pytest.mark.fault(2)
@pytest.mark.req("V4")
def test_each_crash_in_the_window_costs_one_more_call_and_not_two(scene: Callable[[str], Scene]):
    paid = scene("called")
    paid.add("page-1")
    paid.kill_after_reply(lambda call: call.nth <= 3, who="worker")
    paid.herd.start(concurrency=1)
    for _ in range(3):
        paid.wait_until_killed(paid.herd.alive()[0])
        paid.herd.start(concurrency=1)
    paid.wait_until_done()

    calls = paid.server.calls("page-1")
    assert [call.nth for call in calls] == [1, 2, 3, 4]
    assert paid.doubts() == {calls[0].idempotency: 3}
    assert paid.documents() == ["page-1"]


@pytest.mark.fault(2)
@pytest.mark.req("V4")
def test_a_call_in_doubt_that_shall_be_held_is_not_made_again(scene: Callable[[str], Scene]):
    paid = scene("held")
    paid.add("page-1", "page-2")
    paid.kill_after_reply(lambda call: call.key == "page-1" and call.nth == 1)
    paid.wait_until_killed(paid.herd.start(concurrency=1))
    paid.work_off()

    assert (paid.state("page-1"), paid.state("page-2")) == ("on_hold", "done")
    assert len(paid.server.calls("page-1")) == 1
    paid.app.resolve("page-1", "call", value=answer_to("page-1", "call"), by="me")
    paid.work_off()
    assert paid.result("page-1") == answer_to("page-1", "call")
    assert len(paid.server.calls("page-1")) == 1
    assert paid.documents() == ["page-1", "page-2"]


@pytest.mark.fault(2)
@pytest.mark.req("V4")
@pytest.mark.parametrize("when", ["after the reply", "before the call"])
def test_a_provider_that_is_asked_about_a_call_in_doubt_is_not_paid_twice(scene: Callable[[str], Scene], when: str):
    paid = scene("asked")
    paid.add("page-1")
    if when == "after the reply":
        paid.kill_after_reply(lambda call: call.nth == 1)
        paid.wait_until_killed(paid.herd.start(concurrency=1))
    else:
        paid.wait_until_killed(paid.herd.start(concurrency=1, die_at="store.save_memos commit.after"))
        assert paid.server.requests() == []
    paid.work_off()

    assert len(paid.server.calls()) == 1
    [doubt] = paid.app.events(event="in_doubt")
    knew = when == "after the reply"
    assert doubt.data["decided"] == ("the provider was asked" if knew else "the provider knew nothing, called again")
    assert paid.result("page-1") == answer_to("page-1", "call")
    assert paid.documents() == ["page-1"]


@pytest.mark.fault(2)
@pytest.mark.req("V4", "V6")
def test_a_child_process_killed_in_the_window_leaves_its_call_in_doubt_and_its_worker_alive(
    scene: Callable[[str], Scene],
):
    paid = scene("isolated")
    paid.add("page-1", "page-2")
    paid.kill_after_reply(lambda call: call.key == "page-1" and call.nth == 1)
    worker = paid.herd.start()
    paid.wait_until_done()

    assert paid.herd.alive() == [worker]
    first, second = paid.server.calls("page-1")
    assert first.worker == second.worker == worker
    assert first.pid != second.pid != worker
    assert paid.doubts() == {first.idempotency: 1}
    assert paid.documents() == ["page-1", "page-2"]


@pytest.mark.fault(2)
@pytest.mark.req("V4", "V13")
@pytest.mark.parametrize("when", ["before the call", "after the reply", "after the record"])
def test_a_call_for_a_batch_whose_worker_is_killed_is_one_doubt_and_no_record_is_paid_again(
    scene: Callable[[str], Scene], when: str
):
    paid = scene("together")
    keys = ["page-1", "page-2", "page-3"]
    paid.add(*keys)
    if when == "after the reply":
        paid.kill_after_reply(lambda call: " " in call.key)
        paid.wait_until_killed(paid.herd.start(concurrency=1))
    else:
        statement = "share_calls" if when == "before the call" else "change_calls"
        paid.wait_until_killed(paid.herd.start(concurrency=1, die_at=f"store.{statement} commit.after"))
    assert [call.key for call in paid.server.calls()] == ([] if when == "before the call" else [" ".join(keys)])
    paid.work_off()

    assert {key: paid.result(key) for key in keys} == {key: answer_to(key, "vectors") for key in keys}
    again = sorted(call.key for call in paid.server.calls() if " " not in call.key)
    [told] = paid.app.costs().sums
    assert told.spent == told.costs + told.in_doubt
    if when == "after the record":
        assert again == []
        assert paid.doubts() == {}
        assert (micros(told.costs), told.payments, told.doubts) == (400_000, 1, 0)
    else:
        assert again == keys, "what a dead worker held is run alone"
        assert sum(paid.doubts().values()) == len(keys), "each item knows of it"
        assert (micros(told.costs), micros(told.in_doubt), told.doubts) == (1_200_000, 400_000, 1)
        assert paid.app.resolve_many(charged=0) == {"together/call_together": 1}
        assert [(micros(one.costs), micros(one.in_doubt)) for one in paid.app.costs().sums] == [(1_200_000, 0)]


@pytest.mark.req("V4")
def test_a_call_that_fails_is_made_again_and_paid_once(scene: Callable[[str], Scene]):
    paid = scene("called")
    paid.add("page-1")
    failures = iter([True, True])
    paid.server.fails = lambda key, name: next(failures, False)
    paid.work_off()

    assert [call.paid for call in paid.server.requests()] == [False, False, True]
    assert charged(paid.app, ["item"]) == [{"item": "page-1", "amount": 400_000, "payments": 1}]


# Around the transaction that completes --------------------------------------------------------------------------------


@pytest.mark.fault(3)
@pytest.mark.req("V2", "V4", "D4")
def test_a_worker_killed_inside_the_final_transaction_leaves_no_row_and_pays_nothing_again(
    scene: Callable[[str], Scene],
):
    """Right after the handler's own INSERT."""
    paid = scene("called")
    paid.add("page-1")
    paid.wait_until_killed(paid.herd.start(concurrency=1, environment={"HOLDFAST_TEST_DIE_IN_EFFECT": "1"}))

    assert [line["how"] for line in paid.herd.told("killed")] == ["effect"]
    assert paid.documents() == []
    assert paid.state("page-1") == "in_progress"
    paid.work_off()
    assert paid.documents() == ["page-1"]
    assert paid.starts("page-1") == 2
    assert len(paid.server.calls()) == 1
    assert paid.doubts() == {}


@pytest.mark.fault(4)
@pytest.mark.req("V2", "V4")
def test_a_worker_killed_right_after_the_commit_has_done_its_work(scene: Callable[[str], Scene]):
    paid = scene("called")
    paid.add("page-1")
    paid.wait_until_killed(paid.herd.start(concurrency=1, die_at="store.insert_outcomes commit.after"))

    assert paid.state("page-1") == "done"
    assert paid.documents() == ["page-1"]
    paid.work_off()
    assert paid.starts("page-1") == 1
    assert len(paid.server.calls()) == 1
    assert paid.documents() == ["page-1"]


@pytest.mark.fault(4)
@pytest.mark.req("V2", "V10", "D7")
def test_the_follow_ons_of_a_stage_are_there_if_its_worker_is_killed_right_after_the_commit(
    scene: Callable[[str], Scene],
):
    paid = scene("books")
    paid.add("book")
    paid.wait_until_killed(paid.herd.start(concurrency=1, die_at="store.add_children commit.after"))

    assert sorted(row.key for row in paid.app.items(most=10) if row.key != "book") == [
        "book/0",
        "book/1",
        "book/2",
    ]
    assert paid.app.show("book", "connections").status == "pending"
    assert len(paid.own.read(paid.url)["chunks"]) == 3
    paid.work_off()
    assert paid.own.read(paid.url)["documents"] == [("book", "title of book", 3)]
    assert Counter(Counter((call.key, call.name) for call in paid.server.calls()).values()) == {1: 6}


@pytest.mark.fault(2, 3, 4)
@pytest.mark.req("V2", "V4", "V10")
def test_wherever_a_worker_is_killed_the_next_one_pays_for_nothing_that_was_recorded(scene: Callable[[str], Scene]):
    """One book after another, whose worker dies at its first, second, third… point, until one lives to the end."""
    paid = scene("books")
    paid.server.fails = lambda key, name: False
    died = 0
    for n in range(1, 1000, effort(41, 1)):
        book = f"book-{n}"
        before = len(paid.herd.told("killed"))
        paid.add(book)
        pid = paid.herd.start(concurrency=1, die_after=n)
        wait_for(lambda pid=pid: pid not in paid.herd.alive() or paid.is_done())
        if len(paid.herd.told("killed")) == before:
            paid.herd.kill(pid)
            break
        died += 1
        if died % 8 == 0:
            paid.work_off()
    paid.work_off()

    assert died > 5
    doubts = paid.doubts()
    for key, n in Counter(call.idempotency for call in paid.server.calls()).items():
        assert n - 1 <= doubts[key]
    rows = paid.own.read(paid.url)
    books = sorted(row.key for row in paid.app.items(pipeline="books", most=1000))
    assert rows["documents"] == [(book, f"title of {book}", 3) for book in books]
    assert rows["tallies"] == sorted((f"chunks of {book}", 1) for book in books)
    assert len(rows["connections"]) == 2 * len(books)
    assert len(rows["vectors"]) == 3 * len(books)


# Many at once ---------------------------------------------------------------------------------------------------------


@pytest.mark.fault(72)
@pytest.mark.req("V4")
def test_steps_that_ran_together_get_their_own_values_though_half_of_them_were_cut_off(scene: Callable[[str], Scene]):
    """asyncio.gather of named steps in random order with random delays, killed about half-way, again and again."""
    paid = scene("gathered")
    rng = random.Random(1)
    keys = [f"page-{n}" for n in range(4)]
    paid.server.delay = lambda key, name: rng.random() * 0.03
    paid.server.after_reply = lambda call: kill(call) if rng.random() < 0.15 and len(killed) < 12 else None
    killed: list[int] = []

    def kill(call: Call) -> None:
        killed.append(call.worker)
        if call.worker in paid.herd.alive():
            paid.herd.kill(call.worker)

    paid.add(*keys)
    while not paid.is_done():
        if not paid.herd.alive():
            paid.herd.start()
        wait_for(lambda: paid.is_done() or not paid.herd.alive())

    for key in keys:
        assert paid.result(key) == {name: f"{name} of {key}" for name in STEPS}
    doubts = paid.doubts()
    calls = Counter((call.key, call.name, call.idempotency) for call in paid.server.calls())
    assert len(calls) == len(keys) * len(STEPS)
    assert all(n - 1 <= doubts[idempotency] for (_, _, idempotency), n in calls.items())
    assert killed


@pytest.mark.fault(2, 3, 4, 67)
@pytest.mark.req("V2", "V4", "V10", "D4", "D7")
def test_many_kills_at_random_points_cost_no_call_no_row_and_no_follow_on(
    database: str, tmp_path: Path, request: pytest.FixtureRequest
):
    """A short run of `python -m tools.torture`."""
    with quick_url(database, request) as url:
        verdict = torture(url, tmp_path, KILLS * 3 // 2, seed=random.randrange(1_000_000))

    assert verdict.violations == [], "\n".join(verdict.lines())
    assert sum(verdict.kills.values()) >= KILLS
    assert verdict.calls <= verdict.names + verdict.in_doubt


# Beside running workers -----------------------------------------------------------------------------------------------


@pytest.mark.req("V13")
def test_sums_that_are_rebuilt_while_workers_pay_lose_nothing(scene: Callable[[str], Scene]):
    paid = scene("called")
    paid.app.tune("called", {"budget": 1000})
    keys = [f"page-{n}" for n in range(30)]
    paid.add(*keys)
    paid.herd.start()
    paid.herd.start()
    repaired: list[str] = []
    is_done = False
    while not is_done:
        # Once more after the last payment: on a busy machine all of them may be made in one round.
        is_done = paid.is_done()
        for table in ("money", "spent"):
            paid.app.store.write(lambda tx, table=table: ask(tx, f"UPDATE holdfast_{table} SET amount = amount + 1"))  # type: ignore[misc]
        repaired += paid.app.repair(by="me")
        assert paid.app.store.read(reconcile_money.find).wrong == []
    assert len(paid.herd.alive()) == 2, paid.herd.said

    assert repaired and paid.app.check() == []
    assert charged(paid.app) == [{"pipeline": "called", "stage": "call", "amount": 30 * 400_000, "payments": 30}]
    assert [micros(one.spent) for one in paid.app.limits()] == [30 * 400_000]
    assert paid.documents() == sorted(keys)


# The reply to COMMIT is lost ------------------------------------------------------------------------------------------


#: What was written in the commits whose reply was lost.
LOST = ("memos", "outcomes", "chunks", "children")


def is_among(lost: list[list[str]], table: str) -> bool:
    return any(f"{table} " in statement for transaction in lost for statement in transaction)


@pytest.mark.fault(26)
@pytest.mark.req("V2", "V4")
def test_a_lost_reply_to_commit_makes_no_call_twice(tmp_path: Path):
    """The worker's k-th COMMIT takes place and it does not hear of it, for every k in the life of some paid items. Nobody
    died: nothing is in doubt."""
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster())
        proxy = stack.enter_context(Proxy(cluster.socket))
        paid = Scene(cluster.database("paid"), tmp_path, "books", stack, workers_url=proxy.url("paid"))
        paid.herd.start(concurrency=1)
        wait_for(paid.app.workers)
        books = 0
        while books < COMMITS or not all(is_among(proxy.lost, table) for table in LOST):
            # What else a worker commits meanwhile moves the place: the same number is not the same commit every time.
            assert books < 10 * COMMITS, proxy.lost
            proxy.lose_commit(1 + books % COMMITS)
            books += 1
            paid.add(f"book-{books}")
            wait_for(lambda: not proxy.armed and paid.is_done())
        assert paid.app.check() == []
        assert paid.doubts() == {}
        rows = paid.own.read(paid.url)

    assert len(proxy.lost) == books
    assert rows["tallies"] == sorted((f"chunks of book-{k}", 1) for k in range(1, books + 1))
    assert Counter(Counter((call.key, call.name) for call in paid.server.calls()).values()) == {1: books * 6}
