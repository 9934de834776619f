"""Who commits: a thread of its own or, on a SQLite file, whoever has run quick handlers and has nothing left to run."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast import Context, Item, Pipeline, RetryLater, points
from holdfast.engine.claim import Lease
from holdfast.engine.finish_leases import FinishedAttempt
from holdfast.errors import StoreConflict
from holdfast.model.states import State
from holdfast.runtime.async_pool import IN_A_ROW
from holdfast.runtime.services import Scheduler, Service
from holdfast.worker.commit.claim_planner import ClaimPlanner
from holdfast.worker.commit.committer import Committer
from holdfast.worker.commit.finished_queue import QUIET_SECONDS, FinishedQueue
from holdfast.worker.commit.memo_queue import MemoQueue
from holdfast.worker.commit.prefetch import InHand
from holdfast.worker.commit.who_commits import OVER, CommitTurns, Round
from tests.support.bench import Bench
from tests.support.kinds import keys
from tests.support.waiting import wait_for

COMMITTER, LOOP, THREAD = "holdfast-committer", "holdfast-loop", "holdfast-handler"


def one_stage(work: Callable[..., Any]) -> Pipeline:
    pipeline = Pipeline("p")
    pipeline.stage(name="work")(work)
    return pipeline


@pytest.fixture
def committers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads that have committed ended attempts or claims of a worker, one after another."""
    names: list[str] = []
    monkeypatch.setattr(
        points,
        "listener",
        lambda point: names.append(threading.current_thread().name) if point == "claim.after" else None,
    )
    return names


async def quick_async(item: Item, ctx: Context) -> None:
    return None


def quick_sync(item: Item, ctx: Context) -> None:
    return None


# The inbox ------------------------------------------------------------------------------------------------------------


def ended() -> list[FinishedAttempt]:
    return [FinishedAttempt(Lease(1, 1, 1, 1, 0, 0, "k", "{}", 0), State.DONE)]


def test_nothing_is_quiet_once_somebody_was_told_of_something():
    inbox = FinishedQueue()
    inbox.put(ended(), quietly=True)
    assert inbox.is_quiet and not inbox._wake_up.is_set()
    inbox.put(ended(), quietly=False)
    inbox.put(ended(), quietly=True)
    assert not inbox.is_quiet and inbox._wake_up.is_set()
    assert len(inbox.take(2)) == 2 and len(inbox) == 1


def test_who_takes_only_what_is_routine_leaves_the_rest_to_those_who_were_told():
    inbox = FinishedQueue()
    [plain], [odd], [late] = ended(), ended(), ended()
    plain.routine = late.routine = True
    inbox.put([plain], quietly=True)
    inbox.put([odd], quietly=False)
    inbox.put([late], quietly=True)
    assert inbox.take(10, routine=True) == [plain, late]
    assert not inbox.is_quiet and inbox._wake_up.is_set()
    assert inbox.take(10) == [odd]


def test_what_was_reported_quietly_does_not_lie_there_for_long():
    inbox = FinishedQueue()
    now = time.monotonic()
    inbox.look(now + 1, now)
    inbox.put(ended(), quietly=True)
    inbox.look(time.monotonic() + QUIET_SECONDS / 2, now)
    # There was a turn just now: whoever had it leaves time for another.
    inbox.look(time.monotonic() + 2 * QUIET_SECONDS, time.monotonic() + 2 * QUIET_SECONDS)
    assert not inbox._wake_up.is_set()
    inbox.look(time.monotonic() + 2 * QUIET_SECONDS, now)
    assert inbox._wake_up.is_set()


# Turns ----------------------------------------------------------------------------------------------------------------


class Hand(InHand):
    """As many leases as those rounds say."""

    def __init__(self, rounds: Rounds) -> None:
        super().__init__(1)
        self._rounds = rounds

    def __len__(self) -> int:
        return self._rounds.held


