"""Behind a transaction pooler a session is whoever's transaction comes next: nothing is expected of it, nothing left in it."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import unquote

import psycopg
import pytest

from holdfast import Holdfast, store_engine
from holdfast.errors import StoreBroken, StoreConflict
from holdfast.legacy.open_database import open_old
from holdfast.model.stage import PipelineSpec, StageSpec
from holdfast.store import open_store
from holdfast.store.postgres_prepared import KEEP_FROM, Wire
from holdfast.worker import Settings
from tests.support.harness import App, connected, handler
from tests.support.pooler import Pooler
from tests.support.schemas import address, bare_schema

NUMBER = ("SELECT CAST(%(a)s AS bigint)", {"a": 1})
TEXT = ("SELECT CAST(%(a)s AS text)", {"a": "x"})
KEPT = "SELECT statement FROM pg_prepared_statements ORDER BY statement"

pytestmark = pytest.mark.fault(36)


@pytest.fixture
def database():
    return "postgres"


@pytest.fixture
def pooler(postgres) -> Iterator[Pooler]:
    """One session for all clients, new for each test."""
    with Pooler(postgres, sessions=1) as pooler:
        yield pooler


@pytest.fixture
def url(bare_url, pooler):
    return pooler.through(bare_url)


@pytest.fixture
def session(pooler, postgres) -> Iterator[psycopg.Connection]:
    """Somebody else's way into that session."""
    with psycopg.connect(pooler.through(postgres), autocommit=True, prepare_threshold=None) as connection:
        yield connection


@pytest.fixture
def wires(pooler, postgres) -> Iterator[list[Wire]]:
    connections = [psycopg.connect(pooler.through(postgres), autocommit=True) for _ in range(2)]
    yield [Wire(connection) for connection in connections]
    for connection in connections:
        connection.close()


@pytest.fixture
def app(store, clock):
    return App(store, clock)


# Kept statements ------------------------------------------------------------------------------------------------------


def test_a_kept_statement_that_is_there_already_is_used_and_no_more_are_kept(wires, session):
    """Who shares the session may have other statements to keep, and at any moment another session."""
    first, second = wires
    for _ in range(KEEP_FROM):
        first.ask(*NUMBER)
    for _ in range(KEEP_FROM - 1):
        second.ask(*NUMBER)
    with pytest.raises(psycopg.errors.DuplicatePreparedStatement):
        second.ask(*NUMBER)
    for _ in range(KEEP_FROM + 1):
        assert second.ask(*NUMBER) == [(1,)]
        assert second.ask(*TEXT) == [("x",)]
    assert session.execute(KEPT).fetchall() == [("SELECT CAST($1 AS bigint)",)]
    [(calls,)] = session.execute("SELECT generic_plans + custom_plans FROM pg_prepared_statements").fetchall()
    assert calls == 1 + KEEP_FROM + 1  # once by the first


def test_a_kept_statement_that_is_missing_is_the_last_that_was_kept(wires, session):
    wire = wires[0]
    for _ in range(KEEP_FROM):
        wire.ask(*NUMBER)
        wire.ask(*TEXT)
    session.execute("DEALLOCATE ALL")
    with pytest.raises(psycopg.errors.InvalidSqlStatementName):
        wire.ask_all([TEXT, NUMBER])
    for _ in range(KEEP_FROM + 1):
        assert wire.ask_all([NUMBER, TEXT]) == [[(1,)], [("x",)]]
    assert session.execute(KEPT).fetchall() == []


@pytest.mark.req("P8", "V2")
def test_writes_that_find_their_statements_missing_or_there_already_are_done_once(app, session):
    app.pipeline({"a": []})
    app.add(f"k{n}" for n in range(40))
    connection = app.store.driver.connection
    with connected(app) as other:
        connections = [connection, other.store.connect().connection]
        taken = [lease.key for _ in range(8) for one in (app, other) for lease in one.claim(stage="a")]
        assert session.execute(KEPT).fetchall()
        session.execute("DEALLOCATE ALL")
        taken += [lease.key for _ in range(8) for one in (app, other) for lease in one.claim(stage="a")]
        # Nobody had to connect anew.
        assert connections == [app.store.driver.connection, other.store.driver.connection]
    assert taken == [f"k{n}" for n in range(32)]
    assert app.counts() == {"a": {"pending": 8, "in_progress": 32}} == app.recount()


@pytest.fixture
def hold(url, bare_url, postgres) -> Iterator[Holdfast]:
    """An app that has been asked before to add something in a transaction of the caller's."""
    with Holdfast(url, [PipelineSpec.build("p", [StageSpec("a", handler)])]) as hold:
        hold.upgrade()
        with psycopg.connect(postgres) as direct:
            hold.add("p", ["w"], connection=direct)
        yield hold


