"""Settings of the server and of the role that holdfast did not choose change nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from psycopg import sql

from tests.support.cluster import Cluster
from tests.support.processes import crew_on
from tests.support.unharmed import assert_unharmed, pages

ODD = {
    "timezone": "Pacific/Chatham",
    "datestyle": "SQL, DMY",
    "intervalstyle": "sql_standard",
    "search_path": "nowhere",
    "standard_conforming_strings": "off",
    "backslash_quote": "off",
    "bytea_output": "escape",
    "extra_float_digits": "-15",
    "lc_messages": "C",
    "client_encoding": "LATIN1",
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
    "transform_null_equals": "on",
    "plan_cache_mode": "force_generic_plan",
    "enable_indexscan": "off",
    "enable_nestloop": "off",
    "quote_all_identifiers": "on",
}

ODD_KEYS = ["日本語 ☃", "back\\slash", "it's", 'say "x"', "100%", "a_b", "%s", "new\nline", "{1,2}"]


#: One server for all of them: it takes longer to make one than to share it.
pytestmark = pytest.mark.together("postgres-sessions")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def odd_role(cluster: Cluster) -> str:
    """A role whose every session begins with odd settings."""
    cluster.execute("CREATE ROLE odd LOGIN")
    for name, value in ODD.items():
        cluster.execute(sql.SQL("ALTER ROLE odd SET {} = {}").format(sql.Identifier(name), sql.Literal(value)))
    return "odd"


@pytest.mark.fault(35)
@pytest.mark.req("V6", "V8")
def test_no_session_is_idle_in_a_transaction_long_enough_to_be_ended(cluster: Cluster, tmp_path: Path):
    with cluster.setting(idle_in_transaction_session_timeout="200ms"):
        with crew_on(cluster.database("idle"), tmp_path) as crew:
            crew.add(pages(8, 0.5, prefix="slow"))
            crew.add(pages(100, 0.005, prefix="quick"))
            crew.start("w", concurrency=12)
            crew.wait_until_done()
            assert_unharmed(crew)
            assert crew.all_said().count("\n") == 1  # the line with the process's number
        assert cluster.said("idle-in-transaction timeout") == 0


@pytest.mark.fault(39)
@pytest.mark.req("V9", "V12")
@pytest.mark.parametrize("schema", ["holdfast", 'odd "na\\me" of 100%'])
def test_odd_settings_of_the_role_change_nothing(cluster: Cluster, odd_role: str, tmp_path: Path, schema: str):
    database = f"odd {len(schema)}"
    cluster.execute(sql.SQL("CREATE DATABASE {} OWNER odd").format(sql.Identifier(database)))
    url = f"{cluster.url(database, odd_role)}&schema={quote(schema)}"
    began = time.time()
    with crew_on(url, tmp_path) as crew:
        assert crew.app.doctor().store["timezone"] == "Pacific/Chatham"
        crew.add([{"key": key, "fetch": "once:raise back\\slash and it's ☃", "says": key} for key in ODD_KEYS])
        crew.start("w")
        crew.wait_until_done()
        crew.judge()
        assert crew.all_said().count("\n") == 1
        for key in ODD_KEYS:
            shown = crew.app.show(key)
            assert shown.data["says"] == key
            assert [stage.attempts for stage in shown.stages] == [2, 1, 1]
            [failed] = [told for told in shown.history if told.event == "attempt_failed"]
            assert failed.data["error"] == "RuntimeError: back\\slash and it's ☃"
            # Times of day are UTC, whatever the session's zone.
            assert began - 1 < shown.stages[0].started_at.timestamp() < time.time() + 1
            # A filter means the key as it is written.
            assert crew.app.retry(key=key, states=["done"], stage="save", dry_run=True) == {"done": 1}
        assert crew.app.retry(key="*", states=["done"], stage="save", dry_run=True) == {"done": len(ODD_KEYS)}
