"""Effects: rows of the user's own that are written with the stage, or not at all."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.orm import Session, registry

from holdfast import BatchContext, Context, Holdfast, Item, Permanent, Pipeline, RetryLater, Skip, UsageError, points
from holdfast.engine.complete import complete
from holdfast.engine.finish_leases import AttemptEffect, FinishedAttempt
from holdfast.errors import LeaseLost, StoreBroken, StoreConflict, StoreUnavailable
from tests.support.bench import QUICK, Bench
from tests.support.harness import App
from tests.support.kinds import keys
from tests.support.ledger import Ledger
from tests.support.limited_bench import LimitedBench
from tests.support.money import charged
from tests.support.own_tables import OwnTables
from tests.support.processes import wait_for
from tests.support.several import Several
from tests.support.steps import Trouble, write
from tests.support.together import at_once, listening


@pytest.fixture
def own(url: str) -> Iterator[OwnTables]:
    own = OwnTables(url)
    yield own
    own.close()


@pytest.fixture
def app(store: Any, clock: Any) -> App:
    return App(store, clock)


def one_stage(handler: Callable[[Item, Context], Any], **settings: Any) -> Pipeline:
    pipeline = Pipeline("p")
    pipeline.stage(**{"name": "work", "max_attempts": 2, "backoff": QUICK, **settings})(handler)
    return pipeline


# What an effect may do ------------------------------------------------------------------------------------------------


@pytest.mark.req("V2")
def test_an_effect_and_the_end_of_its_stage_become_visible_together(run: Bench, own: OwnTables):
    seen: list[tuple[int, str | None]] = []

    def look(connection: Connection, key: str) -> None:
        """From outside, while the row is written."""
        own.save(connection, key)
        seen.append((len(own.notes()), outside.show(key).stages[0].state))

    outside = run.app(one_stage(lambda item, ctx: ctx.effect(look, item.key)))
    ran = run(one_stage(lambda item, ctx: ctx.effect(look, item.key)), ["page-1"])

    assert seen == [(0, "in_progress")]
    assert own.keys() == ["page-1"]
    assert ran.state("page-1", "work") == "done"


def test_an_effect_gets_a_sqlalchemy_connection_and_its_arguments(run: Bench, own: OwnTables):
    got: list[Any] = []

    def effect(connection: Connection, *args: Any) -> None:
        got.append((type(connection), args))
        assert connection.execute(sa.select(sa.literal(1))).scalar_one() == 1

    def work(item: Item, ctx: Context) -> None:
        ctx.effect(effect)
        ctx.effect(effect, 1, {"two": [2]}, object)

    ran = run(one_stage(work), ["page-1"])

    assert got == [(Connection, ()), (Connection, (1, {"two": [2]}, object))]
    assert ran.state("page-1", "work") == "done"


def test_effects_run_in_the_order_in_which_they_were_asked_for(run: Bench, own: OwnTables):
    def work(item: Item, ctx: Context) -> None:
        for number in range(5):
            ctx.effect(own.save, item.key, str(number))

    run(one_stage(work), ["page-1"])

    assert [text for _, text in own.notes()] == ["0", "1", "2", "3", "4"]


def test_an_orm_session_on_the_connection_takes_part(run: Bench, own: OwnTables):
    class Note:
        def __init__(self, key: str, text: str) -> None:
            self.key, self.text = key, text

    registry().map_imperatively(Note, own.note)

    def committed(connection: Connection, key: str) -> None:
        with Session(bind=connection) as session:
            session.add(Note(key, "committed"))
            session.commit()

    def half_undone(connection: Connection, key: str) -> None:
        with Session(bind=connection) as session:
            session.add(Note(key, "never"))
            session.flush()
            session.rollback()
            session.add(Note(key, "flushed"))
            session.commit()

    def work(item: Item, ctx: Context) -> None:
        ctx.effect(committed, item.key)
        ctx.effect(half_undone, item.key)

    ran = run(one_stage(work), ["page-1"])

    assert own.notes() == [("page-1", "committed"), ("page-1", "flushed")]
    assert ran.state("page-1", "work") == "done"


def test_what_an_orm_session_committed_goes_if_the_effect_then_raises(run: Bench, own: OwnTables):
    def effect(connection: Connection, key: str) -> None:
        with Session(bind=connection) as session:
            session.execute(own.note.insert().values(key=key))
            session.commit()
        raise ValueError("after the session's commit")

    ran = run(one_stage(lambda item, ctx: ctx.effect(effect, item.key)), ["page-1"])

    assert own.notes() == []
    assert ran.state("page-1", "work") == "exhausted"


def test_an_effect_may_use_savepoints_of_its_own(run: Bench, own: OwnTables):
    def effect(connection: Connection, key: str) -> None:
        own.save(connection, key, "kept")
        with pytest.raises(sa.exc.IntegrityError), connection.begin_nested():
            connection.execute(own.chunk.insert().values(document="no such document"))
        own.save(connection, key, "kept too")

    ran = run(one_stage(lambda item, ctx: ctx.effect(effect, item.key)), ["page-1"])

    assert ran.state("page-1", "work") == "done", ran.stage("page-1", "work")
    assert [text for _, text in own.notes()] == ["kept", "kept too"]


@pytest.mark.parametrize("how", ["thread", "loop", "batch", "skip"])
def test_every_kind_of_handler_has_effects(run: Bench, own: OwnTables, how: str):
    def work(item: Item, ctx: Context) -> Any:
        ctx.effect(own.save, item.key)
        return Skip("nothing new") if how == "skip" else None

    async def on_the_loop(item: Item, ctx: Context) -> None:
        await asyncio.sleep(0)
        ctx.effect(own.save, item.key)

    def in_a_batch(items: list[Item], ctx: BatchContext) -> list[None]:
        for item in items:
            ctx.of(item).effect(own.save, item.key)
        return [None] * len(items)

    handler: Any = {"loop": on_the_loop, "batch": in_a_batch}.get(how, work)
    keys = sorted(f"page-{number}" for number in range(25))
    ran = run(one_stage(handler, batch=8 if how == "batch" else None), keys)

    assert own.keys() == keys
    assert ran.states("work") == {"skipped" if how == "skip" else "done": 25}


def test_an_attempt_that_did_not_pass_leaves_its_effects_out(run: Bench, own: OwnTables):
    def work(item: Item, ctx: Context) -> Any:
        ctx.effect(own.save, item.key)
        if item.key == "raises":
            raise ValueError("no")
        if item.key == "never":
            raise Permanent("no")
        return RetryLater(after=0.01) if item.key == "later" and not later.is_set() and not later.set() else None

    later = threading.Event()
    ran = run(one_stage(work), ["raises", "never", "later"])

    assert own.keys() == ["later"]
    assert [ran.state(key, "work") for key in ("raises", "never", "later")] == ["exhausted", "failed", "done"]


# A stage and its effects are one --------------------------------------------------------------------------------------


@pytest.mark.req("V2", "D4")
def test_the_next_stage_finds_every_row_that_the_stage_before_wrote(run: Bench, own: OwnTables):
    """Also when the first attempt's effect failed half-way: a result is there if and only if the rows are."""
    missing: list[str] = []
    failed: set[str] = set()

    def write_some(connection: Connection, key: str) -> None:
        for number in range(3):
            own.save(connection, key, str(number))
            if number == 1 and int(key.split("-")[1]) % 3 == 0 and key not in failed:
                failed.add(key)
                raise RuntimeError("half-way")

    def read_all(item: Item, ctx: Context) -> None:
        assert ctx.result("chunk") == {"chunks": 3}
        found = [text for key, text in own.notes() if key == item.key]
        if found != ["0", "1", "2"]:
            missing.append(f"{item.key}: {found}")

    pipeline = Pipeline("p")

    @pipeline.stage(backoff=QUICK)
    def chunk(item: Item, ctx: Context) -> Any:
        ctx.effect(write_some, item.key)
        return {"chunks": 3}

    pipeline.stage(name="read", after="chunk")(read_all)
    ran = run(pipeline, [f"page-{number}" for number in range(30)])

    assert missing == []
    assert len(failed) == 10
    assert ran.states("read") == {"done": 30}


