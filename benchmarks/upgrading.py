"""What an upgrade costs a large store of the version before, while programs of that version go on using it.

    python -m benchmarks.upgrading [--items 1000000] [--only sqlite|postgres] [--folder FOLDER]

Of ten items eight are done, one is to be tried again and has a paid answer, and one is waiting; nine have a payment to be
copied into the ledger. One process of the old version adds items, another asks for the status: the longest call of each is the
longest time that the upgrade kept them waiting. It must be shorter than a lease. Exits with 1 if it is not, or if `db check`
finds anything afterwards. Payments are copied for a minute: how many that were tells how long all of them take.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from benchmarks.databases import Database, databases
from benchmarks.filling import Block, multiply
from benchmarks.old_store import SEEDS
from benchmarks.sql import Sql, opened
from holdfast import Holdfast
from holdfast.engine.ledger import take_up_old_payments
from holdfast.store import open_store
from holdfast.worker import Settings
from tools import old_version

#: Of ten items.
SHARES = {"done": 8, "later": 1, "waiting": 1}
STATES = {"done": "done", "later": "retry_later", "waiting": "pending"}
TABLES = (
    ("items", "id"),
    ("waiting", "item"),
    ("delayed", "item"),
    ("outcomes", "item"),
    ("events", "item"),
    ("memos", "item"),
)
MEGABYTE = 1_000_000
#: How long copying payments is watched. It goes on in the same way until all are copied, by any worker.
PAYMENT_SECONDS = 60
#: -P: the current folder has a package of the same name.
OLD = (sys.executable, "-P", "-m", "benchmarks.old_store")


@dataclass(frozen=True)
class Step:
    """A part of the upgrade: how long it took, the longest call of the writer and of the reader meanwhile, and the size of the
    store after it."""

    name: str
    seconds: float
    writer: float
    reader: float
    megabytes: float

    def __str__(self) -> str:
        return (
            f"{self.name:<22} {self.seconds:>9.1f} s {self.writer:>13.2f} s {self.reader:>13.2f} s "
            f"{self.megabytes:>11.0f} MB"
        )


class Caller:
    """A process of the version before that goes on using the store."""

    def __init__(self, what: str, url: str, end: Path, code: Path) -> None:
        self._process = subprocess.Popen(
            [*OLD, what, url, str(end)], env=old_version.environment(code), stdout=subprocess.PIPE, text=True
        )
        if _pipe(self._process).readline() != "ready\n":
            raise SystemExit(f"the {what}r of the version before has not begun: exit code {self._process.wait()}")

    def calls(self) -> list[tuple[float, float]]:
        """When each call began, and how long it took. The process has been asked to end."""
        said, _ = self._process.communicate()
        if self._process.returncode:
            raise SystemExit(f"a program of the version before has failed: exit code {self._process.returncode}")
        return [(began, seconds) for began, seconds in json.loads(said)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.upgrading", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--only", choices=["sqlite", "postgres"])
    parser.add_argument("--folder", type=Path, help="where stores are made; a gigabyte or two per million items")
    parser.add_argument("--postgres", help="another server")
    given = parser.parse_args(arguments)
    try:
        code = old_version.old_code()
    except old_version.NoHistory as error:
        print(f"upgrading: {error}", file=sys.stderr)
        return old_version.NO_HISTORY
    sound = True
    with databases(given.only, given.folder, given.postgres) as chosen:
        for database in chosen:
            print(f"{database.title}, {given.items:,} items of schema {old_version.SCHEMA}", flush=True)
            url = database.fresh()
            try:
                sound &= _measure(database, url, given.items, code)
            finally:
                database.drop(url)
    return 0 if sound else 1


def _measure(database: Database, url: str, items: int, code: Path) -> bool:
    _fill(url, items, code)
    database.settle()
    with tempfile.TemporaryDirectory() as folder, opened(url) as sql:
        end = Path(folder) / "end"
        callers = [Caller(what, url, end, code) for what in ("write", "read")]
        try:
            marks = _upgrade(url, sql)
        finally:
            end.touch()
            writes, reads = [caller.calls() for caller in callers]
    steps = [
        Step(name, until - since, _longest(writes, since, until), _longest(reads, since, until), megabytes)
        for (_, since, _), (name, until, megabytes) in itertools.pairwise(marks)
    ]
    print(f"{'':<22} {'time':>11} {'longest write':>15} {'longest read':>15} {'size after':>14}")
    print(*steps, sep="\n", flush=True)
    lease = Settings().lease_seconds
    stall = max(max(step.writer, step.reader) for step in steps)
    with Holdfast(url) as app:
        wrong = app.check()
    print(f"longest wait {stall:.2f} s, a lease is {lease:.0f} s; db check: {'; '.join(wrong) or 'nothing wrong'}\n")
    return stall < lease and not wrong


def _upgrade(url: str, sql: Sql) -> list[tuple[str, float, float]]:
    """Upgrade the store; return the end and the size of each part."""
    marks: list[tuple[str, float, float]] = []

    def mark(name: str) -> None:
        marks.append((name, time.monotonic(), sql.size() / MEGABYTE))

    mark("start")
    # What the others take when nothing is in their way.
    time.sleep(2)
    mark("before the upgrade")
    store = open_store(url)
    try:
        store.upgrade()
        mark("tables and indexes")
        copied, end = 0, time.monotonic() + PAYMENT_SECONDS
        while time.monotonic() < end and (more := store.write(take_up_old_payments)):
            copied += more
        mark(f"{copied:,} payments")
    finally:
        store.close()
    return marks


def _fill(url: str, items: int, code: Path) -> None:
    subprocess.run([*OLD, "make", url], env=old_version.environment(code), check=True)
    with opened(url) as sql:
        numbers = dict(sql.rows(f"SELECT key, id FROM {sql.prefix}items"))
        free = max(numbers.values()) + 1
        for seed in SEEDS:
            wanted = items * SHARES[seed] // sum(SHARES.values())
            for table, column in TABLES:
                multiply(sql, table, column, Block(numbers[seed], skipped=free - numbers[seed] - 1), wanted)
            free += wanted
            sql.run(f"UPDATE {sql.prefix}counts SET n = n * {wanted:d} WHERE state = '{STATES[seed]}'")
        sql.finish([table for table, _ in TABLES])


def _longest(calls: list[tuple[float, float]], since: float, until: float) -> float:
    """The longest of the calls that were under way in this part, by the middle of each."""
    return max((seconds for began, seconds in calls if since <= began + seconds / 2 < until), default=0.0)


def _pipe(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout is not None
    return process.stdout


if __name__ == "__main__":
    sys.exit(main())
