"""Results in pages, and cursors between whose exports no row is lost."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import text

from holdfast.engine import results as walking
from holdfast.engine.actions import act
from holdfast.engine.add import merged, overwrite, read_items
from holdfast.engine.complete import complete
from holdfast.engine.delete import Delete
from holdfast.engine.export_cursor import Cursor
from holdfast.engine.finish_leases import FinishedAttempt
from holdfast.engine.plan_and_reprocess import Accept
from holdfast.engine.results import ResultRow, ResultWalk
from holdfast.engine.retry_and_cancel import CancelStages, RetryStages
from holdfast.engine.selection import Who
from holdfast.engine.upsert import upsert
from holdfast.errors import UsageError
from holdfast.model import codec
from holdfast.model.item_filter import Which
from holdfast.model.states import FINISHED, State
from holdfast.store import Store, Transaction, open_store
from holdfast.testing import ManualClock
from tests.support.effort import effort
from tests.support.harness import App
from tests.support.waiting import wait_for

pytestmark = pytest.mark.req("P14")

EVERYTHING = Which("p", states=FINISHED)
STUCK_SECONDS = 60


def read(store: Store, which: Which = EVERYTHING, since: str | None = None, **given: Any) -> list[ResultRow]:
    return list(ResultWalk(store, which, since, **given))


def read_on(store: Store, since: str | None, which: Which = EVERYTHING) -> tuple[list[ResultRow], str]:
    """The rows since a cursor, and the next cursor."""
    walk = ResultWalk(store, which, since)
    rows = list(walk)
    assert walk.cursor is not None
    return rows, walk.cursor


def export_until_settled(app: App, since: str | None = None) -> str:
    """Export until nothing comes any more, and return the cursor: on a server that others use, what was committed while any
    transaction is open, whoever's, comes again."""
    cursor: str | None = since

    def nothing_comes() -> bool:
        nonlocal cursor
        rows, cursor = read_on(app.store, cursor)
        return not rows

    wait_for(nothing_comes)
    assert cursor is not None
    return cursor


def keys(rows: list[ResultRow]) -> list[str]:
    return sorted(row.key for row in rows)


