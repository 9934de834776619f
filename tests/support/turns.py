"""Slow tests take turns: in a usual run each is run on one of the two databases, on the other one the next day.

`make test` has to end within minutes, and `make testall` runs everything. Tests of the engine, of statements and of values run
every day. Tests with processes, workers, browsers, whole programs or long lists of parameters take turns: one half of them is
run on one day, the other half on the next, each on one of the two databases; within four days all have run on both. Who
names a file, a test or a word runs all of it.
"""

from __future__ import annotations

import os
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TypeVar

import pytest

from tests.support.effort import effort

T = TypeVar("T")

#: Tests with processes of their own.
SLOW = (
    "tests/crash/",
    "tests/crashtest/",
    "tests/examples/",
    "tests/mutants/",
    "tests/jobfile/test_at_work.py",
    "tests/adopt/test_processes.py",
    "tests/docs/test_benchmarks.py",
    "tests/docs/test_example_readmes.py",
    "tests/docs/test_wheel.py",
)
#: Tests of commands, of workers and of loops: all that those ask of a database is tested on both in tests/engine.
ABOVE = (
    "tests/adopt/",
    "tests/aio/",
    "tests/cli/",
    "tests/deploy/",
    "tests/export/",
    "tests/notebook/",
    "tests/telemetry/",
    "tests/web/",
    "tests/worker/",
)
ONE_BY_ONE = SLOW + ABOVE
#: So many parameters are a long list.
LONG_LIST = 3
#: Tests of which each parameter, where there is a long list of them, is run on one of the two databases.
WHOLE = (
    "tests/answers/",
    "tests/engine/",
    "tests/legacy/test_importing.py",
    "tests/sources/",
    "tests/store/",
)
#: One half of these tests is run on one day, the other half on the next.
SELDOM = (
    "tests/adopt/",
    "tests/cli/",
    "tests/crash/",
    "tests/deploy/",
    "tests/docs/test_benchmarks.py::test_the_benchmark_measures_",
    "tests/docs/test_benchmarks.py::test_where_the_time_",
    "tests/docs/test_blocks.py::test_the_tests_of_the_guide_",
    "tests/docs/test_commands_until_stopped.py::test_",
    "tests/docs/test_crash_tests_guide.py::test_",
    "tests/docs/test_example_readmes.py::test_",
    "tests/docs/test_half_an_hour.py::test_",
    "tests/docs/test_model_providers_guide.py::test_",
    "tests/docs/test_own_tables_commands.py::test_the_command_",
    "tests/docs/test_readme.py::test_",
    "tests/docs/test_release.py::test_",
    "tests/docs/test_site.py::test_",
    "tests/docs/test_typed_program.py::test_",
    "tests/docs/test_wheel.py::test_a_",
    "tests/docs/test_wheel.py::test_the_wheel_",
    "tests/examples/test_demos.py::test_the_demo_",
    "tests/mutants/",
    "tests/notebook/",
    "tests/store/test_forks.py::test_",
    "tests/store/test_guarantees_beside_old_worker.py::test_",
    "tests/store/test_older_server.py::test_migrations_",
    "tests/store/test_upgrade_beside_old_worker.py::test_",
    "tests/telemetry/",
    "tests/web/",
    "tests/worker/",
)
#: Long files: one half of them on one day, the other half on the next.
BY_FILE = (
    "tests/crashtest/",
    "tests/examples/test_curation",
    "tests/examples/test_documents",
    "tests/examples/test_f",
    "tests/examples/test_newsroom",
)
#: Tests of which one half of the parameters is run on one day, the other half on the next, where there is a long list of them.
THINNED = ("tests/providers/test_with_real_clients.py::test_an_error_means_",)
DATABASES = ("sqlite", "postgres")
VARIABLE = "HOLDFAST_TURN"


def set_turn() -> int:
    """Whose turn it is, the same for all processes of a run: as HOLDFAST_TURN says, or by the day."""
    return int(os.environ.setdefault(VARIABLE, str(int(time.time()) // 86_400)))


def in_turn(values: Sequence[T]) -> list[T]:
    """One of these for four days, in which a test of it has run on both databases; all of them in a thorough run."""
    return list(values) if effort(0, 1) else [values[set_turn() // 4 % len(values)]]


def waiting(items: Sequence[pytest.Item]) -> set[pytest.Item]:
    """Those that wait for their turn."""
    if effort(0, 1):
        return set()
    found = set()
    both = Counter(_elsewhere(item, database) for item in items if (database := _database(item)[1]))
    others: dict[str, dict[str, int]] = defaultdict(dict)
    for item in items:
        _, database = _database(item)
        if database and item.nodeid.startswith(WHOLE) and not item.nodeid.startswith(ONE_BY_ONE):
            numbers = others[item.nodeid.partition("[")[0]]
            numbers.setdefault(_elsewhere(item, database), len(numbers))
    days = _days(items)
    for item in items:
        name, database = _database(item)
        turn = set_turn()
        if (day := days.get(_elsewhere(item, database))) is not None:
            if (day + turn) % 2:
                found.add(item)
                continue
            # On the other database when its day comes again.
            turn //= 2
        if both[_elsewhere(item, database)] < 2:
            continue
        if item.nodeid.startswith(ONE_BY_ONE):
            # What several tests share is made for all of them, or not at all.
            same = _elsewhere(item, database) if name == "database" else item.nodeid.partition("::")[0]
            number = zlib.crc32(same.encode())
        else:
            numbers = others[item.nodeid.partition("[")[0]]
            if len(numbers) < LONG_LIST:
                continue
            number = numbers[_elsewhere(item, database)]
        if (number + turn) % 2 != DATABASES.index(database):
            found.add(item)
    return found


def _days(items: Sequence[pytest.Item]) -> dict[str, int]:
    """The day of those that are run every other day, by what is the same on both databases. It is told by names alone, so
    that a test has the same day whichever others are collected with it."""
    parameters: dict[str, set[str]] = defaultdict(set)
    days: dict[str, int] = {}
    for item in items:
        test, same = item.nodeid.partition("[")[0], _elsewhere(item, _database(item)[1])
        if item.nodeid.startswith(BY_FILE):
            days[same] = zlib.crc32(item.nodeid.partition("::")[0].encode())
        elif item.nodeid.startswith(SELDOM):
            days[same] = zlib.crc32(same.encode())
        elif item.nodeid.startswith(THINNED):
            parameters[test].add(same)
    thinned = [same for one in parameters.values() if len(one) >= LONG_LIST for same in one]
    return days | {same: zlib.crc32(same.encode()) for same in thinned}


def _elsewhere(item: pytest.Item, database: str) -> str:
    """The same for the same test on the other database."""
    return item.nodeid.replace(database, "*")


def _database(item: pytest.Item) -> tuple[str, str]:
    """Which parameter of a test names its database, and which one; nothing if there is none, or more than one."""
    params = getattr(getattr(item, "callspec", None), "params", {})
    chosen = [(name, value) for name, value in params.items() if isinstance(value, str) and value in DATABASES]
    return chosen[0] if len(chosen) == 1 else ("", "")
