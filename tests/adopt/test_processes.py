"""Real processes over one table: killed, frozen, stopped, and edited around; every row is completed once.

HOLDFAST_ADOPT_ROWS sets the size of the race; 10000 is the full one.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine

from tests.adopt.racers import Race
from tests.adopt.tables import Jobs
from tests.support.processes import wait_for
from tests.support.slowness import slowness

ROWS = int(os.environ.get("HOLDFAST_ADOPT_ROWS", "500"))
#: Long enough for the full race.
PATIENCE_SECONDS = 60 + ROWS / 20
STALE = 1.0


@pytest.fixture
def race(url: str, tmp_path: Path) -> Iterator[Race]:
    race = Race(url, tmp_path)
    yield race
    race.end()


@pytest.fixture
def jobs(engine: Engine) -> Jobs:
    return Jobs(engine, max_attempts=100)


def fill(jobs: Jobs, *titles: str) -> None:
    with jobs.engine.begin() as connection:
        rows = [{"title": title, "status": "queued", "created_as": str(n)} for n, title in enumerate(titles, 1)]
        connection.execute(jobs.table.insert(), rows)


def open_rows(jobs: Jobs) -> int:
    with jobs.engine.connect() as connection:
        asked = sa.select(sa.func.count()).select_from(jobs.table)
        return connection.execute(asked.where(jobs.table.c.status.in_(["queued", "processing"]))).scalar_one()


def _impatient(engine: Engine) -> Engine:
    """Whoever was frozen inside a transaction keeps its rows, or a whole SQLite file, to itself until it is thawed. Who waited
    for that here could not thaw it."""
    if engine.dialect.name == "sqlite":
        return sa.create_engine(engine.url, connect_args={"timeout": 0.2})
    impatient = sa.create_engine(engine.url)

    @sa.event.listens_for(impatient, "begin")
    def _(connection: sa.Connection) -> None:
        connection.exec_driver_sql("SET LOCAL lock_timeout = '200ms'")

    return impatient


class People:
    """Other sessions: they edit rows, delete some and give some another key, and know what they did."""

    def __init__(self, jobs: Jobs, rng: random.Random, count: int) -> None:
        self._jobs, self._rng, self._count = jobs, rng, count
        self._engine = _impatient(jobs.engine)
        self.edits: dict[str, str] = {}
        self.deleted: set[str] = set()
        self.rekeyed: set[str] = set()

    def act(self) -> None:
        with contextlib.suppress(sa.exc.OperationalError):
            self._act()

    def _act(self) -> None:
        table = self._jobs.table
        name = str(self._rng.randint(1, self._count))
        own = table.c.created_as == name
        what = self._rng.random()
        note = f"edit {len(self.edits)}.{self._rng.random()}"
        changing: sa.Executable = sa.update(table).where(own).values(note=note)
        if what < 0.04:
            changing = sa.delete(table).where(own)
        elif what < 0.08 and name not in self.rekeyed:
            changing = sa.update(table).where(own).values(id=table.c.id + 1_000_000, note=table.c.note)
        with self._engine.begin() as connection:
            done = connection.execute(changing).rowcount
        # Only what was committed is known to have been done.
        if done and what < 0.04:
            self.deleted.add(name)
        elif done and what < 0.08 and name not in self.rekeyed:
            self.rekeyed.add(name)
        elif done:
            self.edits[name] = note


@pytest.mark.req("F1", "F2", "F7", "S2", "S3", "S5")
@pytest.mark.fault(6, 60)
def test_four_processes_that_are_killed_and_frozen_complete_every_row_once(jobs: Jobs, race: Race):
    rng = random.Random(ROWS)
    fill(jobs, *(f"job {n}" for n in range(ROWS)))
    people = People(jobs, rng, ROWS)
    for _ in range(4):
        race.start()
    frozen: dict[int, float] = {}
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    planned, strikes = max(6, ROWS // 100), 0
    while still := open_rows(jobs):
        assert time.monotonic() < give_up_at, race.all_said()
        people.act()
        for pid, until in list(frozen.items()):
            if time.monotonic() > until:
                next(racer for racer in race.racers if racer.pid == pid).thaw()
                del frozen[pid]
        # Evenly over the rows, not over time, which a quick machine needs little of.
        if ROWS - still > ROWS * (strikes + 1) / (planned + 2):
            awake = [racer for racer in race.racers if racer.is_alive and racer.pid not in frozen]
            if not awake:
                continue
            strikes += 1
            victim = rng.choice(awake)
            if rng.random() < 0.5:
                victim.kill()
                race.start()
            else:
                victim.freeze()
                frozen[victim.pid] = time.monotonic() + rng.uniform(0.2, 2 * STALE)
        time.sleep(0.005)
    for racer in race.racers:
        if racer.is_alive:
            assert racer.stop() == 0, racer.said
    rows = {row.created_as: row for row in jobs.rows()}
    assert rows.keys() | people.deleted == {str(n) for n in range(1, ROWS + 1)}
    assert {row.status for row in rows.values()} == {"completed"}
    marks = jobs.marks()
    assert set(marks.values()) == {1} and rows.keys() <= marks.keys()
    for name, note in people.edits.items():
        if name in rows:
            assert rows[name].note == note, name
    said = race.all_said()
    assert "Traceback" not in said and "ERROR" not in said
    assert strikes >= 3 or ROWS < 300


@pytest.mark.req("F8")
@pytest.mark.parametrize("guarded", [True, False])
def test_the_same_race_processes_rows_twice_without_the_guard(jobs: Jobs, race: Race, guarded: bool):
    claimed = twice = rows = 0
    while not rows or (not guarded and not twice and rows < 2000):
        # Without the guard it is a matter of chance, and a matter of time.
        fill(jobs, *["job"] * 200)
        rows += 200
        racers = [race.start("--drain", "--stale", "60", *[] if guarded else ["--unguarded"]) for _ in range(3)]
        assert [racer.wait() for racer in racers] == [0] * 3
        twice += sum(racer.counters["would_have_been_taken_twice"] for racer in racers)
        claimed += sum(racer.counters["claimed"] for racer in racers)
        assert jobs.statuses() == {"completed": rows}
    assert claimed == rows + twice
    assert twice == 0 if guarded else twice > 0


@pytest.mark.req("F2", "S5")
@pytest.mark.fault(6, 8)
def test_a_process_that_was_frozen_finds_its_row_taken_and_changes_nothing(jobs: Jobs, race: Race, tmp_path: Path):
    gate = tmp_path / "gate"
    fill(jobs, f"until {gate}")
    frozen = race.start()
    wait_for(lambda: jobs.row(1).status == "processing")
    frozen.freeze()
    race.start()
    wait_for(lambda: jobs.row(1).attempts == 2)
    other = jobs.row(1).holder
    frozen.thaw()
    time.sleep(2 * STALE / 3)  # the fault itself: it beats again, for a row that is no longer its own
    assert (jobs.row(1).status, jobs.row(1).holder) == ("processing", other)
    gate.touch()
    wait_for(lambda: jobs.row(1).status == "completed")
    wait_for(lambda: "is no longer held; " in frozen.said)
    assert (jobs.row(1).holder, jobs.row(1).attempts) == (other, 2)
    assert jobs.marks() == {"1": 1}
    assert frozen.stop() == 0 and frozen.counters["lost"] == 1


@pytest.mark.req("S5")
@pytest.mark.fault(9)
def test_sigterm_lets_short_rows_finish_and_hands_long_ones_back_within_the_grace(jobs: Jobs, race: Race):
    fill(jobs, "sleep 0.4", "sleep 600", *["quick"] * 5)
    racer = race.start("--grace", "6", "--batch", "7")
    # Both have begun: what is only claimed is handed back.
    wait_for(lambda: "row 1 sleeps" in racer.said and "row 2 sleeps" in racer.said)
    started = time.monotonic()
    assert racer.stop() == 0
    assert time.monotonic() - started < 60 * slowness(), "the long one takes ten minutes"
    assert [(row.status, row.attempts) for row in jobs.rows()][:2] == [("completed", 1), ("queued", 0)]
    assert {(row.status, row.attempts) for row in jobs.rows()} == {("completed", 1), ("queued", 0)}
    assert racer.counters["released"] >= 1


@pytest.mark.fault(10)
def test_a_second_sigterm_and_a_kill_lose_no_row(jobs: Jobs, race: Race):
    fill(jobs, *["sleep 30"] * 2, *["quick"] * 20)
    racer = race.start("--grace", "60")
    wait_for(lambda: jobs.statuses().get("processing", 0) >= 2)
    racer.send(signal.SIGTERM)
    time.sleep(0.05)  # the fault itself: impatience
    racer.send(signal.SIGTERM)
    racer.kill()
    jobs.set(jobs.table.c.title == "sleep 30", title="quick")
    race.start()
    wait_for(lambda: jobs.statuses() == {"completed": 22})
    assert set(jobs.marks().values()) == {1}


@pytest.mark.req("S5", "F3")
@pytest.mark.fault(7)
def test_a_row_that_kills_its_process_uses_up_its_attempts_and_the_others_complete(jobs: Jobs, race: Race):
    fill(jobs, "die", *["quick"] * 12)

    def done() -> bool:
        if not any(racer.is_alive for racer in race.racers):
            race.start("--attempts", "3", "--stale", "0.5")
        return open_rows(jobs) == 0

    wait_for(done, timeout=60)
    assert [row.status for row in jobs.rows()] == ["failed", *["completed"] * 12]
    assert jobs.row(1).attempts == 3
    assert "attempt 3 sent no heartbeat" in jobs.row(1).error
    assert "1" not in jobs.marks()