class Turns(CommitTurns):
    """Leaves everything to those rounds."""

    def __init__(self, rounds: Rounds) -> None:
        super().__init__(Hand(rounds), 60.0)
        self._make_round = rounds.make  # type: ignore[method-assign]
        self._end = lambda: rounds.made.append(("end", True, 0))  # type: ignore[method-assign]


class Rounds:
    """Rounds that take what lies in an inbox, and note who made them."""

    def __init__(self) -> None:
        self.made: list[tuple[str, bool, int]] = []
        self.held = 1
        self.starts = False
        self.over = False
        self.turns = Turns(self)
        self.inbox = self.turns._finished

    def make(self, by_thread: bool) -> Round:
        taken = self.inbox.take(100)
        self.made.append((threading.current_thread().name, by_thread, len(taken)))
        return OVER if self.over else Round(0.0 if taken else 60.0, started=self.starts)


@pytest.fixture
def rounds() -> Iterator[Rounds]:
    made = Rounds()
    yield made
    made.over = True
    made.inbox.wake()
    if made.turns._thread.ident is not None:
        assert made.turns.join(10)
        assert made.made[-1] == ("end", True, 0)


ME = threading.current_thread().name


def test_who_is_out_of_work_makes_the_round_itself(rounds: Rounds):
    rounds.starts = True
    rounds.inbox.put(ended(), quietly=True)
    assert rounds.turns.out_of_work(lambda: True)
    assert rounds.made == [(ME, False, 1)]
    assert not rounds.inbox._wake_up.is_set()


def test_after_a_round_of_another_the_thread_is_woken_if_none_follows(rounds: Rounds):
    """What was started may turn out to be slow, and the round may have known of more to do."""
    rounds.starts = True
    rounds.inbox.put(ended(), quietly=True)
    assert rounds.turns.out_of_work(lambda: True)
    rounds.turns.look(time.monotonic())
    assert not rounds.inbox._wake_up.is_set()
    rounds.turns.look(time.monotonic() + 2 * QUIET_SECONDS)
    assert rounds.inbox._wake_up.is_set()


def test_a_round_that_started_nothing_wakes_the_thread(rounds: Rounds):
    rounds.inbox.put(ended(), quietly=True)
    assert not rounds.turns.out_of_work(lambda: True)
    assert rounds.made == [(ME, False, 1)] and rounds.inbox._wake_up.is_set()


def test_who_is_not_free_wakes_the_thread(rounds: Rounds):
    rounds.inbox.put(ended(), quietly=True)
    assert not rounds.turns.out_of_work(lambda: False)
    assert rounds.made == [] and rounds.inbox._wake_up.is_set()


def test_nobody_makes_a_round_for_what_somebody_was_told_of(rounds: Rounds):
    assert not rounds.turns.out_of_work(lambda: True)
    rounds.inbox.put(ended(), quietly=False)
    assert not rounds.turns.out_of_work(lambda: True)
    assert rounds.made == []


def test_what_is_reported_while_another_has_the_turn_is_not_forgotten(rounds: Rounds):
    """The reporter finds the turn taken and leaves. The thread, which has it, looks again before it sleeps."""
    make, first = rounds.turns._make_round, threading.Event()

    def reported_meanwhile(by_thread: bool) -> Round:
        done = make(by_thread)
        if not first.is_set():
            rounds.inbox.put(ended(), quietly=True)
            assert not rounds.turns.out_of_work(lambda: True)
            first.set()
        return done

    rounds.turns._make_round = reported_meanwhile
    rounds.turns.start()
    wait_for(lambda: (COMMITTER, True, 1) in rounds.made)


def test_the_thread_leaves_the_next_turn_to_those_who_still_run_something(rounds: Rounds):
    """It sleeps on what was reported quietly while more is in hand, until somebody looks or rings."""
    rounds.held = 2
    rounds.inbox.put(ended(), quietly=True)
    make = rounds.turns._make_round

    def reported_meanwhile(by_thread: bool) -> Round:
        done = make(by_thread)
        if len(rounds.made) == 1:
            rounds.inbox.put(ended(), quietly=True)
        return done

    rounds.turns._make_round = reported_meanwhile
    rounds.turns.start()
    wait_for(lambda: len(rounds.made) == 1 and not rounds.turns._turn.locked())
    rounds.turns.look(time.monotonic())
    assert len(rounds.inbox) == 1 and len(rounds.made) == 1
    rounds.turns.look(time.monotonic() + 2 * QUIET_SECONDS)
    wait_for(lambda: (COMMITTER, True, 1) in rounds.made[1:])


