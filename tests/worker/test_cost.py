"""What a step costs, in counts: statements, commits, rows and bytes of the log per item, on both databases.

`make bench` has the times, which depend on the machine. Counts hardly do, so a change that makes every step dearer is seen
here. The bounds leave room for a machine on which commits find less to gather; what is meant to be cheaper tightens them.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pytest

from holdfast import Holdfast, Pipeline
from tests.support.cluster import Cluster

ITEMS = 600

#: One process, one server.
pytestmark = pytest.mark.together("cost")


@dataclass
class Cost:
    """Of the whole run, by count."""

    statements: int
    commits: int
    rows: int
    #: Bytes of the write-ahead log.
    log_bytes: int

    def per_step(self, steps: int) -> dict[str, float]:
        return {name: round(value / steps, 3) for name, value in vars(self).items()}


class Meter(Protocol):
    """Counts what a store is asked to do."""

    url: str

    def start(self) -> None: ...

    def read(self) -> Cost: ...


class SqliteMeter:
    """Every connection tells its statements; a reader that stays keeps the log from being cut off."""

    def __init__(self, file: Path, patch: pytest.MonkeyPatch) -> None:
        self.url = f"sqlite:///{file}"
        self._file = file
        self._statements: list[str] = []
        self._rows: list[int] = []
        meter = self

        class Counting(sqlite3.Connection):
            def __init__(self, *given: Any, **named: Any) -> None:
                super().__init__(*given, **named)
                self.set_trace_callback(meter._statements.append)

            def close(self) -> None:
                # A connection that is closed has no changes to tell of any more.
                try:
                    meter._rows.append(self.total_changes)
                except sqlite3.ProgrammingError:
                    pass
                super().close()

        self._connect = sqlite3.connect
        patch.setattr(sqlite3, "connect", lambda *given, **named: self._connect(*given, factory=Counting, **named))

    def start(self) -> None:
        self._reader = self._connect(self._file)
        self._reader.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._reader.execute("SELECT count(*) FROM sqlite_master").fetchall()
        self._statements.clear()
        self._rows.clear()

    def read(self) -> Cost:
        log = Path(f"{self._file}-wal").stat().st_size
        self._reader.close()
        commits = sum(text.startswith("COMMIT") for text in self._statements)
        return Cost(len(self._statements), commits, sum(self._rows), log)


class PostgresMeter:
    """A server of its own: its log of statements, its statistics and its write-ahead log are nobody else's."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.url = cluster.database(f"cost_{secrets.token_hex(4)}")

    def start(self) -> None:
        self._before = self._look()

    def read(self) -> Cost:
        after = self._look()
        return Cost(*(now - then for now, then in zip(after, self._before, strict=True)))

    def _look(self) -> tuple[int, int, int, int]:
        # The log first: what is asked here is none of the store's statements, but for those of the look before.
        statements = self._cluster.said("LOG:  statement: ") + self._cluster.said("LOG:  execute ")
        commits = self._cluster.said(": COMMIT") + self._cluster.said("; COMMIT")
        with psycopg.connect(self.url, autocommit=True) as conn:
            [(rows,)] = conn.execute(
                "SELECT coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0)::bigint FROM pg_stat_user_tables"
            ).fetchall()
            [(place,)] = conn.execute("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint").fetchall()
        return statements, commits, rows, place


@pytest.fixture(scope="module")
def own_server() -> Iterator[Cluster]:
    # The first change of a page after a checkpoint would put all of it into the log, whenever that happens to be.
    calm = {"full_page_writes": "off", "autovacuum": "off", "log_statement": "all"}
    with Cluster() as cluster, cluster.setting(**calm):
        yield cluster


@pytest.fixture
def meter(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Meter:
    if database == "sqlite":
        return SqliteMeter(tmp_path / "store.db", monkeypatch)
    return PostgresMeter(request.getfixturevalue("own_server"))


def pipeline(meter: Meter, stages: int) -> Pipeline:
    made = Pipeline("cost", store=meter.url)
    for number in range(1, stages + 1):
        made.stage(name=f"s{number}", after=[f"s{number - 1}"] if number > 1 else [])(_idle)
    return made


async def _idle(item: Any, ctx: Any) -> None:
    return None


def items() -> list[dict[str, Any]]:
    return [{"key": f"item-{number:05d}", "page": number} for number in range(ITEMS)]


def drain(meter: Meter, stages: int) -> dict[str, float]:
    """What a step costs when all items go through stages that do nothing, the worker's start and end included."""
    made = pipeline(meter, stages)
    made.add(items())
    meter.start()
    with Holdfast(meter.url, [made.spec]) as app:
        summary = app.run()
    cost = meter.read()
    assert [stage.states for stage in summary.pipelines[0].stages] == [{"done": ITEMS}] * stages
    return cost.per_step(ITEMS * stages)


def check(found: dict[str, float], **most: float) -> None:
    dearer = {name: (value, most[name]) for name, value in found.items() if value > most[name]}
    assert not dearer, f"found and allowed per step: {dearer}; all: {found}"


def test_an_item_of_one_stage_costs_four_rows_and_a_fraction_of_a_statement(meter: Meter, database: str):
    """It leaves waiting, is leased, has an outcome, and its lease goes; the rest is shared by a whole batch."""
    found = drain(meter, stages=1)
    if database == "sqlite":
        check(found, statements=0.8, commits=0.05, rows=4.3, log_bytes=900)
    else:
        check(found, statements=0.35, commits=0.05, rows=4.3, log_bytes=760)


def test_a_step_after_the_first_costs_two_rows(meter: Meter, database: str):
    """Its outcome, and a lease that moves on in place: three stages write eight rows."""
    found = drain(meter, stages=3)
    if database == "sqlite":
        check(found, statements=0.4, commits=0.025, rows=2.85, log_bytes=700)
    else:
        check(found, statements=0.16, commits=0.025, rows=2.85, log_bytes=620)


def test_items_added_in_bulk_cost_two_rows_and_hardly_a_statement(meter: Meter, database: str):
    made = pipeline(meter, 1)
    with Holdfast(meter.url, [made.spec]) as app:
        app.register()
        meter.start()
        app.add(made.name, items())
    found = meter.read().per_step(ITEMS)
    check(found, statements=0.08, commits=0.01, rows=2.1, log_bytes=200 if database == "sqlite" else 640)
