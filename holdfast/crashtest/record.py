"""What happens in a run, written to a file outside the database, so that it outlives the process: who was started, what
was paid, which points were passed.

One line is one write: no kill can tear it, and several processes may write at once.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: Names the file while a crash test runs.
VARIABLE = "HOLDFAST_CRASHTEST_RECORD"

#: The stage whose handler runs here, as PIPELINE/STAGE.
stage_here: ContextVar[str] = ContextVar("stage_here", default="")


def paid_call(name: str = "") -> None:
    """Say in a handler that a call that costs money is made here. `holdfast crashtest` counts it, in whatever process it
    is made; otherwise it does nothing."""
    path = os.environ.get(VARIABLE)
    if path:
        append(path, "paid", stage_here.get(), str(name))


def append(path: str | Path, what: str, *facts: Any) -> None:
    """One line."""
    line = json.dumps([what, *facts]).encode() + b"\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


@dataclass(slots=True)
class Told:
    """All that a record says."""

    #: Starts of handlers, paid calls and money told with `ctx.cost`, by stage.
    starts: Counter[str] = field(default_factory=Counter)
    paid: Counter[str] = field(default_factory=Counter)
    costs: Counter[str] = field(default_factory=Counter)
    #: Names given to `ctx.once`, by stage.
    memos: dict[str, set[str]] = field(default_factory=dict)
    #: The points that can be killed at, in the order they were passed: a moment, what it is about, and details.
    points: list[list[Any]] = field(default_factory=list)
    #: How many points of any kind were passed.
    passed: int = 0
    #: Where the process was killed.
    killed: str = ""
    #: What handlers used without saying that they read it.
    undeclared: list[str] = field(default_factory=list)


def read(path: Path) -> Told:
    """What the file says; one that is not there says nothing."""
    told = Told()
    for line in path.read_text().splitlines() if path.exists() else ():
        what, *facts = json.loads(line)
        if what == "start":
            told.starts[facts[0]] += 1
        elif what == "paid":
            told.paid[facts[0]] += 1
        elif what == "cost":
            told.costs[facts[0]] += facts[1]
        elif what == "memo":
            told.memos.setdefault(facts[0], set()).add(facts[1])
        elif what == "point":
            told.points.append(facts)
        elif what == "passed":
            told.passed += facts[0]
        elif what == "killed":
            told.killed = facts[0]
        elif what == "undeclared" and facts[0] not in told.undeclared:
            told.undeclared.append(facts[0])
    return told