def test_what_has_been_heard_does_not_wake_the_thread_again(rounds: Rounds, monkeypatch: pytest.MonkeyPatch):
    """It was told of the first result, and has taken it. Of the next one, reported meanwhile, nobody was to be told."""
    rounds.held = 2
    rounds.inbox.put(ended(), quietly=False)
    make, wait = rounds.turns._make_round, FinishedQueue.wait
    woken_by: list[bool] = []

    def reported_meanwhile(by_thread: bool) -> Round:
        done = make(by_thread)
        if len(rounds.made) == 1:
            rounds.inbox.put(ended(), quietly=True)
        return done

    def watched(inbox: FinishedQueue, seconds: float) -> None:
        woken_by.append(inbox._wake_up.is_set())
        wait(inbox, seconds)

    rounds.turns._make_round = reported_meanwhile
    monkeypatch.setattr(FinishedQueue, "wait", watched)
    rounds.turns.start()
    wait_for(lambda: bool(woken_by))
    assert woken_by == [False] and len(rounds.inbox) == 1


# News -----------------------------------------------------------------------------------------------------------------


class AtTheLastMoment(deque[int]):
    """Nothing, and whoever makes sure of it is told of news at that very moment."""

    def __init__(self, committer: Committer) -> None:
        super().__init__()
        self._committer = committer

    def __len__(self) -> int:
        self._committer.news()
        return 0


def resting() -> Committer:
    """A committer that has nothing to do, as far as rest and news go."""
    committer = Committer.__new__(Committer)
    committer._finished, committer._memos, committer._reported = FinishedQueue(), MemoQueue(lambda work: None), deque()
    committer._news = committer._stopped = committer.idle = False
    committer._claiming, committer._hand, committer.drained = True, InHand(1), threading.Event()
    committer.drained.set()
    return committer


def test_a_busy_worker_is_not_woken_by_news_and_does_not_rest_on_it():
    """Most of it is its own: every commit is news on SQLite."""
    committer = resting()
    committer.news()
    assert not committer._finished._wake_up.is_set()
    assert committer._rest() == 0.0


def test_an_idle_worker_is_woken_by_news():
    committer = resting()
    committer.idle = True
    committer.news()
    assert committer._finished._wake_up.is_set()


def test_news_between_the_last_look_and_the_rest_wakes_the_worker():
    committer = resting()
    committer._reported = AtTheLastMoment(committer)
    committer._look_at = time.monotonic() + 60
    committer._upkeep, committer._poll = Scheduler([Idle()]), 60.0
    committer._orders = ClaimPlanner({}, committer._hand, [], tuple, 60.0)
    assert committer._rest() > 0
    assert committer._finished._wake_up.is_set()


class Idle(Service):
    """A service that is never due."""

    due = float("inf")

    def one_pass(self) -> bool:
        raise AssertionError("not due")


# A worker -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("work", "own"), [(quick_async, LOOP), (quick_sync, THREAD)], ids=["async", "sync"])
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_who_runs_quick_handlers_commits_them(run: Bench, committers: list[str], work: Callable[..., Any], own: str):
    # On a busy machine some calls are held up, and the thread that commits is woken for them.
    for number in range(1, 11):
        ran = run(one_stage(work), [f"{number}-{key}" for key in keys(4000)], poll_seconds=2.0)
        assert ran.states("work") == {"done": number * 4000}
        assert set(committers) <= {COMMITTER, own}
        if own in committers:
            return
    raise AssertionError("nobody but the thread that commits has committed anything")


