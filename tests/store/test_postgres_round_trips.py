"""What is worth a round trip to PostgreSQL and what is not: whole writes at once, and how statements travel."""

from __future__ import annotations

import enum
import os
import signal
import threading
from functools import partial

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.engine.claim import claim, claim_at_once
from holdfast.engine.memos import MemoWrite, remember
from holdfast.engine.register import register
from holdfast.errors import StoreConflict, StoreUnavailable
from holdfast.model.stage import PipelineSpec, StageSpec
from holdfast.model.states import State
from holdfast.store.driver import Mark
from holdfast.store.postgres_prepared import KEEP_FROM, Wire
from holdfast.store.store import new_identity
from tests.support.harness import connected, handler
from tests.support.waiting import wait_for


@pytest.fixture
def database():
    return "postgres"


@pytest.fixture
def trips(monkeypatch):
    """What went out, one list of statements for each round trip."""
    seen = []
    for name in ("ask", "ask_all"):
        real = getattr(Wire, name)

        def counted(wire, asked, *params, real=real):
            seen.append([asked] if isinstance(asked, str) else [text for text, _ in asked])
            return real(wire, asked, *params)

        monkeypatch.setattr(Wire, name, counted)
    return seen


def marks(app):
    return app.query("SELECT COUNT(*), COALESCE(SUM(seq), 0) FROM holdfast_commits")


def taken(app, stage="a", most=5):
    """Claim by one statement, as a worker does that has just woken up."""
    who, number = app.worker("w"), app.stage(stage).id
    quick = claim_at_once(
        app.store.cache["layout"], who.id, number, most, lambda _: False, app.store.read, lambda leases, _: leases
    )

    def in_steps(tx):
        leases = claim(tx, who.id, number, most)
        tx.is_for_nothing = not leases
        return leases

    return app.store.write(in_steps, slot=who.id, at_once=quick)


# Whole writes at once ------------------------------------------------------------------------------------------------


def test_a_claim_and_the_add_of_a_new_item_are_one_round_trip_each(app, trips):
    app.pipeline({"a": [], "b": ["a"]})
    app.add(["x"])  # also reads what is registered
    app.worker("w")
    trips.clear()
    app.add(["y"])
    assert [trip[-1] for trip in trips] == ["COMMIT"]
    trips.clear()
    leases = taken(app)
    assert [trip[-1] for trip in trips if "leased AS" in str(trip)] == ["COMMIT"]
    assert [(lease.key, lease.attempt) for lease in leases] == [("x", 1), ("y", 1)]
    assert app.counts() == app.recount() == {"a": {"in_progress": 2}}


def test_a_claim_that_finds_nothing_commits_nothing(app):
    app.pipeline({"a": []})
    app.add(["x"])
    app.complete(*app.claim())
    before = marks(app), app.query("SELECT * FROM holdfast_counts")
    assert taken(app) == []
    assert (marks(app), app.query("SELECT * FROM holdfast_counts")) == before


def test_a_known_key_is_changed_and_not_counted_again(app):
    app.pipeline({"a": []})
    app.add([{"key": "x", "n": 1}])
    assert app.add([{"key": "x", "n": 2}]) == (0, 1, 0)
    assert app.add([{"key": "x", "n": 2}]) == (0, 0, 1)
    assert app.counts() == app.recount() == {"a": {"pending": 1}}


def test_a_claim_at_once_knows_of_earlier_attempts_and_lives(app):
    app.pipeline({"a": []})
    app.add(["x", "y"])
    first, second = app.claim(most=2)
    app.store.write(lambda tx: remember(tx, [MemoWrite(first, "gemini", "done", "1", "key", value="1")]))
    app.fail(first)
    app.promote()
    app.complete(second)
    app.retry(key="y", states=["done"])
    leases = {lease.key: lease for lease in taken(app)}
    assert (set(leases["x"].memos), leases["x"].attempt, leases["x"].life) == ({"gemini"}, 2, 1)
    assert (set(leases["y"].memos), leases["y"].attempt, leases["y"].life) == (set(), 1, 2)