@pytest.fixture(params=["looked up", "walked"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Results of few items are looked up; those of many are walked through in pages."""
    if request.param == "walked":
        monkeypatch.setattr(walking, "MOST_LOOKED_UP", 0)
        monkeypatch.setattr(walking, "PAGE", 3)
    return str(request.param)


# Slow committers ------------------------------------------------------------------------------------------------------


class SlowWrite:
    """A transaction of another connection that has written, and is held open until it is told to commit."""

    def __init__(self, app: App, key: str, work: Callable[[Transaction], Any]) -> None:
        #: The item that nobody else can write meanwhile.
        self.key = key
        self._store = app.store.another()
        self._work = work
        self._written, self._may_commit = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._written.wait(STUCK_SECONDS)

    def _run(self) -> None:
        def work(tx: Transaction) -> None:
            self._work(tx)
            tx.flush()
            self._written.set()
            assert self._may_commit.wait(STUCK_SECONDS)

        try:
            self._store.write(work)
        except BaseException as error:
            self._error = error
        finally:
            self._written.set()
            self._store.close()

    def commit(self) -> None:
        self._may_commit.set()
        self._thread.join(STUCK_SECONDS)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error


class Scene:
    """A pipeline of two stages whose rows are changed in all ways there are, some of them by slow transactions."""

    def __init__(self, app: App, clock: ManualClock, seed: int) -> None:
        self.app, self.clock, self.random = app, clock, random.Random(seed)
        self.one_writer = app.store.kind == "sqlite"
        self.slow: list[SlowWrite] = []
        self.held: list[Any] = []
        self.numbers = iter(range(1, 10_000))
        app.pipeline({"a": [], "b": ["a"]})
        #: What an earlier export has said, by item and stage; and what one that goes by time has.
        self.copy: dict[tuple[str, int], ResultRow] = {}
        self.by_time: dict[tuple[str, int], ResultRow] = {}
        self.cursor: str | None = None
        self.newest = 0
        #: How often an export went on from the one before.
        self.went_on = 0

    def step(self) -> None:
        if self.slow and (self.one_writer or self.random.random() < 0.4):
            if self.random.random() < 0.5:
                self.export()
            self.slow.pop(self.random.randrange(len(self.slow))).commit()
            return
        self.random.choice([self.add, self.claim, self.claim, self.finish, self.finish, self.finish, self.act])()
        if self.random.random() < 0.35:
            self.export()
        # Now and then somebody sets the clock back.
        self.clock.advance(self.random.choice([0.0, 1.0, 5.0]))
        if self.random.random() < 0.1:
            self.clock.set_wall(by_seconds=-7.0)

    def write(self, key: str, work: Callable[[Transaction], Any]) -> None:
        if key in {one.key for one in self.slow}:
            return
        if self.random.random() < 0.6:
            self.slow.append(SlowWrite(self.app, key, work))
        else:
            self.app.store.write(work)

    def add(self) -> None:
        key = f"k{self.random.randrange(8)}"
        ready = read_items([{"key": key, "n": next(self.numbers)}])
        self.write(key, lambda tx: upsert(tx, "p", ready, partial(merged, overwrite), 0))

    def claim(self) -> None:
        if not self.slow:
            self.held += self.app.claim(most=self.random.randrange(1, 4))

    def finish(self) -> None:
        if not self.held:
            return
        lease = self.held.pop(self.random.randrange(len(self.held)))
        value = {"n": next(self.numbers)}
        state = self.random.choice([State.DONE, State.DONE, State.SKIPPED, State.FAILED])
        one = FinishedAttempt(lease, state, "1", result=codec.encode(value), output_hash=codec.digest(value), took_us=5)
        if state is State.FAILED:
            one = FinishedAttempt(lease, state, "1", error="no", traceback="Traceback", took_us=5)
        self.write(lease.key, lambda tx: complete(tx, [one]))

    def act(self) -> None:
        """What a person does; in transactions of its own."""
        if self.slow:
            return
        key = f"k{self.random.randrange(8)}"
        kind: Any = self.random.choice(
            [
                RetryStages(Which("p", key=(key,), states=FINISHED)),
                CancelStages(Which("p", key=(key,))),
                Accept("p", None, key),
                Delete(Which("p", key=(key,))),
                None,
            ]
        )
        if kind is None:
            self.app.pipeline({"a": [], "b": ["a"]}, version=str(next(self.numbers)))
        else:
            act(self.app.store, kind, Who("me"))

    def export(self) -> None:
        walk = ResultWalk(self.app.store, EVERYTHING, self.cursor)
        self.copy |= {(row.key, row.stage): row for row in walk}
        self.went_on += self.cursor is not None and not walk.is_all_again
        self.cursor = walk.cursor
        late = [row for row in read(self.app.store) if row.ended_at > self.newest]
        self.by_time |= {(row.key, row.stage): row for row in late}
        self.newest = max([self.newest, *(row.ended_at for row in late)])

    def end(self) -> None:
        while self.slow:
            self.slow.pop().commit()
        self.export()

    def lost(self, copy: dict[tuple[str, int], ResultRow]) -> list[ResultRow]:
        """The rows that a copy has not, or not in their last form."""
        return [row for row in read(self.app.store) if copy.get((row.key, row.stage)) != row]


@pytest.mark.parametrize("seed", range(effort(12, 300)))
def test_exports_that_go_on_from_each_other_have_every_row_in_its_last_form(
    app: App, clock: ManualClock, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 2:
        monkeypatch.setattr(walking, "MOST_LOOKED_UP", 0)
        monkeypatch.setattr(walking, "PAGE", 2)
    scene = Scene(app, clock, seed)
    for _ in range(60):
        scene.step()
    scene.end()
    assert scene.lost(scene.copy) == []
    assert scene.went_on > 5


def test_exports_that_go_by_time_lose_rows_there(app: App, clock: ManualClock) -> None:
    """So the test above has what it needs to find a loss."""
    lost = 0
    for seed in range(4):
        scene = Scene(app, clock, seed)
        for _ in range(40):
            scene.step()
        scene.end()
        lost += len(scene.lost(scene.by_time))
    assert lost


def test_what_is_written_beside_or_within_savepoints_is_not_lost(app: App, clock: ManualClock, way: str) -> None:
    """A snapshot of PostgreSQL does not list subtransactions. An outcome is written after the savepoint of an effect, an item
    of a caller's transaction perhaps within one."""
    fill(app)
    app.retry(states=["done"], key="k1")
    [lease] = app.claim()
    one = app.finished(lease, "again")

    def with_effect(tx: Transaction) -> None:
        with tx.savepoint() as connection:
            connection.execute(text("CREATE TEMPORARY TABLE theirs (n INTEGER)"))
            connection.execute(text("DROP TABLE theirs"))  # a pooler keeps the session for the next test
        complete(tx, [one])

    cursor = export_until_settled(app)
    slow = SlowWrite(app, "k1", with_effect)
    _let_others_commit(app)
    rows, cursor = read_on(app.store, cursor)
    assert rows == []
    slow.commit()
    rows, cursor = read_on(app.store, cursor)
    assert [(row.key, row.result) for row in rows] == [("k1", '"again"')]

    clock.advance(5)
    ready = read_items([{"key": "k2", "n": "changed"}])

    def within_savepoint(tx: Transaction) -> None:
        with tx.savepoint():
            upsert(tx, "p", ready, partial(merged, overwrite), 0)

    slow = SlowWrite(app, "k2", within_savepoint)
    _let_others_commit(app)
    _, cursor = read_on(app.store, cursor)
    slow.commit()
    rows, cursor = read_on(app.store, cursor)
    assert [(row.key, row.data) for row in rows] == [("k2", '{"n":"changed"}')]


def _let_others_commit(app: App) -> None:
    """On PostgreSQL, so that the numbers of the transaction that is open are below the newest one."""
    if app.store.kind == "postgres":
        app.add(["beside"])


def test_an_open_attempt_does_not_make_rows_come_again(app: App, way: str) -> None:
    fill(app)
    app.add(["slow"])
    [slow] = app.claim()
    app.add(["quick"])
    app.run_through("quick")
    cursor = export_until_settled(app)
    app.complete(slow, "slow")
    assert keys(read_on(app.store, cursor)[0]) == ["slow"]


# What a cursor is good for --------------------------------------------------------------------------------------------


def fill(app: App, n: int = 5) -> None:
    app.pipeline({"a": []})
    app.add([{"key": f"k{number}", "n": number} for number in range(n)])
    app.run_through({"made": "once"})


def test_nothing_is_exported_again_where_nothing_has_changed(app: App, way: str) -> None:
    fill(app)
    assert len(read(app.store)) == 5
    cursor = export_until_settled(app)
    app.add(["k9"])
    app.run_through("new")
    assert keys(read_on(app.store, cursor)[0]) == ["k9"]


def test_a_stage_that_was_renamed_or_was_not_exported_is_exported_completely(app: App, way: str) -> None:
    fill(app)
    cursor = export_until_settled(app)
    app.pipeline({"a": [], "b": ["a"]})
    app.backfill()
    app.run_through("b")
    rows, cursor = read_on(app.store, cursor)
    assert {row.stage for row in rows} == {app.stage("b").id} and len(rows) == 5
    cursor = export_until_settled(app, cursor)
    app.pipeline({"z": [], "b": ["z"]}, only={"z": {"renamed_from": "a"}})
    rows, cursor = read_on(app.store, cursor)
    assert {row.stage for row in rows} == {app.stage("z").id} and len(rows) == 5
    export_until_settled(app, cursor)


def test_a_cursor_is_for_the_filters_it_was_made_with(app: App) -> None:
    fill(app)
    _, cursor = read_on(app.store, None)
    for other in (Which("p"), Which("p", states=FINISHED, key=("k1",)), Which("p", states=FINISHED, error="x")):
        with pytest.raises(UsageError, match="with other filters"):
            read(app.store, other, cursor)
    with pytest.raises(UsageError, match="would never be exported"):
        read(app.store, Which("p", states=FINISHED, older_than_us=1), cursor)
    assert ResultWalk(app.store, Which("p", older_than_us=1)).cursor is None


def test_what_is_no_cursor_is_refused(app: App) -> None:
    fill(app)
    _, cursor = read_on(app.store, None)
    for no_cursor in ("", "x", "hf1-", "hf1-!!", cursor[:-9], f"hf1-{'A' * 40}"):
        with pytest.raises(UsageError, match="is not a cursor"):
            read(app.store, since=no_cursor)


def changed(cursor: str, **changes: Any) -> str:
    return str(replace(Cursor.read(cursor), **changes))


def test_a_cursor_of_another_store_is_refused(app: App) -> None:
    fill(app)
    _, cursor = read_on(app.store, None)
    mark = Cursor.read(cursor).mark
    with pytest.raises(UsageError, match="belongs to another store"):
        read(app.store, since=changed(cursor, mark=mark._replace(place=f"{mark.place}0")))


def test_a_cursor_from_before_a_restore_is_refused(app: App) -> None:
    """Numbers that the store has not reached, a lease that went back, a lease or an event that ended at another time."""
    fill(app)
    app.store.write(lambda tx: tx.record("user.backup"))
    _, cursor = read_on(app.store, None)
    made = Cursor.read(cursor)
    assert made.event is not None
    for other in (
        changed(cursor, mark=made.mark._replace(reached=made.mark.reached + 10**6)),
        changed(cursor, witnesses=[made.witnesses[0]._replace(lease=10**6)]),
        changed(cursor, witnesses=[made.witnesses[0]._replace(ended_at=1)]),
        changed(cursor, event=(made.event[0], 1)),
    ):
        with pytest.raises(UsageError, match="from before a backup"):
            read(app.store, since=other)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_file_that_was_put_back_and_went_on_refuses_the_cursor_or_exports_everything(
    app: App, clock: ManualClock, tmp_path: Path
) -> None:
    fill(app)
    app.store.close()
    file, backup = tmp_path / "store.db", tmp_path / "backup.db"
    shutil.copyfile(file, backup)
    app.add(["x1", "x2"])
    app.run_through("lost with the file")
    _, cursor = read_on(app.store, None)
    app.store.close()
    file.unlink()
    shutil.copyfile(backup, file)
    with closing(open_store(f"sqlite:///{file}", clock=clock)) as store:
        clock.advance(5)
        other = App(store, clock)
        with pytest.raises(UsageError, match="from before a backup"):
            read(store, since=cursor)
        # By now it has more leases and items than the cursor knows.
        other.add([f"y{number}" for number in range(9)])
        other.run_through("after it")
        with pytest.raises(UsageError, match="from before a backup"):
            read(store, since=cursor)


def test_where_all_rows_that_a_cursor_remembers_were_made_again_everything_is_exported(app: App, way: str) -> None:
    fill(app)
    _, cursor = read_on(app.store, None)
    app.retry(states=["done"])
    app.run_through("again")
    walk = ResultWalk(app.store, EVERYTHING, cursor)
    assert len(list(walk)) == 5
    assert walk.is_all_again


# What is selected -----------------------------------------------------------------------------------------------------


def test_without_states_results_that_are_done_are_read_and_with_an_error_those_that_failed(app: App, way: str) -> None:
    app.pipeline({"a": [], "b": ["a"]})
    app.add(["good", "bad", "worse", "skipped"])
    for lease in app.claim(most=4, stage="a"):
        if lease.key in ("bad", "worse"):
            app.permanent(lease, f"{lease.key} page")
        elif lease.key == "skipped":
            app.skip(lease)
        else:
            app.complete(lease, {"n": 1})
    assert keys(read(app.store, Which("p"))) == ["good"]
    assert keys(read(app.store, Which("p", error="bad"))) == ["bad"]
    assert keys(read(app.store, Which("p", states=frozenset({State.FAILED})))) == ["bad", "worse"]
    assert keys(read(app.store, Which("p", states=frozenset({State.SKIPPED, State.FAILED})))) == [
        "bad",
        "skipped",
        "worse",
    ]
    [(group,)] = app.query("SELECT DISTINCT error_group FROM holdfast_outcomes WHERE error_group IS NOT NULL")
    assert keys(read(app.store, Which("p", group=group))) == ["bad", "worse"]
    assert keys(read(app.store, Which("p", stage="b"))) == []
    assert keys(read(app.store, Which("p", key=("g*", "none*")))) == ["good"]
    with pytest.raises(UsageError, match="not finished"):
        read(app.store, Which("p", states=frozenset({State.PENDING})))
    with pytest.raises(UsageError, match="there is no stage"):
        read(app.store, Which("p", stage="c"))


def test_results_have_an_age(app: App, clock: ManualClock, way: str) -> None:
    fill(app, 2)
    clock.advance(100)
    app.add(["new"])
    app.run_through()
    assert keys(read(app.store, Which("p", older_than_us=50_000_000))) == ["k0", "k1"]


def test_a_result_that_is_being_made_again_stays_until_it_is_replaced(app: App, way: str) -> None:
    fill(app, 1)
    app.retry(states=["done"])
    assert keys(read(app.store)) == ["k0"]
    app.run_through({"made": "twice"})
    assert [row.result for row in read(app.store)] == ['{"made":"twice"}']


def test_long_values_are_read_one_by_one_and_whole(app: App, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walking, "LONG", 50)
    app.pipeline({"a": []})
    app.add([{"key": f"k{number}", "text": "x" * 30 * number} for number in range(6)])
    for lease in app.claim(most=6):
        app.complete(lease, "y" * (20 * int(lease.key[1:])))
    rows = read(app.store)
    assert [len(row.result or "") - 2 for row in rows] == [20 * number for number in range(6)]
    assert [codec.decode(row.data or "")["text"] for row in rows] == ["x" * 30 * number for number in range(6)]
    assert {(row.data, row.result) for row in read(app.store, with_data=False, with_result=False)} == {(None, None)}


def test_results_of_other_pipelines_are_not_there(app: App, way: str) -> None:
    fill(app)
    app.pipeline({"a": []}, name="q")
    app.add(["other"])
    app.run_through()
    assert keys(read(app.store, Which("q"))) == ["other"]
    assert len(read(app.store, Which("p"))) == 5


def test_imported_results_are_exported_once(app: App, way: str) -> None:
    """They have no lease."""
    fill(app)
    app.execute("UPDATE holdfast_outcomes SET lease = NULL")
    if app.store.kind == "sqlite":
        app.execute("DELETE FROM holdfast_amended")
    assert len(read(app.store)) == 5
    export_until_settled(app)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_what_a_worker_inserts_runs_no_trigger(app: App) -> None:
    """Exports cost those who work nothing: what notes changes runs on updates only."""
    app.pipeline({"a": []})
    insert = (
        "EXPLAIN INSERT INTO holdfast_outcomes (item, stage, state, attempts, ended_at) VALUES (1, 1, 'done', 1, 1)"
    )
    update = "EXPLAIN UPDATE holdfast_outcomes SET version = '2' WHERE item = 1"
    assert "Program" not in {row[1] for row in app.query(insert)}
    assert "Program" in {row[1] for row in app.query(update)}