@pytest.mark.parametrize("work", [quick_async, quick_sync], ids=["async", "sync"])
@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_a_server_is_waited_for_by_the_thread_that_commits(run: Bench, committers: list[str], work: Callable[..., Any]):
    run(one_stage(work), keys(3000))
    assert set(committers) == {COMMITTER}


def test_while_a_group_is_saved_one_by_one_trouble_with_one_loses_none_of_the_others(monkeypatch: pytest.MonkeyPatch):
    committer = Committer.__new__(Committer)
    committer._finished = FinishedQueue()
    group = [one for _ in range(4) for one in ended()]
    saved: list[FinishedAttempt] = []

    def settle(self: Committer, finished: list[FinishedAttempt], orders: list[Any]) -> None:
        if finished[0] is group[1]:
            self._finished.put_back(finished)
            raise StoreConflict("another was first")
        saved.extend(finished)

    monkeypatch.setattr(Committer, "_settle", settle)
    with pytest.raises(StoreConflict):
        committer._settle_apart(group, ValueError("no"))
    assert saved == group[:1] and committer._finished.take(10) == group[1:]


@pytest.mark.parametrize("kind", ["sync", "async", "blocks the loop"])
def test_quick_results_are_saved_while_a_handler_after_them_is_slow(run: Bench, kind: str):
    """Nobody was woken for them, and whoever would commit them is busy for as long as it likes."""
    go_on = threading.Event()
    ran_before: set[str] = set()

    def is_last(item: Item) -> bool:
        """Calls that wait behind one that is held up by a busy machine are run after those that came later."""
        if item.key != "slow":
            ran_before.add(item.key)
            return False
        if len(ran_before) < 500:
            raise RetryLater(0.01, "others wait behind it")
        return True

    def sync(item: Item, ctx: Context) -> None:
        if is_last(item):
            go_on.wait(90)

    async def waits(item: Item, ctx: Context) -> None:
        if is_last(item):
            await asyncio.to_thread(go_on.wait, 90)

    async def blocks(item: Item, ctx: Context) -> None:
        sync(item, ctx)

    work = {"sync": sync, "async": waits, "blocks the loop": blocks}[kind]
    with run.serving(one_stage(work), [*keys(500), "slow"], concurrency=1) as (_, ran):
        wait_for(lambda: ran.states("work") == {"done": 500, "in_progress": 1}, timeout=60)
        go_on.set()
        wait_for(lambda: ran.states("work") == {"done": 501})


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_task_that_a_handler_left_behind_is_not_held_up_by_commits(run: Bench, committers: list[str]):
    left: list[asyncio.Task[bool]] = []

    async def work(item: Item, ctx: Context) -> None:
        if not left:
            left.append(asyncio.create_task(asyncio.Event().wait()))

    ran = run(one_stage(work), keys(3000))
    assert ran.states("work") == {"done": 3000}
    assert set(committers) == {COMMITTER}
    assert left[0].cancelled(), "it ends with the worker"


def test_effects_never_run_in_the_event_loop(run: Bench):
    """Some items are quick and have none: a commit of theirs must not take the others along in the wrong thread."""
    seen: list[str] = []

    def effect(connection: Any) -> None:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        seen.append(threading.current_thread().name)

    async def work(item: Item, ctx: Context) -> None:
        if int(item.key.rpartition("-")[2]) % 50 == 0:
            ctx.effect(effect)

    ran = run(one_stage(work), keys(2000))
    assert ran.states("work") == {"done": 2000}
    assert set(seen) == {COMMITTER} and len(seen) >= 40


def test_the_loop_turns_however_much_there_is_to_do(run: Bench):
    """A handler asks for something to be done soon; it is, long before the last item."""
    when: list[int] = []
    count = [0]

    async def work(item: Item, ctx: Context) -> None:
        count[0] += 1
        if count[0] == 100:
            asyncio.get_running_loop().call_soon(lambda: when.append(count[0]))

    run(one_stage(work), keys(6000), concurrency=4)
    assert when and when[0] <= 100 + 4 * IN_A_ROW
