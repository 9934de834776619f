"""Hot statements cost the same at any size: they read the rows they take, whatever the statistics say.

On PostgreSQL the server counts the rows a transaction read; on SQLite the machine counts its steps.
"""

from __future__ import annotations

import pytest

from holdfast.engine.claim import claim
from holdfast.engine.due_retries import promote

pytestmark = pytest.mark.req("J6")

MANY = 6_000
sqlite_only = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
postgres_only = pytest.mark.parametrize("database", ["postgres"], indirect=True)


@pytest.fixture
def queue(app):
    app.pipeline({"a": [], "b": []})
    return app


def fill(app, rows, *, first=1):
    """Put so many items into waiting, at both stages, and into delayed; quicker than adding them."""
    numbers = {
        "postgres": f"generate_series({first}, {first + rows - 1}) AS n(x)",
        "sqlite": f"(WITH RECURSIVE n(x) AS (SELECT {first} UNION ALL SELECT x + 1 FROM n WHERE x < {first + rows - 1}) "
        "SELECT x FROM n) AS n",
    }[app.store.connect().dialect.name]
    app.execute(
        "INSERT INTO holdfast_items (id, pipeline, key, data, priority, created_at, updated_at) "
        f"SELECT x, 1, 'filled ' || x, '{{}}', 0, 0, 0 FROM {numbers}"
    )
    for stage in ("a", "b"):
        app.execute(
            "INSERT INTO holdfast_waiting (stage, priority, item, attempts, alone, rerun) "
            f"SELECT {app.stage(stage).id}, 0, x, 0, 0, 0 FROM {numbers}"
        )
    app.execute(
        "INSERT INTO holdfast_delayed (item, stage, due_at, attempts, alone, rerun) "
        f"SELECT x, 0, {app.clock.now()} + x - {first} - 100, 0, 0, 0 FROM {numbers}"
    )


def plan(app, name, /, **params):
    """How the database would run a statement, as text."""
    store = app.store
    statement = store.statements[name]

    def ask(tx):
        packed = store.driver.dialect.pack_lists(statement, params)
        if store.driver.dialect.name == "postgres":
            return "\n".join(row[0] for row in store.driver._execute(f"EXPLAIN {statement.text}", packed))
        steps = statement.text.split(";\n")
        return "\n".join(row[3] for step in steps for row in store.driver._run(f"EXPLAIN QUERY PLAN {step}", packed))

    return store.read(ask)


@postgres_only
@pytest.mark.parametrize("statistics", ["never taken", "up to date"])
def test_on_postgresql_calls_of_an_item_are_found_by_the_index_of_items(app, statistics):
    """However many others there are, whether to show them or to settle what an attempt has left open."""
    app.execute(
        "INSERT INTO holdfast_calls (stage, item, name, state, lease, life, amount, resource, model, tokens_in, tokens_out, "
        f"facts, day, at) SELECT 1, x, 'c', 'done', x, 1, 1, '', '', 0, 0, '{{}}', 1, x FROM generate_series(1, {MANY}) AS n(x)"
    )
    if statistics == "up to date":
        app.execute("ANALYZE holdfast_calls")
    for name, params in {"intended_calls": {"items": [5, 6], "stages": [1, 2]}, "item_calls": {"item": 7}}.items():
        found = plan(app, name, **params)
        assert "ix_holdfast_calls_item" in found, found
        assert "Filter: (item" not in found and "Filter: ((item" not in found, found
    assert "ix_holdfast_calls_intended" in plan(app, "calls_left_open", most=500)


@pytest.mark.parametrize("statistics", ["never taken", "up to date"])
def test_what_is_to_be_looked_up_is_found_in_a_stretch_of_items_however_many_there_are(queue, statistics):
    fill(queue, MANY)
    queue.execute(
        "INSERT INTO holdfast_outcomes (item, stage, state, attempts, ended_at, output_hash) "
        f"SELECT item, stage, 'done', 1, 0, 'h' FROM holdfast_waiting WHERE stage = {queue.stage('a').id}"
    )
    queue.execute(
        "INSERT INTO holdfast_lookups (source, key, mark, at) SELECT 1, CAST(id AS TEXT), 'dh', 0 FROM holdfast_items"
    )
    if statistics == "up to date":
        queue.execute("ANALYZE")
    given = {"source": 1, "of": "d", "after": 1000, "until": 1200, "again": -1, "most": 200}
    for name, whose in {"results_to_look_up": {"stage": 1}, "items_to_look_up": {"pipeline": 1}}.items():
        found = plan(queue, name, **given, **whose)
        assert not [line for line in found.splitlines() if "SCAN" in line or "Seq Scan" in line], found