def test_what_was_registered_meanwhile_counts(app):
    """The item enters the stage that another process has added since this one looked."""
    app.pipeline({"a": []})
    app.add(["x"])
    with connected(app) as other:
        spec = PipelineSpec.build("p", [StageSpec("a", handler), StageSpec("b", handler)])
        other.store.write(lambda tx: register(tx, spec), exclusive=True)
    app.add(["y"])
    assert app.states("y") == {"a": "pending", "b": "pending"}


@pytest.mark.fault(26)
@pytest.mark.parametrize("took_place", [True, False])
@pytest.mark.parametrize("what", ["add", "claim"])
def test_a_write_at_once_whose_reply_was_lost_is_done_once_and_known(app, monkeypatch, took_place, what):
    app.pipeline({"a": []})
    app.add(["x"])
    app.worker("w")
    driver = app.store.connect()
    at_once = driver.at_once

    def lost(*given):
        monkeypatch.undo()
        if took_place:
            at_once(*given)
        raise StoreUnavailable("the line went dead")

    monkeypatch.setattr(driver, "at_once", lost)
    if what == "add":
        assert app.add(["y"]) == (1, 0, 0)
        assert app.counts() == app.recount() == {"a": {"pending": 2}}
    else:
        assert [(lease.key, lease.attempt) for lease in taken(app)] == [("x", 1)]
        assert app.counts() == app.recount() == {"a": {"in_progress": 1}}


@pytest.mark.fault(26)
def test_a_write_that_was_given_up_and_done_again_cannot_commit_after_all(app):
    """Its last words may arrive late: the server still works through what an owner has sent who took it for lost."""
    app.pipeline({"a": []})
    mark = Mark(new_identity(), 1)
    late, owner = app.store.another().connect(), app.store.another().connect()
    late.begin(mark, exclusive=False, in_doubt=False)
    pipelines = late.dialect.table("pipelines")
    late.run_text(f"INSERT INTO {pipelines} (name, generation, created_at, updated_at) VALUES ('late', 0, 0, 0)")
    assert owner.begin(mark, exclusive=False, in_doubt=True).fresh
    owner.commit()
    with pytest.raises(StoreConflict, match="done again"):
        late.commit()
    late.rollback()
    assert app.query("SELECT name FROM holdfast_pipelines") == [("p",)]
    assert not owner.begin(mark, exclusive=False, in_doubt=True).fresh
    for driver in (late, owner):
        driver.close()


@pytest.mark.fault(26)
def test_a_write_in_doubt_that_comes_to_nothing_leaves_its_mark(app, monkeypatch):
    """What was given up may be under way still: it finds the mark, and does not take place behind its owner's back."""
    app.pipeline({"a": []})
    app.add(["x"])
    app.complete(*app.claim())
    driver = app.store.connect()
    given: list[tuple] = []

    def lost(*params):
        monkeypatch.undo()
        given.append(params)
        raise StoreUnavailable("the line went dead")

    monkeypatch.setattr(driver, "at_once", lost)
    assert taken(app) == []
    with connected(app) as other:
        other.add(["y"])
    with pytest.raises(StoreConflict, match="done again"):
        driver.at_once(*given[0])
    driver.rollback()
    assert app.counts() == app.recount() == {"a": {"done": 1, "pending": 1}}


@pytest.mark.fault(26)
@pytest.mark.parametrize("name", ["add_at_once", "claim_at_once"])
def test_a_write_at_once_that_arrives_after_it_was_done_again_does_nothing(app, name):
    app.pipeline({"a": []})
    app.add(["x"])
    mark = Mark(new_identity(), 1)
    late, owner = app.store.another().connect(), app.store.another().connect()
    assert owner.begin(mark, exclusive=False, in_doubt=True).fresh
    owner.commit()
    stage, generation = app.stage("a").id, app.store.cache["layout"].generation
    params = {
        "add_at_once": {
            "pipeline": 1,
            "key": "y",
            "data": "{}",
            "priority": 0,
            "slot": 5,
            "stages": f"{{{stage}}}",
            "type": None,
            "traceparent": None,
        },
        "claim_at_once": {"stage": stage, "worker": app.worker("w").id, "most": 5},
    }[name]
    with pytest.raises(StoreConflict, match="done again"):
        late.at_once(mark, app.store.statements[name], {**params, "generation": generation}, ())
    late.rollback()
    assert app.counts() == app.recount() == {"a": {"pending": 1}}
    for driver in (late, owner):
        driver.close()


