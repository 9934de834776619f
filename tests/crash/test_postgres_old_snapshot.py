"""A transaction stays open for long, and the server can clear nothing away: claims stay quick, and people are warned."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from statistics import median
from time import perf_counter
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from holdfast import Pipeline
from holdfast.app import Holdfast
from holdfast.cli import commands
from holdfast.engine import doctor_findings
from holdfast.engine.claim import claim
from holdfast.engine.layout import layout
from holdfast.store import Store, Transaction
from holdfast.store.postgres_address import read_url
from tests.support.effort import effort
from tests.support.waiting import wait_for

AGE = "SELECT EXTRACT(epoch FROM clock_timestamp() - xact_start)::float8, pid FROM pg_stat_activity WHERE pid = %s"

BATCH = 500

pytestmark = [
    pytest.mark.fault(34),
    pytest.mark.direct("a transaction that idles keeps a session of the pooler"),
    pytest.mark.parametrize("database", ["postgres"]),
]


@contextmanager
def old_snapshot(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(read_url(url)[0]) as conn:
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        conn.execute("SELECT pg_current_xact_id()")
        yield conn


def test_doctor_shows_the_oldest_transaction_and_warns_if_it_is_left_open(
    store: Store, url: str, monkeypatch: pytest.MonkeyPatch
):
    with old_snapshot(url) as conn:
        [(age, process)] = wait_for(
            lambda: [found for found in conn.execute(AGE, [conn.info.backend_pid]).fetchall() if found[0] > 0.2]
        )
        told = CliRunner().invoke(commands, ["doctor", "--json", "--store", url])
        facts = json.loads(told.stdout)["store"]
        assert facts["oldest_transaction_seconds"] >= round(age, 1)
        usual = CliRunner().invoke(commands, ["doctor", "--exit-code", "--store", url])
        assert "oldest transaction seconds:" in usual.stdout
        assert "to look at:" not in usual.stdout
        assert usual.exit_code == 0
        monkeypatch.setattr(doctor_findings, "OPEN_SECONDS", 0.1)
        warned = CliRunner().invoke(commands, ["doctor", "--exit-code", "--store", url])
        assert f"to look at: the transaction of process {process} of the server has been open for" in warned.stdout
        assert warned.exit_code == 1


class Undone(Exception):
    """Ends a transaction without a trace."""


def seconds_of_claim(app: Holdfast, stage: int) -> float:
    """Without its commit, and undone, so that the next finds the same."""
    took: list[float] = []

    def work(tx: Transaction) -> None:
        began = perf_counter()
        leases = claim(tx, worker=7, stage=stage, most=BATCH)
        took.append(perf_counter() - began)
        assert len(leases) == BATCH
        raise Undone

    with suppress(Undone):
        app.store.write(work)
    return took[-1]


def test_a_claim_stays_quick_while_a_snapshot_keeps_what_was_claimed_before(store: Store, url: str):
    """Beside the claim of a stage of which nothing was claimed yet, in turns, so that a busy machine is the same for both."""
    pipelines = [Pipeline[Any]("churned"), Pipeline[Any]("fresh")]
    for pipeline in pipelines:
        pipeline.stage(name="read", version="1")(lambda item, ctx: None)
    count = effort(10_000, 50_000)
    with Holdfast(url, [pipeline.spec for pipeline in pipelines]) as app, old_snapshot(url):
        app.register()
        app.add("churned", [{"key": f"item-{number}"} for number in range(count + BATCH)])
        app.add("fresh", [{"key": f"item-{number}"} for number in range(BATCH)])
        found = app.store.read(lambda tx: [layout(tx).find(name, "read") for name in ("churned", "fresh")])
        churned, fresh = (row.id for row in found if row is not None)
        for _ in range(count // BATCH):
            assert len(app.store.write(lambda tx: claim(tx, worker=7, stage=churned, most=BATCH))) == BATCH
        took = [(seconds_of_claim(app, churned), seconds_of_claim(app, fresh)) for _ in range(15)]
    assert median(first for first, _ in took) <= 5 * median(second for _, second in took)
