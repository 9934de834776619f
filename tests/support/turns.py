"""Slow tests take turns: in a usual run each is run on one of the two databases, on the other one the next day.

Half an hour of real processes and real kills on both databases is for `make testall`. All other tests run on both, always.
"""

from __future__ import annotations

import os
import time
import zlib

import pytest

from tests.support.effort import effort

#: Tests with processes of their own.
SLOW = ("tests/crash/", "tests/crashtest/", "tests/examples/", "tests/mutants/", "tests/jobfile/test_at_work.py")
DATABASES = ("sqlite", "postgres")
VARIABLE = "HOLDFAST_TURN"


def set_turn() -> int:
    """Whose turn it is, the same for all processes of a run: as HOLDFAST_TURN says, or by the day."""
    return int(os.environ.setdefault(VARIABLE, str(int(time.time()) // 86_400 % 2)))


def waits(item: pytest.Item) -> bool:
    """Whether this test, on this database, waits for its turn."""
    chosen = {name: value for name, value in _params(item).items() if value in DATABASES}
    if effort(0, 1) or not item.nodeid.startswith(SLOW) or len(chosen) != 1:
        return False
    [(name, database)] = chosen.items()
    # What several tests share is made for all of them, or not at all.
    same = item.nodeid.replace(database, "*") if name == "database" else item.nodeid.partition("::")[0]
    return (zlib.crc32(same.encode()) + set_turn()) % 2 != DATABASES.index(database)


def _params(item: pytest.Item) -> dict[str, object]:
    params = getattr(getattr(item, "callspec", None), "params", {})
    return {name: value for name, value in params.items() if isinstance(value, str)}