@pytest.mark.req("V2")
def test_an_effect_that_raises_fails_the_attempt_and_leaves_nothing(run: Bench, own: OwnTables):
    attempts: list[int] = []

    def work(item: Item, ctx: Context) -> Any:
        attempts.append(ctx.attempt)
        ctx.effect(own.save, item.key, "before")
        ctx.effect(own.save_and(ValueError("the third page is torn")), item.key)
        return {"done": True}

    ran = run(one_stage(work), ["page-1"])

    stage = ran.stage("page-1", "work")
    assert own.notes() == []
    assert attempts == [1, 2]
    assert (stage.state, stage.attempts) == ("exhausted", 2)
    assert stage.error == "ValueError: the third page is torn"
    assert not stage.has_result
    [failure] = ran.events("attempt_failed")
    assert "in effect" in failure.data["traceback"], "the traceback leads into the effect"


def test_an_effect_that_raises_permanent_fails_the_item_at_once(run: Bench, own: OwnTables):
    ran = run(
        one_stage(lambda item, ctx: ctx.effect(own.save_and(Permanent("no such author")), item.key), max_attempts=5),
        ["page-1"],
    )

    stage = ran.stage("page-1", "work")
    assert (stage.state, stage.attempts) == ("failed", 1)
    assert stage.error == "Permanent: no such author"
    assert own.notes() == []


def test_an_effect_that_raises_retry_later_snoozes_and_spends_no_attempt(run: Bench, own: OwnTables):
    came: list[int] = []

    def not_yet(connection: Connection, key: str) -> None:
        own.save(connection, key)
        came.append(1)
        if len(came) < 4:
            raise RetryLater(after=0.01, reason="the author is locked")

    ran = run(one_stage(lambda item, ctx: ctx.effect(not_yet, item.key), max_attempts=1), ["page-1"])

    assert ran.state("page-1", "work") == "done", ran.stage("page-1", "work")
    assert ran.stage("page-1", "work").attempts == 1
    assert len(ran.events("snoozed")) == 3
    assert own.keys() == ["page-1"]


