"""Somebody's transaction stays open for long, and the server can clear nothing away: who looks for trouble is told."""

from __future__ import annotations

import json

import psycopg
import pytest
from click.testing import CliRunner

from holdfast.cli import commands
from holdfast.store import Store
from holdfast.store.postgres_address import read_url
from tests.support.waiting import wait_for

AGE = "SELECT EXTRACT(epoch FROM clock_timestamp() - xact_start)::float8 FROM pg_stat_activity WHERE pid = pg_backend_pid()"


@pytest.mark.fault(34)
@pytest.mark.direct("a transaction that idles keeps a session of the pooler")
@pytest.mark.parametrize("database", ["postgres"])
def test_doctor_tells_how_old_the_oldest_transaction_is(store: Store, url: str):
    with psycopg.connect(read_url(url)[0]) as conn:
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        [(age,)] = wait_for(lambda: [found for found in conn.execute(AGE).fetchall() if found[0] > 0.2])
        told = CliRunner().invoke(commands, ["doctor", "--json", "--store", url])
        facts = json.loads(told.stdout)["store"]
        assert facts["oldest_transaction_seconds"] >= round(age, 1)
        assert "oldest transaction seconds:" in CliRunner().invoke(commands, ["doctor", "--store", url]).stdout
