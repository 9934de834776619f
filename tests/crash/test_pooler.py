"""Workers behind a transaction pooler: more connections than sessions, kills, strangers in the same sessions."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import psycopg
import pytest

from tests.support.effort import effort
from tests.support.pooler import VARIABLE, Pooler
from tests.support.processes import ROOT, Crew, crew_on, wait_for
from tests.support.schemas import Schemas, address
from tests.support.unharmed import STAGES

#: How many seconds the long test takes, if it is to be run at all.
SOAK = "HOLDFAST_SOAK_SECONDS"
WORKERS = 3
#: Quick, and aimed at transactions and at who may write.
PART = (
    "tests/engine/test_claim.py",
    "tests/engine/test_complete.py",
    "tests/engine/test_fence.py",
    "tests/engine/test_reap.py",
    "tests/worker/test_once.py",
)
PATIENCE_SECONDS = 90

pytestmark = [pytest.mark.fault(36), pytest.mark.req("P8", "J1", "J2")]


@contextmanager
def stranger(pooler: Pooler, postgres: str) -> Iterator[None]:
    """A client of another program in the same sessions, which prepares statements there and throws all of them away."""
    ended = threading.Event()

    def run() -> None:
        with psycopg.connect(pooler.through(postgres), autocommit=True) as connection:
            while not ended.wait(0.005):
                connection.pgconn.exec_(b"PREPARE _pg3_0 AS SELECT 1")
                connection.pgconn.exec_(b"DEALLOCATE ALL")

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def survive(crew: Crew, rng: random.Random, kills: int) -> None:
    """Let workers be killed at random moments, each replaced by another, until all that was added is done."""
    crew.add(pages(rng, 40, "first"))
    workers = [crew.start(f"w{number}", ready=False) for number in range(WORKERS)]
    for kill in range(kills):
        wanted = len(crew.ledger.ends()) + rng.randrange(1, 30)
        wait_for(lambda wanted=wanted: len(crew.ledger.ends()) >= wanted or crew.is_done(), PATIENCE_SECONDS)
        victim = rng.randrange(WORKERS)
        workers[victim].kill()
        crew.add(pages(rng, 10, f"more-{kill}"))
        workers[victim] = crew.start(f"w{victim}", ready=False)
    crew.wait_until_done(PATIENCE_SECONDS)
    crew.judge()
    assert set(crew.states().values()) == {"done"}
    crew.stop()
    assert [worker.wait() for worker in workers] == [0] * WORKERS, crew.all_said()


def pages(rng: random.Random, count: int, prefix: str) -> list[dict[str, str]]:
    return [
        {"key": f"{prefix}-{number}", **{stage: f"sleep {rng.choice([0.0, 0.005, 0.02])}" for stage in STAGES}}
        for number in range(count)
    ]


@pytest.mark.parametrize("company", ["alone", "with a stranger"])
def test_three_workers_that_are_killed_share_three_sessions_and_complete_everything_once(
    pooler: Pooler, postgres: str, schemas: Schemas, tmp_path: Path, company: str
):
    schema = schemas.take()
    with (
        nullcontext() if company == "alone" else stranger(pooler, postgres),
        crew_on(pooler.through(address(postgres, schema)), tmp_path, "tests.support.books:patient_books") as crew,
    ):
        survive(crew, random.Random(36), kills=4)
    schemas.give_back(schema)


def test_workers_outlive_their_pooler(postgres: str, schemas: Schemas, tmp_path: Path):
    """It is killed with all its clients connected, and comes back."""
    schema = schemas.take()
    with (
        Pooler(postgres) as pooler,
        crew_on(pooler.through(address(postgres, schema)), tmp_path, "tests.support.books:patient_books") as crew,
    ):
        crew.add(pages(random.Random(1), 60, "page"))
        worker = crew.start("w")
        wait_for(lambda: len(crew.ledger.ends()) >= 20)
        pooler.restart()
        crew.wait_until_done()
        crew.judge()
        assert set(crew.states().values()) == {"done"}
        crew.stop()
        assert worker.wait() == 0, crew.all_said()
    schemas.give_back(schema)


@pytest.mark.usefixtures("pooler")  # where there is none, this says so
@pytest.mark.skipif(
    effort(0, 1) == 1, reason="make testall runs all of these tests behind a pooler, not a part of them"
)
def test_a_part_of_the_tests_of_the_engine_and_of_workers_passes_behind_a_pooler():
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-k",
        "postgres",
        *PART,
    ]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, VARIABLE: "1"}, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(not effort(0, 1) and SOAK not in os.environ, reason=f"takes an hour: make testall, or set {SOAK}")
def test_an_hour_of_kills_behind_a_pooler_loses_nothing(postgres: str, schemas: Schemas, tmp_path: Path):
    """Round after round on new tables; now and then a new pooler, with another number of sessions, and a stranger or none."""
    seconds = float(os.environ.get(SOAK, "3600"))
    rng = random.Random(seed := int(os.environ.get("HOLDFAST_SEED", time.time())))
    print(f"HOLDFAST_SEED={seed}")
    give_up_at = time.monotonic() + seconds
    rounds = 0
    while time.monotonic() < give_up_at:
        with (
            Pooler(postgres, sessions=rng.randint(1, 3)) as pooler,
            stranger(pooler, postgres) if rng.random() < 0.5 else nullcontext(),
        ):
            for _ in range(5):
                rounds += 1
                schema = schemas.take()
                folder = tmp_path / str(rounds)
                folder.mkdir()
                place = pooler.through(address(postgres, schema))
                with crew_on(place, folder, "tests.support.books:patient_books") as crew:
                    survive(crew, rng, kills=rng.randrange(6))
                schemas.give_back(schema)