@pytest.mark.parametrize(
    "error",
    [SystemExit(0), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError(), BaseException("bare")],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.req("V7")
def test_no_kind_of_exception_in_an_effect_ends_the_worker(run: Bench, own: OwnTables, error: BaseException):
    def work(item: Item, ctx: Context) -> None:
        ctx.effect(own.save_and(error) if item.key == "bad" else own.save, item.key)

    ran = run(one_stage(work), ["bad", "good-1", "good-2"])

    assert ran.stage("bad", "work").state == "exhausted"
    assert type(error).__name__ in ran.stage("bad", "work").error
    assert own.keys() == ["good-1", "good-2"]


@pytest.mark.req("V2", "V7")
def test_others_in_the_same_commit_are_not_touched_by_an_effect_that_raises(app: App, own: OwnTables):
    """Three attempts end in one transaction; the second one's effect raises after it has written."""
    app.pipeline({"a": [], "b": ["a"]})
    app.add(["one", "two", "three"])
    leases = app.claim(stage="a", most=3)
    bad = own.save_and(ValueError("no"))
    finished = [with_effect(app, lease, bad if lease.key == "two" else own.save) for lease in leases]
    app.store.write(lambda tx: complete(tx, finished))

    assert own.keys() == ["one", "three"]
    assert [app.states(key) for key in ("one", "two", "three")] == [
        {"a": "done", "b": "pending"},
        {"a": "retry_later"},
        {"a": "done", "b": "pending"},
    ]
    assert app.counts() == app.recount()


def with_effect(app: App, lease: Any, effect: Callable[..., Any], *args: Any) -> FinishedAttempt:
    finished = app.finished(lease, {"ok": True})
    finished.effects = [AttemptEffect(effect, (lease.key, *args))]
    return finished


@pytest.mark.req("V3")
def test_the_effects_of_a_late_worker_never_run(app: App, own: OwnTables):
    called: list[str] = []

    def effect(connection: Connection, key: str) -> None:
        called.append(key)
        own.save(connection, key)

    app.pipeline({"a": []})
    app.add(["page-1"])
    [slow] = app.claim(worker="slow")
    app.clock.advance(31)
    app.reap()
    [fast] = app.claim(worker="fast")
    late = with_effect(app, slow, effect)
    with pytest.raises(LeaseLost):
        app._finish(late, lambda tx: complete(tx, [late]))

    assert called == []
    assert own.notes() == []
    app.store.write(lambda tx: complete(tx, [with_effect(app, fast, effect)]))
    assert called == own.keys() == ["page-1"]


@pytest.mark.req("V3")
def test_an_effect_does_not_run_again_for_a_lease_that_has_moved_on(app: App, own: OwnTables):
    """The lease stands, but at the next stage: a repeated completion of the one before writes nothing."""
    app.pipeline({"a": [], "b": ["a"]})
    app.add(["page-1"])
    [lease] = app.claim(stage="a")
    first = with_effect(app, lease, own.save)
    onward = [app.stage("b").id]
    app.store.write(lambda tx: complete(tx, [first], onward))
    again = with_effect(app, lease, own.save)
    app.store.write(lambda tx: complete(tx, [again], onward))

    assert again.lost
    assert own.keys() == ["page-1"]
    assert app.states("page-1") == {"a": "done", "b": "in_progress"}


@pytest.mark.fault(26)
@pytest.mark.req("V2")
@pytest.mark.parametrize("kind", Trouble.KINDS)
@pytest.mark.parametrize("nth", [1, 2, 4])
def test_rows_are_written_once_though_the_transaction_ran_twice(app: App, own: OwnTables, kind: str, nth: int):
    app.pipeline({"a": []})
    app.add(["page-1"])
    [lease] = app.claim()
    trouble = Trouble(kind, nth)
    write(app.store, lambda tx: complete(tx, [with_effect(app, lease, own.save)]), trouble=trouble)

    assert trouble.fired
    assert own.keys() == ["page-1"]
    assert app.states("page-1") == {"a": "done"}


# How long a transaction with effects may take -------------------------------------------------------------------------


@pytest.mark.req("V2", "V8")
@pytest.mark.parametrize("kind", Trouble.KINDS)
def test_effects_for_which_there_is_no_time_are_left_whole_for_the_next_transaction(
    app: App, own: OwnTables, kind: str
):
    """Also if the transaction ran twice: what it left is what the one that took place has left."""
    app.pipeline({"a": [], "b": ["a"]})
    app.add(["one", "two", "three", "plain"])
    leases = {lease.key: lease for lease in app.claim(stage="a", most=4)}
    finished = [with_effect(app, leases[key], own.save) for key in ("one", "two", "three")]
    finished.insert(1, app.finished(leases["plain"], 1))
    trouble = Trouble(kind, 3)

    def in_time(tx: Any) -> list[FinishedAttempt]:
        left: list[FinishedAttempt] = []
        complete(tx, finished, until=0.0, left=left)
        return left

    left = write(app.store, in_time, trouble=trouble)
    assert trouble.fired
    assert [one.lease.key for one in left] == ["two", "three"]
    assert own.keys() == ["one"], "the first is always begun, or nothing would ever get done"
    assert [app.states(key)["a"] for key in leases] == ["done", "in_progress", "in_progress", "done"]
    assert app.counts() == app.recount()
    app.store.write(lambda tx: complete(tx, left))
    assert own.keys() == ["one", "three", "two"]
    assert [app.states(key) for key in leases] == [{"a": "done", "b": "pending"}] * 4
    assert app.counts() == app.recount()


@pytest.mark.req("V7", "V8")
def test_attempts_that_end_together_do_not_make_one_transaction_of_all_their_effects(run: Bench, own: OwnTables):
    """A transaction begins no more effects after a thirtieth of the lease: here a tenth of a second, so three of them at most.
    All others who write to a SQLite file wait for it, heartbeats among them."""
    count = 20
    together = threading.Barrier(count)
    written: list[str] = []
    transactions = [0]

    def save(connection: Connection, key: str) -> None:
        own.save(connection, key)
        written.append(key)
        time.sleep(0.05)

    def work(item: Item, ctx: Context) -> None:
        ctx.effect(save, item.key)
        together.wait(20)

    def listener(point: str) -> None:
        if point == "effect.after":
            transactions[-1] += 1
        elif point == "commit.after":
            transactions.append(0)

    with listening(listener):
        ran = run(one_stage(work), keys(count), concurrency=count, lease_seconds=3.0)
    assert ran.states("work") == {"done": count}
    assert sorted(written) == own.keys() == sorted(keys(count))
    assert 1 <= max(transactions) <= 3


@pytest.mark.req("V11")
def test_what_has_a_pace_is_not_claimed_by_a_transaction_that_takes_too_long_for_it(url: str, own: OwnTables):
    """It would come too late to begin, and its place in the pace would be lost: it is claimed by the next one."""
    starts: list[str] = []
    claimed_after_effects: set[int] = set()
    had_effects = False

    def save(connection: Connection, key: str) -> None:
        own.save(connection, key)
        time.sleep(0.06)  # over the 50 ms within which a call must begin

    def listener(point: str) -> None:
        nonlocal had_effects
        if point == "effect.after":
            had_effects = True
        elif point == "commit.before":
            had_effects = False
        elif point == "store.claim" and had_effects:
            claimed_after_effects.add(points.about()[1]["stage"])

    pipeline = Pipeline("p", resources={"api": {"rate": "50/s", "burst": 1}})
    pipeline.stage(name="write")(lambda item, ctx: ctx.effect(save, item.key))
    pipeline.stage(name="call", resource="api")(lambda item, ctx: starts.append(item.key))
    with closing(LimitedBench(url)) as run, listening(listener):
        with run.serving(pipeline, keys(12), concurrency=4) as (worker, ran):
            wait_for(lambda: ran.states("write") == ran.states("call") == {"done": 12})
            [call] = [number for number, (_, spec) in worker._offer.items() if spec.name == "call"]
        assert ran.events("handed_back") == ()
    assert sorted(starts) == sorted(keys(12))
    assert call not in claimed_after_effects


# What an effect may not do --------------------------------------------------------------------------------------------


def _commit(connection: Connection) -> None:
    connection.commit()


def _roll_back(connection: Connection) -> None:
    connection.rollback()


def _commit_and_go_on(connection: Connection) -> None:
    connection.commit()
    connection.execute(sa.text("SELECT 1"))


def _close(connection: Connection) -> None:
    connection.close()


def _commit_as_text(connection: Connection) -> None:
    connection.exec_driver_sql("  commit")


def _roll_back_as_text(connection: Connection) -> None:
    connection.execute(sa.text("/* really */ ROLLBACK"))


def _begin_as_text(connection: Connection) -> None:
    connection.exec_driver_sql("END; BEGIN")


@pytest.mark.req("V2", "V7")
@pytest.mark.parametrize(
    "end", [_commit, _roll_back, _commit_and_go_on, _close, _commit_as_text, _roll_back_as_text, _begin_as_text]
)
def test_an_effect_may_not_end_the_transaction_it_is_part_of(
    run: Bench, own: OwnTables, end: Callable[[Connection], None]
):
    def effect(connection: Connection, key: str) -> None:
        own.save(connection, key)
        if key == "bad":
            end(connection)

    ran = run(one_stage(lambda item, ctx: ctx.effect(effect, item.key)), ["good-1", "bad", "good-2"])

    stage = ran.stage("bad", "work")
    assert own.keys() == ["good-1", "good-2"]
    assert stage.state == "exhausted"
    assert "an effect may not commit or roll back" in stage.error
    assert "raise an exception to undo it" in stage.error


@pytest.mark.req("V7", "V8")
def test_an_effect_that_adds_items_must_do_it_on_its_connection(url: str, own: OwnTables):
    """Otherwise it would wait for the transaction that waits for it."""
    more = one_stage_named("more")

    def work(item: Item, ctx: Context) -> None:
        if item.key == "wrong":
            ctx.effect(lambda connection: app.add("more", ["from outside"]))
        else:
            ctx.effect(lambda connection: app.add("more", ["from inside"], connection=connection))

    with Holdfast(url, [more.spec]) as app:
        app.register()
        bench = Several(url, [more])
        ran = bench(one_stage(work), ["wrong", "right"])
        assert ran.state("right", "work") == "done", ran.stage("right", "work")
        assert ran.state("wrong", "work") == "exhausted"
        assert "connection=connection" in ran.stage("wrong", "work").error
        assert ran.state("from inside", "work") == "done"
        assert [row.key for row in app.items(pipeline="more")] == ["from inside"]
        bench.close()


def one_stage_named(name: str) -> Pipeline:
    pipeline = Pipeline(name)
    pipeline.stage(name="work")(lambda item, ctx: None)
    return pipeline


@pytest.mark.req("V7")
def test_an_effect_that_hides_an_error_of_the_database_fails_alone(run: Bench, own: OwnTables):
    """PostgreSQL does nothing more in a transaction in which a statement has failed; SQLite goes on. Neither hangs."""

    def effect(connection: Connection, key: str) -> None:
        own.save(connection, key)
        if key == "bad":
            try:
                connection.execute(own.chunk.insert().values(document="no such document"))
            except sa.exc.IntegrityError:
                pass

    ran = run(one_stage(lambda item, ctx: ctx.effect(effect, item.key)), ["good-1", "bad", "good-2"])

    if own.schema is None:
        assert own.keys() == ["bad", "good-1", "good-2"]
    else:
        assert own.keys() == ["good-1", "good-2"]
        assert ran.state("bad", "work") == "exhausted"
        assert "begin_nested" in ran.stage("bad", "work").error


@pytest.mark.req("V7")
@pytest.mark.parametrize("database", ["postgres"], indirect=True)
@pytest.mark.parametrize("limit", ["statement_timeout", "lock_timeout"])
def test_an_effect_that_runs_into_a_limit_of_the_database_fails_alone(run: Bench, own: OwnTables, limit: str):
    """Nobody waits for ever for what will time out for ever."""

    def effect(connection: Connection, key: str) -> None:
        own.save(connection, key)
        if key == "bad":
            connection.exec_driver_sql(f"SET LOCAL {limit} = '50ms'")
            table = own.tally.fullname
            connection.exec_driver_sql("SELECT pg_sleep(5)" if limit == "statement_timeout" else f"LOCK TABLE {table}")

    with own.engine.connect() as other:
        other.exec_driver_sql(f"LOCK TABLE {own.tally.fullname} IN SHARE MODE")
        ran = run(one_stage(lambda item, ctx: ctx.effect(effect, item.key)), ["good-1", "bad", "good-2"])

    assert own.keys() == ["good-1", "good-2"]
    assert ran.state("bad", "work") == "exhausted"
    assert "timeout" in ran.stage("bad", "work").error


@pytest.mark.req("V7", "V8")
@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_an_effect_that_lets_the_database_wait_until_it_ends_the_transaction_fails_alone(run: Bench, own: OwnTables):
    """No transaction is idle for longer than a lease; an effect that is would be cut off again and again."""

    def effect(connection: Connection, key: str) -> None:
        own.save(connection, key)
        if key == "bad":
            threading.Event().wait(1.5)

    ran = run(one_stage(lambda item, ctx: ctx.effect(effect, item.key)), ["good-1", "bad", "good-2"], lease_seconds=1.0)

    assert own.keys() == ["good-1", "good-2"]
    assert ran.state("bad", "work") == "exhausted"
    assert "do what is slow in the handler" in ran.stage("bad", "work").error


@pytest.mark.req("V7")
@pytest.mark.parametrize("error", [StoreUnavailable, StoreConflict, StoreBroken])
def test_trouble_with_another_store_in_an_effect_is_the_effects_own(run: Bench, own: OwnTables, error: type[Exception]):
    """Nobody waits for a database that this one has nothing to do with, and nobody stops for it."""

    def work(item: Item, ctx: Context) -> None:
        ctx.effect(own.save_and(error("elsewhere")) if item.key == "bad" else own.save, item.key)

    ran = run(one_stage(work), ["good-1", "bad", "good-2"])

    assert own.keys() == ["good-1", "good-2"]
    assert ran.state("bad", "work") == "exhausted"
    assert f"{error.__name__}: elsewhere" in ran.stage("bad", "work").error


@pytest.mark.req("V2", "V7")
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_an_effect_whose_failure_undoes_the_whole_transaction_fails_alone(run: Bench, own: OwnTables):
    """SQLite can be told to roll everything back with a statement that fails."""

    def effect(connection: Connection, key: str) -> None:
        own.save(connection, key)
        if key == "bad":
            connection.execute(own.document.insert().values(key="twice"))
            connection.exec_driver_sql("INSERT OR ROLLBACK INTO documents (key) VALUES ('twice')")

    ran = run(one_stage(lambda item, ctx: ctx.effect(effect, item.key)), ["good-1", "bad", "good-2"])

    assert own.keys() == ["good-1", "good-2"]
    assert ran.state("bad", "work") == "exhausted"
    assert "user code ended the transaction it was part of" in ran.stage("bad", "work").error


@pytest.mark.req("V12")
@pytest.mark.parametrize("given", [None, "save", 3])
def test_an_effect_that_is_no_function_is_refused(run: Bench, given: Any):
    ran = run(one_stage(lambda item, ctx: ctx.effect(given)), ["page-1"])

    error = ran.stage("page-1", "work").error
    assert error.startswith("UsageError: item 'page-1', stage 'work': effect(")
    assert "give a function" in error


@pytest.mark.fault(21)
@pytest.mark.req("V3")
def test_a_thread_left_behind_can_ask_for_no_effect(run: Bench, own: OwnTables):
    over = threading.Event()
    errors: list[str] = []
    contexts: list[Context] = []

    def late(ctx: Context) -> None:
        over.wait(20)
        for use in (
            lambda: ctx.effect(own.save, "late"),
            lambda: ctx.submit("p", "late"),
            lambda: ctx.once("late", dict),
            lambda: ctx.cost(1),
            lambda: ctx.idempotency_key("late"),
            lambda: ctx.children("p"),
        ):
            try:
                use()
            except UsageError as error:
                errors.append(str(error))

    def work(item: Item, ctx: Context) -> None:
        contexts.append(ctx)
        thread.append(threading.Thread(target=late, args=[ctx], daemon=True))
        thread[0].start()

    thread: list[threading.Thread] = []
    ran = run(one_stage(work), ["page-1"])
    over.set()
    thread[0].join(20)

    assert len(errors) == 6
    assert all("attempt 1 is over" in error for error in errors)
    assert own.notes() == []
    assert charged(ran.app) == []
    assert [row.key for row in ran.app.items()] == ["page-1"]


HOLD_UP: dict[str, Callable[[], Any]] = {
    "sleeps": lambda: time.sleep(0.05),
    "computes": lambda: None,
    "holds the interpreter": lambda: sum(range(50_000_000)),
}


@pytest.mark.req("V7")
@pytest.mark.parametrize("database", ["postgres"], indirect=True)
@pytest.mark.parametrize("how", HOLD_UP)
def test_an_effect_that_keeps_the_database_waiting_for_too_long_fails_alone(run: Bench, own: OwnTables, how: str):
    """The database ends the session of a process that says nothing for a lease: for others wait for what it has locked."""

    def effect(connection: Connection, key: str) -> None:
        own.save(connection, key)
        if key == "slow":
            waited, used = time.monotonic() + 1.6, time.thread_time() + 1.6
            while (time.thread_time() < used) if how == "holds the interpreter" else (time.monotonic() < waited):
                HOLD_UP[how]()
        own.save(connection, key)

    work = one_stage(lambda item, ctx: ctx.effect(effect, item.key), max_attempts=1)
    ran = run(work, ["page-1", "slow", "page-2"], lease_seconds=1.0)

    assert ran.state("slow", "work") == "exhausted"
    assert "EffectStalled: an effect left the database waiting" in ran.stage("slow", "work").error
    assert own.keys() == ["page-1", "page-1", "page-2", "page-2"]


# Foreign keys ---------------------------------------------------------------------------------------------------------


@pytest.mark.req("V2")
def test_an_effect_that_breaks_a_foreign_key_fails_its_own_item(run: Bench, own: OwnTables):
    def effect(connection: Connection, key: str) -> None:
        if key != "orphan":
            connection.execute(own.document.insert().values(key=key))
        connection.execute(own.chunk.insert().values(document=key, text="first"))

    ran = run(one_stage(lambda item, ctx: ctx.effect(effect, item.key)), ["page-1", "orphan", "page-2"])

    assert sorted(row.document for row in own.rows(own.chunk)) == ["page-1", "page-2"]
    assert ran.state("orphan", "work") == "exhausted"
    assert "FOREIGN KEY" in ran.stage("orphan", "work").error.upper()


@pytest.mark.req("V2", "V7")
def test_a_foreign_key_that_is_looked_at_only_at_commit_fails_its_own_item(run: Bench, own: OwnTables):
    def effect(connection: Connection, key: str) -> None:
        connection.execute(own.late_chunk.insert().values(document=key))
        if key != "orphan":
            connection.execute(own.document.insert().values(key=key))

    keys = ["page-1", "orphan", "page-2", "page-3"]
    ran = run(one_stage(lambda item, ctx: ctx.effect(effect, item.key)), keys)

    assert sorted(row.document for row in own.rows(own.late_chunk)) == ["page-1", "page-2", "page-3"]
    assert ran.state("orphan", "work") == "exhausted"
    assert "FOREIGN KEY" in ran.stage("orphan", "work").error.upper()


# Rivals ---------------------------------------------------------------------------------------------------------------


@pytest.mark.fault(31, 32)
@pytest.mark.req("V2", "V6")
@pytest.mark.direct("a pooler takes no options of a session")
@pytest.mark.parametrize("isolation", ["read committed", "serializable"])
def test_effects_that_lock_the_same_rows_in_opposite_order_all_take_place_once(
    url: str, own: OwnTables, isolation: str, monkeypatch: pytest.MonkeyPatch
):
    """A deadlock is nobody's fault: it costs no attempt, and no count is lost or doubled."""
    setting = isolation.replace(" ", "\\ ")
    monkeypatch.setenv("PGOPTIONS", f"-c default_transaction_isolation={setting} -c deadlock_timeout=20ms")
    with own.engine.begin() as connection:
        connection.execute(own.tally.insert(), [{"name": "a", "n": 0}, {"name": "b", "n": 0}])
    overlap = threading.Barrier(2)

    def count(connection: Connection, key: str, order: str) -> None:
        for name in order:
            tally = own.tally
            connection.execute(tally.update().where(tally.c.name == name).values(n=tally.c.n + 1))
            if own.schema is not None and name == order[0] and not overlap.broken:
                try:
                    overlap.wait(2)  # both have one of the rows, and want the other
                except threading.BrokenBarrierError:
                    pass
        own.save(connection, key)

    def work(item: Item, ctx: Context) -> None:
        ctx.effect(count, item.key, item.data["order"])

    keys = [f"page-{number}" for number in range(20)]
    bench = Bench(url)
    pipeline = one_stage(work, max_attempts=1)
    bench.app(pipeline, [{"key": key, "order": "ab" if n % 2 else "ba"} for n, key in enumerate(keys)])
    with bench.serving(pipeline, concurrency=1), bench.serving(pipeline, concurrency=1) as (_, ran):
        wait_for(lambda: ran.states("work") == {"done": 20})

    assert {row.name: row.n for row in own.rows(own.tally)} == {"a": 20, "b": 20}
    assert own.keys() == sorted(keys)
    assert ran.events("attempt_failed") == ran.events("exhausted") == ()
    bench.close()


@pytest.mark.fault(31)
@pytest.mark.req("V7")
@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_an_effect_that_loses_every_race_fails_alone(run: Bench, own: OwnTables):
    def effect(connection: Connection, key: str) -> None:
        own.save(connection, key)
        if key == "bad":
            connection.exec_driver_sql("DO $$ BEGIN RAISE EXCEPTION 'again' USING ERRCODE = '40001'; END $$")

    ran = run(one_stage(lambda item, ctx: ctx.effect(effect, item.key)), ["good-1", "bad", "good-2"])

    assert own.keys() == ["good-1", "good-2"]
    assert ran.state("bad", "work") == "exhausted"


@pytest.mark.req("V2")
def test_two_workers_that_write_the_same_row_wait_for_each_other(app: App, own: OwnTables):
    with own.engine.begin() as connection:
        connection.execute(own.tally.insert().values(name="a", n=0))

    def count(connection: Connection, key: str) -> None:
        connection.execute(own.tally.update().values(n=own.tally.c.n + 1))

    app.pipeline({"a": []})
    app.add([f"page-{number}" for number in range(20)])
    others = [app.beside(), app.beside()]

    def work_off(mine: App) -> None:
        while leases := mine.claim(worker="w", most=2):
            mine.store.write(lambda tx: complete(tx, [with_effect(mine, lease, count) for lease in leases]))
        mine.store.close()

    at_once(*(lambda mine=mine: work_off(mine) for mine in others))
    assert [row.n for row in own.rows(own.tally)] == [20]


# In a process of its own ----------------------------------------------------------------------------------------------


def save_in_notes(connection: Connection, table: str, key: str, text: str) -> None:
    """An effect that both the worker and its child know by name."""
    connection.execute(sa.text(f"INSERT INTO {table} (key, text) VALUES (:key, :text)"), {"key": key, "text": text})


def test_an_isolated_stage_has_effects_that_are_functions_of_a_module(run: Bench, own: OwnTables):
    def work(item: Item, ctx: Context) -> None:
        ctx.effect(save_in_notes, f"{own.note.fullname}", item.key, "from a child")

    ran = run(one_stage(work, isolate="process"), ["page-1", "page-2"])

    assert ran.states("work") == {"done": 2}, ran.stage("page-1", "work").error
    assert sorted(own.notes()) == [("page-1", "from a child"), ("page-2", "from a child")]


@pytest.mark.req("V12")
@pytest.mark.parametrize(
    ("effect", "said"),
    [
        (lambda ctx, own: ctx.effect(lambda connection: None), "give a function of a module"),
        (lambda ctx, own: ctx.effect(own.save, "x"), "give a function of a module"),
        (lambda ctx, own: ctx.effect(save_in_notes, object(), "x", "y"), "its arguments must fit into JSON"),
        (lambda ctx, own: ctx.effect(save_in_notes, ("x",), "x", "y"), "its arguments must fit into JSON"),
    ],
)
def test_an_isolated_stage_refuses_an_effect_that_cannot_cross_processes(
    run: Bench, own: OwnTables, effect: Callable[..., Any], said: str
):
    def work(item: Item, ctx: Context) -> None:
        if item.key == "bad":
            effect(ctx, own)

    ran = run(one_stage(work, isolate="process"), ["bad", "good"])

    assert ran.state("good", "work") == "done"
    assert ran.state("bad", "work") == "exhausted"
    assert said in ran.stage("bad", "work").error
    assert "item 'bad', stage 'work'" in ran.stage("bad", "work").error


@pytest.mark.req("V4", "V6")
@pytest.mark.parametrize("how", ["thread", "loop"])
def test_work_under_suspicion_is_called_once_though_its_effect_cannot_cross_processes(
    run: Bench, own: OwnTables, how: str, tmp_path: Path
):
    """A worker died with it: it runs in a process of its own, and what only that process knows is written from there."""
    calls = Ledger(tmp_path / "calls")

    def work(item: Item, ctx: Context) -> dict[str, Any]:
        calls.append("start", item.key, attempt=ctx.attempt)
        paid = ctx.once("paid", lambda: {"text": item.key}, cost=1)
        ctx.cost(0.5)
        ctx.effect(lambda connection: own.save(connection, item.key, paid["text"]))
        ctx.effect(lambda connection: calls.append("effect", item.key))
        ctx.submit("p", f"{item.key}-more") if "more" not in item.key else None
        return {"seen": paid}

    async def on_the_loop(item: Item, ctx: Context) -> dict[str, Any]:
        calls.append("start", item.key, attempt=ctx.attempt)
        paid = await ctx.once("paid", lambda: {"text": item.key}, cost=1)
        ctx.cost(0.5)
        ctx.effect(lambda connection: own.save(connection, item.key, paid["text"]))
        ctx.effect(lambda connection: calls.append("effect", item.key))
        ctx.submit("p", f"{item.key}-more") if "more" not in item.key else None
        return {"seen": paid}

    pipeline = one_stage(on_the_loop if how == "loop" else work)
    app = run.app(pipeline, ["page-1", "page-2"])
    suspect(app)
    ran = run(pipeline)

    keys = ["page-1", "page-1-more", "page-2", "page-2-more"]
    assert ran.states("work") == {"done": 4}, ran.stage("page-1", "work")
    assert sorted(own.notes()) == [(key, key) for key in keys]
    assert sorted(line.key for line in calls.starts()) == keys, "each handler was called once"
    assert os.getpid() not in {line.pid for line in calls.lines(key="page-1")}, "all of it in isolation"
    assert ran.result("page-1", "work") == {"seen": {"text": "page-1"}}
    assert charged(ran.app, ["pipeline"]) == [{"pipeline": "p", "amount": 6_000_000, "payments": 8}]


@pytest.mark.req("V2", "V6")
def test_an_effect_that_raises_in_a_process_of_its_own_fails_the_attempt_and_leaves_nothing(run: Bench, own: OwnTables):
    def work(item: Item, ctx: Context) -> None:
        ctx.effect(own.save, item.key)
        if ctx.attempt == 1:
            ctx.effect(lambda connection: 1 / 0)
        ctx.effect(own.save, item.key)

    pipeline = one_stage(work)
    suspect(run.app(pipeline, ["page-1"]))
    ran = run(pipeline)

    assert (ran.stage("page-1", "work").state, ran.stage("page-1", "work").attempts) == ("done", 2)
    assert own.keys() == ["page-1", "page-1"]
    [failure] = ran.events("attempt_failed")
    assert failure.data["error"] == "ZeroDivisionError: division by zero"


@pytest.mark.req("V6")
@pytest.mark.fault(11)
def test_an_effect_that_kills_its_process_is_isolated_too(run: Bench, own: OwnTables):
    def work(item: Item, ctx: Context) -> None:
        ctx.effect(lambda connection: die() if item.key == "killer" else own.save(connection, item.key))

    pipeline = one_stage(work)
    suspect(run.app(pipeline, ["page-1", "killer", "page-2"]))
    ran = run(pipeline)

    assert own.keys() == ["page-1", "page-2"]
    assert ran.state("killer", "work") == "exhausted"
    assert "SIGKILL" in ran.stage("killer", "work").error


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.req("V2", "V4")
@pytest.mark.parametrize("moment", ["commit.before", "commit.after"])
def test_a_process_that_dies_while_it_saves_its_attempt_saves_it_once(
    run: Bench, own: OwnTables, moment: str, tmp_path: Path
):
    """After its commit nobody hears that it took place; but the lease is gone, and so the worker cannot fail the attempt."""
    calls = Ledger(tmp_path / "calls")

    def effect(connection: Connection, key: str, attempt: int) -> None:
        own.save(connection, key)
        if attempt == 1:
            points.listen(lambda point: die() if point == moment else None)

    def work(item: Item, ctx: Context) -> None:
        calls.append("start", item.key, attempt=ctx.attempt)
        attempt = ctx.attempt
        ctx.effect(lambda connection: effect(connection, item.key, attempt))

    pipeline = one_stage(work)
    suspect(run.app(pipeline, ["page-1"]))
    ran = run(pipeline)

    wanted = 1 if moment == "commit.after" else 2
    assert (ran.stage("page-1", "work").state, ran.stage("page-1", "work").attempts) == ("done", wanted)
    assert [line.attempt for line in calls.starts()] == list(range(1, wanted + 1))
    assert own.keys() == ["page-1"]


@pytest.mark.req("V7")
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_suspect_whose_effect_can_be_run_nowhere_is_refused_and_says_what_to_do(run: Bench, own: OwnTables):
    """A forked process must not open a SQLite file that was open before: somebody else in this program has it open."""
    pipeline = one_stage(lambda item, ctx: ctx.effect(own.save, item.key))
    app = run.app(pipeline, ["page-1"])
    suspect(app)
    app.add("p", ["page-1"])
    ran = run(pipeline)

    error = ran.stage("page-1", "work").error
    assert ran.state("page-1", "work") == "exhausted"
    assert "give a function of a module" in error and "was open in the process this one was forked from" in error
    assert own.notes() == []


def suspect(app: Holdfast) -> None:
    """As if the worker that held everything had died."""
    app.store.write(lambda tx: tx.connection.execute(f"UPDATE {waiting(tx)} SET alone = 2"))
    # What is open when a worker starts cannot be opened by its children.
    app.close()


def waiting(tx: Any) -> str:
    return str(tx.store.driver.dialect.table("waiting"))


# What else runs in that transaction -----------------------------------------------------------------------------------


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_user_code_plans_as_its_owner_set_it_up_and_ours_as_we_did(app: App, own: OwnTables):
    seen: list[str] = []

    def look(connection: Connection, key: str) -> None:
        seen.append(connection.exec_driver_sql("SHOW enable_seqscan").scalar_one())

    app.pipeline({"a": []})
    app.add(["one", "two"])
    leases = app.claim(most=2)

    def work(tx: Any) -> str:
        complete(tx, [with_effect(app, lease, look) for lease in leases])
        return str(tx.store.driver.run_text("SHOW enable_seqscan")[0][0])

    assert app.store.write(work) == "off"
    assert seen == ["on", "on"]