def test_one_item_after_another_is_looked_at_first_only_if_the_last_one_was_known(url, trips):
    with Holdfast(url, [PipelineSpec.build("p", [StageSpec("a", handler)])]) as app:
        app.add("p", ["w"])
        looks = []
        for key in ("x", "y", "y", "y", "z", "v"):
            trips.clear()
            app.add("p", [key])
            looks.append(any("SELECT key, data" in text for text in trips[0]))
    assert looks == [False, False, False, True, True, False]


# How statements travel -----------------------------------------------------------------------------------------------


@pytest.fixture
def wire(postgres):
    with psycopg.connect(postgres, autocommit=True) as connection:
        yield Wire(connection)


class Number(enum.IntEnum):
    ONE = 1


class Word(enum.StrEnum):
    YES = "yes"


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("bigint", 2**63 - 1),
        ("bigint", -1),
        ("smallint", 7),
        ("bigint", Number.ONE),
        ("text", "% %% %(a)s $1 é 🐟"),
        ("text", ""),
        ("text", Word.YES),
        ("text", None),
        ("bigint", None),
        ("float8", 0.1),
        ("float8", float("inf")),
        ("bool", True),
        ("bool", False),
    ],
)
def test_a_value_comes_back_as_it_went_out(wire, kind, value):
    text = f"SELECT CAST(%(a)s AS {kind}), '100%%', CAST(%(a)s AS {kind})"
    for _ in range(KEEP_FROM + 2):
        assert wire.ask(text, {"a": value}) == [(value, "100%", value)]


def test_a_text_with_a_nul_is_refused_not_cut(wire):
    with pytest.raises(psycopg.DataError, match="NUL"):
        wire.ask("SELECT CAST(%(a)s AS text)", {"a": "before\0after"})
    assert wire.ask("SELECT 1", {}) == [(1,)]


def test_a_list_of_texts_arrives_whole(store):
    texts = ["plain", "", "NULL", 'quote"', "back\\slash", "{brace}", "a,b", "new\nline", " space "]
    driver = store.connect()
    driver.ready()
    packed = driver.dialect.pack_list(texts)
    assert driver._execute("SELECT unnest(CAST(%(a)s AS text[]))", {"a": packed}) == [(text,) for text in texts]


def test_rows_arrive_whole(store):
    texts = ["plain", "", "NULL", 'quote"', "back\\slash", "{brace}", "a,b", "new\nline", " space ", None]
    rows = [(number or None, text, -number) for number, text in enumerate(texts)]
    driver = store.connect()
    driver.ready()
    table = driver.dialect.rows([("a", "bigint"), ("b", "text"), ("c", "smallint")])
    assert driver._execute(f"SELECT r.a, r.b, r.c FROM {table}", {"rows": driver.dialect.pack_rows(rows)}) == rows


def test_what_is_large_passes_in_both_directions(wire):
    large = "x" * 20_000_000
    assert wire.ask("SELECT CAST(%(a)s AS text)", {"a": large}) == [(large,)]
    assert wire.ask_all([("SELECT CAST(%(a)s AS text)", {"a": large}), ("SELECT 2", None)]) == [[(large,)], [(2,)]]


def test_statements_that_travel_together_end_with_the_first_that_fails(wire):
    asked = [("SELECT 1", None), ("SELECT 1 / 0", {}), ("CREATE TEMPORARY TABLE never (a int)", None)]
    with pytest.raises(psycopg.errors.DivisionByZero):
        wire.ask_all(asked)
    assert wire.ask("SELECT to_regclass('never')", None) == [(None,)]
    assert wire.ask_all([("SELECT 1", {}), ("SELECT 2", {})]) == [[(1,)], [(2,)]]