def test_a_connection_of_the_callers_stays_open_when_its_driver_is_confused(hold, pooler, postgres):
    """What its own driver had prepared is missing: the caller's transaction is over, its connection is not."""
    with psycopg.connect(pooler.through(postgres), prepare_threshold=0) as own:
        hold.add("p", ["x"], connection=own)
        own.commit()
        own.pgconn.exec_(b"DEALLOCATE ALL")
        with pytest.raises(StoreConflict):
            hold.add("p", ["y"], connection=own)
        own.rollback()
        hold.add("p", ["z"], connection=own)
        own.commit()
    assert {item.key for item in hold.items()} == {"w", "x", "z"}


def test_adding_in_a_transaction_that_has_the_last_session_waits_for_no_other(hold, pooler, postgres):
    with psycopg.connect(pooler.through(postgres), prepare_threshold=None) as own:
        own.execute("SELECT 1")
        hold.add("p", ["x"], connection=own)
    assert {item.key for item in hold.items()} == {"w", "x"}


# The session ----------------------------------------------------------------------------------------------------------

#: All that can be left behind in a session, but statements under names of ours, and what the pooler sets for each client.
LEFT = {
    "settings": "SELECT name FROM pg_settings WHERE source = 'session' AND name <> 'application_name'",
    "locks": "SELECT locktype FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'",
    "channels": "SELECT pg_listening_channels()",
    "cursors": "SELECT name FROM pg_cursors WHERE name <> ''",
    "temporary": "SELECT relname FROM pg_class WHERE relpersistence = 't'",
    "statements": "SELECT name FROM pg_prepared_statements WHERE name NOT LIKE 'holdfast\\_%'",
}


def left_in(session):
    return {what: found for what, asked in LEFT.items() if (found := session.execute(asked).fetchall())}


@pytest.mark.req("P8")
def test_a_worker_leaves_nothing_in_the_session_that_others_get_after_it(bare_url, pooler, session):
    assert left_in(session) == {}

    def save(connection, key):
        connection.exec_driver_sql("SELECT 1")

    def work(item, ctx):
        ctx.effect(save, item.key)

    with Holdfast(pooler.through(bare_url), [PipelineSpec.build("p", [StageSpec("a", work)])]) as hold:
        hold.upgrade()
        hold.add("p", [f"k{n}" for n in range(20)])
        hold.worker(Settings(poll_seconds=0.05)).run(until_drained=True)
        assert hold.status().pipelines[0].stages[0].states == {"done": 20}
        assert hold.check() == []
        assert left_in(session) == {}


def test_a_setting_that_the_pooler_refuses_is_for_a_person_to_look_at(url):
    """Nobody waits for it to pass."""
    store = open_store(f"{url}&options=-cstatement_timeout%3D0")
    try:
        with pytest.raises(StoreBroken, match="unsupported startup parameter"):
            store.schema_version()
    finally:
        store.close()


def test_behind_a_pooler_nobody_listens(store, session, postgres, bare_url):
    """The session would hear it and tell whoever uses it then: it piles up in clients that never asked for it."""
    listener = store.listener()
    assert listener.wait(0) == ()  # as if something had been said: it has to look
    assert listener.wait(0) is None
    assert session.execute(LEFT["channels"]).fetchall() == []
    direct = open_store(bare_url)
    assert direct.listener().wait(0) == ()
    assert len(direct.glance(lambda tx: tx.store.driver.run_text(LEFT["channels"]))) == 1
    direct.close()


def test_an_old_database_is_read_in_a_session_in_which_another_client_has_prepared_something(pooler, postgres, session):
    session.execute("PREPARE _pg3_0 AS SELECT 1")
    with bare_schema(postgres) as there:
        schema = unquote(there).rpartition("search_path=")[2]
        with psycopg.connect(postgres, autocommit=True) as direct:
            direct.execute(f"CREATE TABLE {schema}.old AS SELECT n, n::text AS key FROM generate_series(1, 20) n")
        with open_old(pooler.through(address(postgres, schema))) as old:
            table = old.find("old")
            assert table is not None
            rows = [row for batch in table.batches(["key"], 7) for row in batch]
            assert len(rows) == 20
            assert [table.rows([row.row], ["key"]) for row in rows] == [[row] for row in rows]


def test_an_engine_to_the_stores_database_prepares_nothing(url, store, session):
    engine = store_engine(url)
    with engine.connect() as connection:
        for _ in range(10):
            connection.exec_driver_sql("SELECT 1")
            connection.commit()
    assert left_in(session) == {}
