"""What a PostgreSQL server says no to, in holdfast's words: wait, run again, or look at it."""

from __future__ import annotations

import secrets
from urllib.parse import quote

import psycopg
import pytest
from psycopg import sql

from holdfast import schema as schema_module
from holdfast.errors import StoreBroken, StoreUnavailable
from holdfast.store import open_store
from tests.support.harness import App, connected


@pytest.fixture
def database():
    return "postgres"


def write(app):
    return app.store.writing(lambda tx: tx.run("add_pipeline", name="q", now=0)).run()


@pytest.mark.fault(29)
def test_a_server_that_is_read_only_for_now_is_waited_for(app):
    app.pipeline({"a": []})
    app.store.driver.connection.execute("SET default_transaction_read_only = on")
    with pytest.raises(StoreUnavailable, match="read-only"):
        write(app)
    assert app.counts() == {}  # who only reads is not held up
    app.store.driver.connection.execute("SET default_transaction_read_only = off")
    write(app)


@pytest.mark.fault(25)
def test_a_connection_that_was_cut_is_made_anew_by_the_next_write(app):
    app.pipeline({"a": []})
    backend = app.store.driver.connection.info.backend_pid
    with connected(app) as other:
        other.query(f"SELECT pg_terminate_backend({backend})")
    with pytest.raises(StoreUnavailable):
        write(app)
    write(app)
    assert len(app.query("SELECT 1 FROM holdfast_pipelines")) == 2


@pytest.mark.fault(33)
def test_a_statement_that_ran_out_of_time_or_patience_is_run_again_later(app):
    app.pipeline({"a": []})
    for setting in ("statement_timeout", "lock_timeout"):
        app.store.driver.connection.execute(f"SET {setting} = '50ms'")
        with connected(app) as other:

            def hold(tx):
                tx.store.driver.run_text(f"LOCK TABLE {tx.store.driver.dialect.table('pipelines')} IN EXCLUSIVE MODE")
                with pytest.raises(StoreUnavailable, match="timeout"):
                    write(app)

            other.store.write(hold)
        app.store.driver.connection.execute(f"SET {setting} = 0")
    write(app)


@pytest.mark.fault(36)
def test_prepared_statements_that_a_pooler_lost_are_done_without(app):
    app.pipeline({"a": []})
    app.add(f"k{n}" for n in range(30))
    for _ in range(12):
        app.claim(stage="a")
    app.store.driver.connection.execute("DEALLOCATE ALL")
    taken = [lease.key for _ in range(12) for lease in app.claim(stage="a")]
    assert taken == [f"k{n}" for n in range(12, 24)]
    assert app.counts() == {"a": {"pending": 6, "in_progress": 24}} == app.recount()


def test_tables_that_are_gone_are_for_a_person_to_look_at(app, url):
    app.pipeline({"a": []})
    app.execute("DROP TABLE holdfast_items CASCADE")
    with pytest.raises(StoreBroken, match=r"items.* does not exist"):
        app.add(["x"])


def test_a_schema_that_does_not_exist_yet_is_no_error(url, clock):
    store = open_store(url, clock=clock)
    assert store.schema_version() == 0
    with pytest.raises(StoreBroken, match="no holdfast tables yet"):
        store.require_schema()
    store.close()


def test_a_role_without_the_right_to_write_is_for_a_person_to_look_at(app, url, postgres):
    app.pipeline({"a": []})
    role, schema = f"r{secrets.token_hex(4)}", app.store.driver.dialect.schema_name
    with psycopg.connect(postgres, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(role)))
        try:
            admin.execute(
                sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(sql.Identifier(schema), sql.Identifier(role))
            )
            admin.execute(
                sql.SQL("GRANT SELECT ON ALL TABLES IN SCHEMA {} TO {}").format(
                    sql.Identifier(schema), sql.Identifier(role)
                )
            )
            lesser = open_store(url.replace("://postgres:@", f"://{role}@").replace("://postgres@", f"://{role}@"))
            assert lesser.schema_version() == schema_module.newest()
            with pytest.raises(StoreBroken, match="permission denied"):
                lesser.write(lambda tx: tx.run("add_pipeline", name="q", now=0), patience_seconds=0)
            lesser.close()
        finally:
            admin.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(role)))
            admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


@pytest.mark.req("P9", "V7")
def test_a_role_from_which_rows_are_hidden_is_refused_with_what_hides_them(app, url, postgres):
    """It would wait for ever for items that it cannot see."""
    app.pipeline({"a": []})
    role, schema = f"r{secrets.token_hex(4)}", app.store.driver.dialect.schema_name
    names = {"role": sql.Identifier(role), "schema": sql.Identifier(schema)}
    with psycopg.connect(postgres, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE ROLE {role} LOGIN").format(**names))
        try:
            admin.execute(sql.SQL("GRANT USAGE ON SCHEMA {schema} TO {role}").format(**names))
            admin.execute(sql.SQL("GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {role}").format(**names))
            lesser = open_store(url.replace("://postgres:@", f"://{role}@").replace("://postgres@", f"://{role}@"))
            lesser.require_schema()
            admin.execute(sql.SQL("ALTER TABLE {schema}.items ENABLE ROW LEVEL SECURITY").format(**names))
            with pytest.raises(StoreBroken, match=f"row-level security of items hides rows from the role {role}"):
                lesser.require_schema()
            app.store.require_schema()  # an owner sees all
            lesser.close()
        finally:
            admin.execute(sql.SQL("ALTER TABLE {schema}.items DISABLE ROW LEVEL SECURITY").format(**names))
            admin.execute(sql.SQL("DROP OWNED BY {role}").format(**names))
            admin.execute(sql.SQL("DROP ROLE {role}").format(**names))


def test_an_error_in_a_statement_is_not_taken_for_trouble_of_the_store(app):
    with pytest.raises(psycopg.errors.SyntaxError):
        app.execute("SELEKT 1")
    with pytest.raises(psycopg.errors.NotNullViolation):
        app.execute("INSERT INTO holdfast_pipelines (name) VALUES (NULL)")
    write(app)


def test_two_schemas_of_one_database_are_two_stores(app, postgres, clock):
    app.pipeline({"a": []})
    app.add(["x"])
    base = f"{postgres}{'&' if '?' in postgres else '?'}schema="
    for name in ("Mixed Case", 'quo"te', "per%s cent"):
        schema = f"{name} {secrets.token_hex(3)}"
        other = App(open_store(base + quote(schema), clock=clock), clock)
        other.store.upgrade()
        other.pipeline({"a": []})
        assert other.counts() == {}
        other.add(["y", "z"])
        assert other.run_through() == 2
        other.store.close()
        with psycopg.connect(postgres, autocommit=True) as admin:
            admin.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))
    assert app.counts() == {"a": {"pending": 1}}


@pytest.mark.fault(37)
def test_a_listener_hears_what_another_connection_added_and_nothing_else(app):
    app.pipeline({"a": []})
    with connected(app) as ears:
        listener = ears.store.listener()
        assert listener.wait(0) == ()
        assert listener.wait(0) is None
        app.add(["x"])
        assert listener.wait(5) == {app.stage("a").id}
        app.claim()
        assert listener.wait(0.05) is None
        backend = ears.store.driver.connection.info.backend_pid
        app.query(f"SELECT pg_terminate_backend({backend})")
        with pytest.raises(StoreUnavailable):
            listener.wait(5)
        assert listener.wait(5) == ()  # what was said meanwhile is not known
