"""The record of a run, in a file outside the database, so that it outlives the process: starts of handlers, paid calls, and
points that were passed.

Each line is one write: a kill cannot tear it, and several processes may write at once.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: The environment variable that names the file during a crash test.
VARIABLE = "HOLDFAST_CRASHTEST_RECORD"

#: The stage whose handler runs in this context, as PIPELINE/STAGE.
stage_here: ContextVar[str] = ContextVar("stage_here", default="")


def paid_call(name: str = "") -> None:
    """Call this in a handler where a paid call is made. `holdfast crashtest` counts it, in whichever process; otherwise it does
    nothing."""
    path = os.environ.get(VARIABLE)
    if path:
        append(path, "paid", stage_here.get(), str(name))


def append(path: str | Path, what: str, *facts: Any) -> None:
    """Append one line."""
    line = json.dumps([what, *facts]).encode() + b"\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


@dataclass(slots=True)
class Told:
    """The content of a record."""

    #: Starts of handlers, paid calls and costs reported with `ctx.cost`, by stage.
    starts: Counter[str] = field(default_factory=Counter)
    paid: Counter[str] = field(default_factory=Counter)
    costs: Counter[str] = field(default_factory=Counter)
    #: Names given to `ctx.once`, by stage.
    memos: dict[str, set[str]] = field(default_factory=dict)
    #: The points that can be killed at, in the order they were passed: a moment and its facts.
    points: list[list[Any]] = field(default_factory=list)
    #: How many points of any kind were passed.
    passed: int = 0
    #: Where the process was killed.
    killed: str = ""
    #: Undeclared inputs that handlers used.
    undeclared: list[str] = field(default_factory=list)


def read(path: Path) -> Told:
    """Read a record; a missing file is an empty one."""
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