@pytest.mark.parametrize("statistics", ["never taken", "up to date"])
def test_memos_are_read_in_chunks_and_deleted_without_a_look_at_the_others(queue, statistics):
    fill(queue, MANY)
    queue.execute(
        "INSERT INTO holdfast_memos (stage, item, name, state, version, idempotency_key, lease, value, at) "
        "SELECT stage, item, 'm', 'done', '1', 'k', 1, '1', 0 FROM holdfast_waiting"
    )
    if statistics == "up to date":
        queue.execute("ANALYZE")
    stage = queue.stage("a").id
    for name, given in {
        "texts_of_memos": {"item": MANY // 2, "name": "m", "most": 100},
        "hashes_in_memos": {"item": MANY // 2, "name": "m", "most": 100},
        "forget_memos": {"items": [5, 6]},
    }.items():
        found = plan(queue, name, stage=stage, **given)
        scans = ("SCAN holdfast", "Seq Scan", "TEMP B-TREE", "Sort")
        assert not [line for line in found.splitlines() if line.strip().startswith(scans)], found


# SQLite --------------------------------------------------------------------------------------------------------------


@sqlite_only
def test_on_sqlite_a_claim_searches_by_the_primary_key_and_sorts_nothing(queue):
    few = plan(queue, "claim", stage=1, worker=1, most=100, now=0)
    assert "SEARCH holdfast_waiting USING PRIMARY KEY (stage=?)" in few
    assert "SCAN holdfast" not in few
    assert "TEMP B-TREE" not in few
    fill(queue, MANY)
    queue.store.driver.connection.execute("ANALYZE")
    assert plan(queue, "claim", stage=1, worker=1, most=100, now=0) == few


@sqlite_only
def test_on_sqlite_finishing_and_promoting_search_and_scan_nothing(queue):
    for name, params in {
        "take_leases": {"stage": 1, "leases": [1, 2]},
        "move_leases": {"stage": 1, "next": 2, "leases": [1, 2], "now": 0},
        "take_due": {"now": 0, "most": 10},
        "next_due": {},
        "lock_items": {"items": [1]},
        "begin_if_ready": {"stage": 2, "items": [1], "before": [1], "needed": 1, "since": 0},
        "waits_for": {"stage": 2, "items": [1], "before": [1], "needed": 1, "pipeline": 1, "of": "p"},
        "read_results": {"items": [1], "stages": [1], "most": 10},
        "look_for_work": {"stages": [1, 2]},
    }.items():
        found = plan(queue, name, **params).replace("SCAN holdfast_pipelines", "")  # a handful
        assert "SCAN holdfast" not in found, name
        assert "TEMP B-TREE" not in found, name
    assert "ix_holdfast_delayed_due (due_at<?)" in plan(queue, "take_due", now=0, most=10)


@sqlite_only
@pytest.mark.parametrize("most", [1, 100])
def test_on_sqlite_a_claim_takes_no_more_steps_with_many_waiting_than_with_few(queue, most):
    stage = queue.stage("a").id

    def steps():
        count = 0

        def one_more():
            nonlocal count
            count += 1

        queue.store.driver.connection.set_progress_handler(one_more, 1)
        queue.store.write(lambda tx: claim(tx, 1, stage, most))
        queue.store.driver.connection.set_progress_handler(None, 1)
        return count

    fill(queue, 500)
    few = steps()
    fill(queue, MANY, first=501)
    assert steps() <= 1.1 * few


# PostgreSQL ----------------------------------------------------------------------------------------------------------


def rows_read(app, work):
    """How many rows of each table the work reads, by scan or by index."""

    def so_far(tx):
        table = tx.store.driver.dialect.table
        return dict(
            tx.store.driver.run_text(
                "SELECT relname, seq_tup_read + COALESCE(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables "
                f"WHERE relid IN ('{table('waiting')}'::regclass, '{table('items')}'::regclass, "
                f"'{table('delayed')}'::regclass)"
            )
        )

    def whole(tx):
        before = so_far(tx)
        work(tx)
        return {name: read - before[name] for name, read in so_far(tx).items()}

    return app.store.write(whole)


def analyse(app):
    for table in ("waiting", "items", "leases", "delayed"):
        app.store.driver.connection.execute(f"ANALYZE {app.store.driver.dialect.table(table)}")


def work_a_while(app):
    """Long enough for the server to settle on one plan for every execution to come."""
    for n in range(20):
        app.add([f"early {n}"])
        app.complete(app.claim(stage="a")[0])
        app.claim(stage="b")
        app.promote()


STATISTICS = ["never taken", "taken while nothing waited", "up to date"]


@postgres_only
@pytest.mark.parametrize("statistics", STATISTICS)
@pytest.mark.parametrize("connection", ["new", "old"])
def test_on_postgresql_a_claim_reads_the_rows_it_takes_and_no_other(queue, statistics, connection):
    """A thousand times as many waiting rows than when the connection was made: no statistics may turn the plan."""
    if statistics == STATISTICS[1]:
        analyse(queue)
    if connection == "old":
        work_a_while(queue)
    other = queue.beside()
    fill(other, MANY, first=1001)
    other.store.close()
    if statistics == STATISTICS[2]:
        analyse(queue)
    stage, taken = queue.stage("a").id, 0
    for most in (1, 100, 500):
        read = rows_read(queue, lambda tx, most=most: claim(tx, 1, stage, most))
        taken += most
        # Rows taken before are still passed over until vacuum has been there.
        assert read["waiting"] <= 2 * taken + 50, f"claiming {most} read {read}"
        assert read["items"] <= 2 * taken + 50, f"claiming {most} read {read}"


@postgres_only
@pytest.mark.parametrize("statistics", STATISTICS)
@pytest.mark.parametrize("connection", ["new", "old"])
def test_on_postgresql_promotion_reads_what_is_due_and_no_other(queue, statistics, connection):
    if statistics == STATISTICS[1]:
        analyse(queue)
    if connection == "old":
        work_a_while(queue)
    other = queue.beside()
    fill(other, MANY, first=1001)
    other.store.close()
    if statistics == STATISTICS[2]:
        analyse(queue)
    read = rows_read(queue, lambda tx: promote(tx, 500))
    assert queue.query("SELECT COUNT(*) FROM holdfast_delayed") == [(MANY - 101,)]
    assert read["delayed"] <= 500, f"promoting 101 read {read}"
    assert read["items"] <= 500, f"promoting 101 read {read}"


@postgres_only
def test_on_postgresql_a_claim_walks_the_primary_key_in_order(queue):
    fill(queue, MANY)
    analyse(queue)
    found = plan(queue, "claim", stage=1, worker=1, most=100, now=0)
    assert "Index Scan using waiting_pkey on waiting" in found
    assert "Tid Scan on waiting" in found
    assert "Seq Scan on waiting" not in found


@postgres_only
def test_on_postgresql_promotion_walks_the_index_of_due_times(queue):
    fill(queue, MANY)
    analyse(queue)
    found = plan(queue, "take_due", now=0, most=10)
    assert "Index Scan using ix_holdfast_delayed_due on delayed" in found
    assert "Seq Scan" not in found


@postgres_only
def test_on_postgresql_a_read_is_planned_for_its_indexes_until_it_reads_all(queue):
    asked = (
        "SELECT current_setting('enable_seqscan'), current_setting('enable_material'), current_setting('enable_sort')"
    )

    def look(tx):
        before = tx.store.driver.run_text(asked)
        tx.read_all()
        return before + tx.store.driver.run_text(asked)

    assert queue.store.read(look) == [("off", "off", "off"), ("on", "on", "on")]
    assert queue.store.driver.run_text(asked) == [("on", "on", "on")]
