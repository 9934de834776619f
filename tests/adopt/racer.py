"""A process that works off `jobs`, as a user's service would; begun, frozen and killed by tests.

    Forked("tests.adopt.racer", ["--url", …, "--batch", "10", "--stale", "1.0"], os.environ)

A row's title says what its handler does: `sleep 0.5`, `die`, `until PATH`; anything else is quick. Each completion leaves
a mark in the same transaction. When it ends in peace it prints its counters as JSON.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import signal
import sys
import time
from pathlib import Path

from holdfast.adopt import Job, Loop
from tests.adopt.places import engine_on
from tests.adopt.tables import Jobs


def prepare() -> None:
    import sqlalchemy.dialects.postgresql.psycopg
    import sqlalchemy.dialects.sqlite  # noqa: F401


def make_loop(options: argparse.Namespace) -> Loop:
    engine = engine_on(options.url)
    jobs = Jobs(engine, max_attempts=options.attempts)

    def handler(job: Job) -> None:
        verb, _, rest = str(job.row["title"]).partition(" ")
        if verb == "sleep":
            logging.info("row %s sleeps", job.row["created_as"])
            until = time.monotonic() + float(rest)
            while time.monotonic() < until:
                time.sleep(0.01)
        elif verb == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif verb == "until":
            while not Path(rest).exists():
                time.sleep(0.01)
        elif verb == "job":
            time.sleep(random.uniform(0.0, 0.002))
        job.effect(jobs.save_mark, job.row["created_as"], by=str(os.getpid()))

    return Loop(
        engine,
        jobs.mapping,
        handler,
        batch=options.batch,
        concurrency=options.concurrency,
        stale_after=options.stale,
        poll=0.05,
        grace=options.grace,
        guarded=not options.unguarded,
        name=f"racer {os.getpid()}",
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--concurrency", type=int, default=2)
    parser.add_argument("--stale", type=float, default=1.0)
    parser.add_argument("--grace", type=float, default=5.0)
    parser.add_argument("--attempts", type=int, default=100)
    parser.add_argument("--drain", action="store_true")
    parser.add_argument("--unguarded", action="store_true")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    counters = make_loop(options).run(drain=options.drain)
    print(json.dumps(counters.as_dict()), flush=True)