def test_what_the_server_was_not_told_to_keep_any_more_is_kept_later(wire):
    often, fails = ("SELECT CAST(%(a)s AS bigint)", {"a": 1}), ("SELECT 1 / CAST(%(a)s AS bigint)", {"a": 0})
    for _ in range(KEEP_FROM - 1):
        wire.ask(*often)
    with pytest.raises(psycopg.errors.DivisionByZero):
        wire.ask_all([fails, often])
    for _ in range(3):
        assert wire.ask(*often) == [(1,)]


def test_what_the_server_was_told_to_keep_before_something_failed_is_kept(wire):
    often, fails = ("SELECT CAST(%(a)s AS bigint)", {"a": 1}), ("SELECT 1 / CAST(%(a)s AS bigint)", {"a": 0})
    for _ in range(KEEP_FROM - 1):
        wire.ask(*often)
    with pytest.raises(psycopg.errors.DivisionByZero):
        wire.ask_all([often, fails])
    for _ in range(3):
        assert wire.ask(*often) == [(1,)]
    assert wire.ask("SELECT statement FROM pg_prepared_statements", None) == [("SELECT CAST($1 AS bigint)",)]


def test_the_server_keeps_what_is_asked_often(wire):
    for n in range(6):
        assert wire.ask("SELECT CAST(%(a)s AS bigint)", {"a": n}) == [(n,)]
        assert wire.ask("SELECT CAST(%(a)s AS text)", {"a": str(n)}) == [(str(n),)]
    kept = wire.ask("SELECT statement FROM pg_prepared_statements ORDER BY 1", None)
    assert kept == [("SELECT CAST($1 AS bigint)",), ("SELECT CAST($1 AS text)",)]


@pytest.mark.fault(36)
def test_a_kept_statement_has_the_same_name_in_every_session_and_shares_it_with_no_other(store):
    """A pooler hands sessions round: a name that meant another statement there would run that one, without an error."""
    asked = [
        ("SELECT CAST(%(a)s AS bigint)", {"a": 1}),
        ("SELECT CAST(%(a)s AS text)", {"a": "x"}),
        ("SELECT 1 + %(a)s", {"a": 2}),
    ]
    found = []
    for order in (asked, asked[::-1]):
        session = store.another()
        wire = Wire(session.connect().connection)
        for one in order * KEEP_FROM:
            wire.ask(*one)
        found.append(dict(wire.ask("SELECT name, statement FROM pg_prepared_statements", None)))
        session.close()
    assert found[0] == found[1]
    assert sorted(found[0].values()) == ["SELECT 1 + $1", "SELECT CAST($1 AS bigint)", "SELECT CAST($1 AS text)"]


def test_a_signal_is_heard_while_an_answer_is_waited_for(store):
    """Ctrl-C ends a call that waits for a lock or a slow server, and leaves a store that can be used."""
    driver = store.connect()

    def work(tx):
        threading.Timer(0.2, partial(os.kill, os.getpid(), signal.SIGINT)).start()
        driver.run_text("SELECT pg_sleep(60)")

    with pytest.raises(KeyboardInterrupt):
        store.write(work)
    asleep = "SELECT COUNT(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)' AND state = 'active'"
    wait_for(lambda: store.read(lambda tx: driver.run_text(asleep)) == [(0,)])


def test_what_nobody_waits_for_goes_out_before_what_follows(app, trips):
    app.pipeline({"a": []})

    def work(tx):
        trips.clear()
        tx.record("said", n=1)
        tx.count(7, State.DONE, 1)
        tx.flush()
        table = tx.store.driver.dialect.table("counts")
        return tx.store.driver.run_text(f"SELECT n FROM {table} WHERE stage = 7")

    assert app.store.write(work) == [(1,)]
    [together, commit] = trips
    assert [text.split()[0] for text in together] == ["INSERT", "INSERT", "INSERT", "SELECT"]
    assert commit[-1] == "COMMIT"
