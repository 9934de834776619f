"""What always holds also holds while workers of the version before and of today's share one store.

As in `test_upgrade_beside_old_worker.py`, the earlier version is real, and what handlers wrote into the ledger decides.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import pytest
from sqlalchemy import text

from holdfast import Holdfast
from holdfast.answers import ResourceLimit
from holdfast.store import Transaction
from holdfast.store.driver import Row
from holdfast.store.statements import Statement
from tests.support.ledger import Ledger, Line
from tests.support.limits import over
from tests.support.own_tables import OwnTables
from tests.support.population import (
    ARTISTS,
    DRAWING,
    DRAWINGS,
    DRAWN_AT_ONCE,
    DRAWN_PER_SECOND,
    SETTINGS,
    is_open,
    open_app,
    seen,
)
from tests.support.processes import WorkerProcess
from tests.support.skew import Skew, build_shim
from tests.support.steps import ask, tables
from tests.support.two_versions import TODAY, ends_of, wait

T = TypeVar("T")

pytestmark = pytest.mark.fault(70)

#: Work of a dead worker starts again within this (V5).
RECOVERY_SECONDS = 2 * SETTINGS.lease_seconds + SETTINGS.poll_seconds
#: So many drawings that take long are made in a row.
LONG = 4 * ARTISTS


@pytest.fixture
def own(url: str) -> Iterator[OwnTables]:
    own = OwnTables(url)
    yield own
    own.close()


def upgrade(url: str) -> None:
    with Holdfast(url) as app:
        app.upgrade()


# V2 together ----------------------------------------------------------------------------------------------------------


@pytest.mark.req("V2")
def test_rows_that_handlers_write_commit_with_their_stage_in_workers_of_both_versions(
    url, own, ledger, start, old_code, tmp_path
):
    """At every moment there is one row for each stage that is done, and none for another; also if an effect raises after it
    has written, and if the old worker is killed in the middle."""
    gate, name = tmp_path / "gate", own.note.fullname
    torn = [{"key": f"torn-{n}", "torn": True} for n in range(4)]
    old = start(old_code, [*torn, *(f"book-{n}" for n in range(20))], notes=name)
    wait(lambda: len(ends_of(old, ledger)) >= 10, old)
    upgrade(url)
    at = time.monotonic()
    new = start(TODAY, [], notes=name)
    with open_app(url, ledger) as app:
        numbers = count()

        def add(n: int, **data: Any) -> None:
            app.add("books", [{"key": f"more-{next(numbers)}", "children": {"a": "plain"}, **data} for _ in range(n)])

        def both_have_worked() -> bool:
            assert torn_apart(own) == []
            if not is_open(app):
                add(4, torn=True)
                add(6)
            return all(len(ends_of(worker, ledger, since=at)) >= 10 for worker in (old, new))

        wait(both_have_worked, old, new)

        def old_is_in_the_middle() -> bool:
            held = {line.key for line in ledger.lines("paid")} - {line.key for line in ledger.ends(stage="extract")}
            if len(held) < 40:
                add(4, until=str(gate))
            return any(line.pid == old.pid and line.key in held for line in ledger.lines("paid"))

        wait(old_is_in_the_middle, old, new)
        old.kill()
        gate.touch()

        def done() -> bool:
            assert torn_apart(own) == []
            return not is_open(app)

        wait(done, new)
        stages = {(key, stage, str(attempts)) for key, stage, attempts in done_stages(app)}
        rows = [(key, *note.split()) for key, note in own.notes()]
    assert sorted((key, stage, attempt) for key, stage, attempt, _ in rows) == sorted(stages)
    assert {("torn-0", "extract", "2"), ("torn-0", "index", "2")} <= stages
    assert {str(old.pid), str(new.pid)} <= {pid for *_, pid in rows}


def torn_apart(own: OwnTables) -> list[Any]:
    """Stages of items whose state and rows do not belong together, at one moment."""
    view = "holdfast_item_stages_by_name" if own.schema is None else f"{own.schema}.item_stages_by_name"
    with own.engine.connect() as connection:
        found = connection.execute(
            text(
                f"SELECT s.key, s.stage, s.state, COUNT(n.id) FROM {view} s "
                f"LEFT JOIN {own.note.fullname} n ON n.key = s.key AND n.text LIKE s.stage || ' %' "
                "GROUP BY s.key, s.stage, s.state HAVING COUNT(n.id) <> CASE WHEN s.state = 'done' THEN 1 ELSE 0 END"
            )
        )
        return list(found.all())


def done_stages(app: Holdfast) -> Iterator[tuple[str, str, int]]:
    for key, item in seen(app)["items"].items():
        for stage, state, attempts, _ in item["stages"]:
            assert state == "done", f"{key}: {item}"
            yield key, stage, attempts


# V3 fence -------------------------------------------------------------------------------------------------------------


@pytest.mark.req("V3")
@pytest.mark.parametrize("late_version", ["old", "new"])
def test_a_worker_of_either_version_that_comes_back_late_changes_nothing(
    url, own, ledger, start, old_code, tmp_path, late_version
):
    """It was frozen in its handlers, and a worker of the other version has finished its work: one attempt would now be done,
    with a row of its own, one would pay once more, and one would fail."""
    gate, busy, name = tmp_path / "gate", tmp_path / "busy", own.note.fullname
    keys = {"done": "", "ask": "ask", "fail": "fail"}
    covers = [{"key": key, "until": str(gate), "late": late} for key, late in keys.items()]
    if late_version == "old":
        late = start(old_code, [], covers, notes=name)
        wait(lambda: len(ledger.lines("waits")) == len(keys), late)
        late.freeze()
        upgrade(url)
        other = start(TODAY, [], notes=name)
    else:
        # The old worker has its hands full, so that the new one gets the covers.
        full = [{"key": f"full-{n}", "until": str(busy)} for n in range(SETTINGS.concurrency)]
        other = start(old_code, full, notes=name)
        wait(lambda: len(ledger.lines("paid", stage="extract")) == len(full), other)
        upgrade(url)
        late = start(TODAY, [], covers, notes=name)
        wait(lambda: len(ledger.lines("waits")) == len(keys), other, late)
        assert {line.pid for line in ledger.lines("waits")} == {late.pid}
        late.freeze()
        busy.touch()
    wait(lambda: len(ledger.starts(stage="draw")) == 2 * len(keys), other)
    gate.touch()
    with open_app(url, ledger) as app:
        wait(lambda: not is_open(app), other)
        app.upgrade()  # which enters the payments of the old worker in the ledger, as a new one does now and then
        stands = standing(app, own)
        for key in keys:
            [draw] = stands["items"][key]["stages"]
            assert draw[:3] == ["draw", "done", 2]
            assert draw[3]["by"] != late.pid
        frozen = {row.id for row in app.workers()}
        late.thaw()
        wait(lambda: len(app.events(event="lease_lost", most=100)) == len(keys), other, late)
        # It goes on under another number, and it is as good a worker as any.
        wait(lambda: any(one.process == str(late.pid) and one.id not in frozen for one in app.workers()), other, late)
        assert standing(app, own) == stands
        assert len(ledger.lines("paid", stage="frame")) == 1
        other.kill()
        app.add("covers", ["next"])
        wait(lambda: bool(ledger.ends("next")) and not is_open(app), late)
        assert {line.pid for line in ledger.ends("next")} == {late.pid}
        app.upgrade()
        assert app.check() == []


def standing(app: Holdfast, own: OwnTables) -> dict[str, Any]:
    """All that a late worker could change. Its refusal may be told by the history."""
    items = seen(app)["items"]
    for item in items.values():
        del item["history"]
    return {
        "items": items,
        "notes": sorted(own.notes()),
        "costs": [(row.item, row.costs) for row in app.costs(["item"]).sums],
        "spent": artist(app).spent,
    }


# V5 recovery ----------------------------------------------------------------------------------------------------------


@pytest.mark.req("V5")
@pytest.mark.parametrize("when", ["during", "after"])
def test_work_of_an_old_worker_killed_during_or_after_the_upgrade_runs_again_in_two_leases_and_a_poll(
    url, ledger, start, old_code, tmp_path, when
):
    """Nobody sees that its process is gone: only its silence tells. How long a takeover takes on this machine is measured
    with a neighbour, whose end is seen without a wait for its lease."""
    gates = {"near": tmp_path / "near", "far": tmp_path / "far"}

    def begun(name: str, attempt: int = 1) -> list[Line]:
        return [
            line for line in ledger.starts(stage="extract") if line.key.startswith(name) and line.attempt == attempt
        ]

    def full(name: str) -> WorkerProcess:
        """A worker with its hands full: what comes next goes to another."""
        books = [{"key": f"{name}-{n}", "until": str(gates[name])} for n in range(SETTINGS.concurrency)]
        worker = start(old_code, books, far=name == "far")
        wait(lambda: len(begun(name)) == SETTINGS.concurrency, worker)
        assert {line.pid for line in begun(name)} == {worker.pid}
        return worker

    def killed(name: str, worker: WorkerProcess) -> float:
        at = time.monotonic()
        worker.kill()
        gates[name].touch()
        return at

    near, far = full("near"), full("far")
    if when == "after":
        upgrade(url)
    left = [start(old_code if when == "during" else TODAY, [])]
    near_at = killed("near", near)
    ended = [f"near-{n}" for n in range(SETTINGS.concurrency)]
    wait(lambda: all(ledger.ends(key, "extract") for key in ended), *left)
    takeover = begun("near", 2)[0].at - near_at
    if when == "during":
        [far_at] = in_an_upgrade(url, lambda: killed("far", far))
        left.append(start(TODAY, []))
    else:
        far_at = killed("far", far)
    wait(lambda: bool(begun("far", 2)), *left)
    again = begun("far", 2)[0].at - far_at
    assert again < RECOVERY_SECONDS + takeover
    with open_app(url, ledger) as app:
        wait(lambda: not is_open(app), *left)
        assert app.show("far-0").stage("extract").attempts == 2
        assert app.check() == []


def in_an_upgrade(url: str, act: Callable[[], T]) -> list[T]:
    """Act in the middle of the transaction that changes the tables; what was returned."""
    done: list[T] = []
    with Holdfast(url) as app:
        driver = app._store.connect()
        run = driver.run

        def listened(statement: Statement, params: dict[str, Any]) -> list[Row]:
            if statement.name == "record_migration" and not done:
                done.append(act())
            return run(statement, params)

        driver.run = listened  # type: ignore[method-assign]
        app.upgrade()
    return done


# V6 attempts, V7 progress ---------------------------------------------------------------------------------------------


@pytest.mark.req("V6")
def test_the_stop_of_an_old_worker_costs_no_attempt_and_its_death_costs_one(url, ledger, start, old_code, tmp_path):
    gate = tmp_path / "gate"

    def full(name: str) -> WorkerProcess:
        worker = start(old_code, [{"key": f"{name}-{n}", "until": str(gate)} for n in range(SETTINGS.concurrency)])
        wait(lambda: len([one for one in ledger.lines("paid") if one.key.startswith(name)]) == SETTINGS.concurrency)
        return worker

    stopped, killed = full("stopped"), full("killed")
    upgrade(url)
    stopped.terminate()
    assert stopped.wait() == 0, stopped.said
    killed.kill()
    gate.touch()
    new = start(TODAY, [])
    with open_app(url, ledger) as app:
        wait(lambda: not is_open(app), new)
        assert app.check() == []
        for n in range(SETTINGS.concurrency):
            assert [one.attempt for one in ledger.starts(f"stopped-{n}", "extract")] == [1, 1]
            assert [one.attempt for one in ledger.starts(f"killed-{n}", "extract")] == [1, 2]
            assert app.show(f"stopped-{n}").stage("extract").attempts == 1
            assert app.show(f"killed-{n}").stage("extract").attempts == 2


@pytest.mark.req("V1", "V7")
def test_items_that_fail_in_workers_of_both_versions_stop_no_others(url, ledger, start, old_code):
    bad = [{"key": f"bad-{n}", "late": "fail"} for n in range(10)]
    old = start(old_code, [], bad[:5])
    wait(lambda: len(ledger.starts(stage="draw")) == 5, old)
    upgrade(url)
    new = start(TODAY, [], [*bad[5:], *({"key": f"good-{n}", "seconds": 0.05} for n in range(20))])
    with open_app(url, ledger) as app:
        wait(lambda: len({one.key for one in ledger.starts(stage="draw")}) == 30 and not is_open(app), old, new)
        ends = {key: item["stages"][0][1] for key, item in seen(app)["items"].items()}
        assert Counter((key.partition("-")[0], state) for key, state in ends.items()) == {
            ("bad", "failed"): 10,
            ("good", "done"): 20,
        }
        # Who of the two got which is chance.
        old.terminate()
        assert old.wait() == 0, old.said
        app.add("covers", [{"key": "bad-last", "late": "fail"}, "good-last"])
        wait(lambda: bool(ledger.ends("good-last")) and not is_open(app), new)
        assert app.show("bad-last").stage("draw").state == "failed"
        assert app.check() == []


# V9 one clock ---------------------------------------------------------------------------------------------------------


@pytest.mark.req("V9")
def test_workers_of_both_versions_whose_clocks_are_hours_apart_take_nothing_from_each_other(
    url, ledger, start, old_code, tmp_path
):
    """Attempts last longer than leases: whoever judged by its own time of day would take them over."""
    shim = build_shim(tmp_path)
    if isinstance(shim, str):
        pytest.skip(f"the time of day cannot be shifted here: {shim}")
    gate = tmp_path / "gate"

    def full(name: str, code: Path, hours: int) -> WorkerProcess:
        books = [{"key": f"{name}-{n}", "until": str(gate)} for n in range(SETTINGS.concurrency)]
        wrong = Skew(shim, tmp_path / name, hours=hours).environment
        worker = start(code, books, far=True, environment=wrong)
        begun = [f"{name}-{n}" for n in range(SETTINGS.concurrency)]
        wait(lambda: {one.pid for key in begun for one in ledger.lines("paid", key)} == {worker.pid}, worker)
        wait(lambda: all(ledger.lines("paid", key) for key in begun), worker)
        return worker

    old = full("old", old_code, 2)
    upgrade(url)
    new = full("new", TODAY, -2)
    over = time.monotonic() + 2.5 * SETTINGS.lease_seconds
    wait(lambda: time.monotonic() > over, old, new)
    gate.touch()
    with open_app(url, ledger) as app:
        wait(lambda: not is_open(app), old, new)
        # Each was begun once, by the worker that had it first.
        begun = [(one.key.partition("-")[0], one.pid) for one in ledger.starts(stage="extract")]
        assert Counter(begun) == {(name, it.pid): SETTINGS.concurrency for name, it in (("old", old), ("new", new))}
        assert app.events(event="lease_lost") == app.events(event="lease_expired") == ()
        assert app.check() == []


# V11 limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.req("V11")
def test_workers_of_both_versions_together_keep_slots_pace_and_budget(url, ledger, start, old_code):
    """Long drawings use up the slots, short ones the pace, and all of them the budget. Whoever has the slots keeps them by
    going on, so first one worker finds them taken by the other, and then the other way round."""
    old = start(old_code, [], long_drawings("old"))
    wait(lambda: len(ledger.starts(stage="draw")) >= ARTISTS, old)
    upgrade(url)
    at = time.monotonic()
    new = start(TODAY, [])
    with open_app(url, ledger) as app:
        wait(lambda: not is_open(app), old, new)
        old.freeze()
        app.add("covers", long_drawings("new"))
        wait(lambda: len(ledger.starts(stage="draw")) >= LONG + ARTISTS, new)
        old.thaw()
        wait(lambda: not is_open(app), old, new)
        app.add("covers", [f"short-{n}" for n in range(DRAWINGS)])
        wait(lambda: stands_still(app), old, new)
        spent = artist(app).spent
    assert most_at_once(ledger.lines(stage="draw")) == ARTISTS
    assert over([line.at for line in ledger.starts(stage="draw")], DRAWN_PER_SECOND, DRAWN_AT_ONCE) <= 0
    assert len(ledger.lines("paid", stage="drawing")) == DRAWINGS
    assert spent == DRAWINGS * Decimal(DRAWING)
    for worker in (old, new):
        ends = Counter(line.key.partition("-")[0] for line in ends_of(worker, ledger, since=at))
        # Who gets the short ones is chance.
        assert ends["old"] + ends["new"] >= ARTISTS, ends


@pytest.mark.req("V11", "V13")
@pytest.mark.parametrize("begun", ["before", "after"])
def test_a_paid_call_in_which_an_old_worker_was_killed_counts_against_the_budget(
    url, ledger, start, old_code, tmp_path, begun
):
    """It was begun before the upgrade or after it, and a new worker finds it without a record: it may have been charged."""
    gate = tmp_path / "gate"
    covers = [{"key": f"held-{n}", "during": str(gate)} for n in range(ARTISTS)]
    old = start(old_code, ["book"], covers if begun == "before" else [])
    wait(lambda: bool(ledger.ends("book", "publish")), old)
    if begun == "after":
        upgrade(url)
        with open_app(url, ledger) as app:
            app.add("covers", covers)
    wait(lambda: len(ledger.lines("paid", stage="drawing")) == ARTISTS, old)
    upgrade(url)
    old.kill()
    gate.touch()
    draw_until_the_budget_is_used_up(url, ledger, start(TODAY, []))


@pytest.mark.req("V11", "V13")
def test_a_paid_call_in_which_a_new_worker_was_killed_counts_against_the_budget_for_an_old_one(
    url, ledger, start, old_code, tmp_path
):
    gate = tmp_path / "gate"
    old = start(old_code, ["book"])
    wait(lambda: bool(ledger.ends("book", "publish")), old)
    upgrade(url)
    with open_app(url, ledger) as app:
        wait(lambda: not is_open(app), old)
    old.freeze()
    killed = start(TODAY, [], [{"key": f"held-{n}", "during": str(gate)} for n in range(ARTISTS)])
    wait(lambda: len(ledger.lines("paid", stage="drawing")) == ARTISTS, killed)
    killed.kill()
    gate.touch()
    # Another new worker finds the calls without a record, and makes them again.
    new = start(TODAY, [])
    wait(lambda: len(ledger.ends(stage="draw")) == ARTISTS, new)
    with open_app(url, ledger) as app:
        wait(lambda: not is_open(app), new)
    new.kill()
    old.thaw()
    draw_until_the_budget_is_used_up(url, ledger, old)


@pytest.mark.req("V13")
def test_a_paid_call_in_which_a_new_worker_was_killed_is_in_doubt_after_an_old_one_took_its_work_over(
    url, ledger, start, old_code, tmp_path
):
    """What budgets count is what the ledger shows: as charged, or as in doubt."""
    gate, busy = tmp_path / "gate", tmp_path / "busy"
    old = start(old_code, [{"key": f"full-{n}", "until": str(busy)} for n in range(SETTINGS.concurrency)])
    wait(lambda: len(ledger.lines("paid", stage="extract")) == SETTINGS.concurrency, old)
    upgrade(url)
    killed = start(TODAY, [], [{"key": f"held-{n}", "during": str(gate)} for n in range(ARTISTS)])
    wait(lambda: len(ledger.lines("paid", stage="drawing")) == ARTISTS, killed)
    killed.kill()
    gate.touch()
    busy.touch()
    with open_app(url, ledger) as app:
        wait(lambda: not is_open(app), old)
        old.kill()
        app.upgrade()
        app.repair()
        [sums] = [row for row in app.costs(["resource"]).sums if row.resource == "artist"]
        assert len(ledger.lines("paid", stage="drawing")) == 2 * ARTISTS
        assert artist(app).spent == 2 * ARTISTS * Decimal(DRAWING)
        assert sums.costs + sums.in_doubt == artist(app).spent
        assert {call.state for call in app.show("held-0").calls} == {"doubtful", "done"}


def draw_until_the_budget_is_used_up(url: str, ledger: Ledger, worker: WorkerProcess) -> None:
    with open_app(url, ledger) as app:
        wait(lambda: not is_open(app), worker)
        app.add("covers", [f"more-{n}" for n in range(DRAWINGS)])
        wait(lambda: stands_still(app), worker)
        made, spent = len(ledger.lines("paid", stage="drawing")), artist(app).spent
    assert spent >= made * Decimal(DRAWING), "a call was paid and not counted"
    assert made == DRAWINGS


def long_drawings(name: str) -> list[dict[str, Any]]:
    return [{"key": f"{name}-{n}", "seconds": 0.3} for n in range(LONG)]


def artist(app: Holdfast) -> ResourceLimit:
    return next(one for one in app.limits() if one.name == "artist")


def stands_still(app: Holdfast) -> bool:
    """Nobody has money set aside, nobody holds work, and the resource is stopped."""
    now = artist(app)
    return bool(now.paused and not now.set_aside and not now.in_use)


def most_at_once(lines: list[Line]) -> int:
    """How many handlers ran at one moment."""
    running = most = 0
    for line in sorted(lines, key=lambda line: line.at):
        running += {"start": 1, "end": -1}.get(line.what, 0)
        most = max(most, running)
    return most


# V12 safe -------------------------------------------------------------------------------------------------------------


@pytest.mark.req("V12")
def test_a_value_has_one_form_in_both_versions(url, ledger, start, old_code):
    """What the version before has stored is unchanged when today's adds the same, and is read as it was given."""
    values = [
        "Žluťoučký \u2028 \U0001f4d6",
        "",
        2**53,
        -0.1,
        1e300,
        True,
        None,
        [[], {}, ["x", 1]],
        {"b": {"d": 1, "c": 2}},
    ]
    books = [{"key": f"book-{n}", "value": value} for n, value in enumerate(values)]
    old = start(old_code, books)
    wait(lambda: len(ledger.ends(stage="publish")) == len(books), old)
    upgrade(url)
    with open_app(url, ledger) as app:
        wait(lambda: not is_open(app), old)
        assert app.add("books", books).unchanged == len(books)
        assert [app.show(book["key"]).data for book in books] == [{"value": book["value"]} for book in books]
        assert [(one.stage, one.begins) for one in app.plan("books") if one.begins] == []


# V14 looking is free ----------------------------------------------------------------------------------------------------


@pytest.mark.req("V14")
def test_questions_beside_an_old_worker_are_answered_and_change_nothing(url, ledger, start, old_code, tmp_path):
    gate = tmp_path / "gate"
    old = start(old_code, [{"key": "held", "until": str(gate)}, "free"])
    wait(lambda: bool(ledger.lines("paid", "held")) and bool(ledger.ends("free", "publish")), old)
    upgrade(url)
    old.freeze()
    with Holdfast(url, create=False) as app:
        before = app.store.read(every_row)
        assert app.why("held", "books").reason == "lease" and app.status().workers
        assert not [one for one in app.plan("books") if one.begins]
        assert app.show("held", "books").stage("extract").state == "in_progress"
        for question in (app.items, app.events, app.costs, app.limits, app.errors, app.doctor, app.check, app.summary):
            question()
        assert app.store.read(every_row) == before
    old.thaw()
    gate.touch()
    wait(lambda: bool(ledger.ends("held", "publish")), old)


def every_row(tx: Transaction) -> dict[str, list[Any]]:
    return {table: sorted(ask(tx, f"SELECT * FROM holdfast_{table}"), key=repr) for table in tables(tx)}
