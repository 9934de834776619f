"""Follows a worker from point to point, records what happens, and kills it where ordered.

It listens to the named points of `holdfast.points`, in the worker and in the child processes of isolated handlers. A kill
always means the worker: a child that reaches the boundary kills the worker and itself.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast import points
from holdfast.crashtest.boundary import RANKS, Fact, Moment, in_order, spoken
from holdfast.crashtest.record import append, stage_here

#: The point of a commit on a handler's own connection.
OWN_COMMIT = "own.commit"


class Watch:
    """One worker's listener."""

    def __init__(
        self, record: Path, stages: Mapping[int, str], pipelines: Mapping[int, str], kill: Mapping[str, Any] | None
    ) -> None:
        """`kill` is the order of a boundary, or `{"at": n}` for the n-th point of any kind. `stages` and `pipelines` are their
        names, by number."""
        self._record = record
        self._stages = stages
        self._pipelines = pipelines
        self._kill = dict(kill or {})
        self._worker = os.getpid()
        self._lock = threading.Lock()
        self._times: Counter[tuple[Moment, Fact]] = Counter()
        self._here = threading.local()
        #: How many points of any kind this process has passed.
        self.passed = 0

    def __call__(self, point: str) -> None:
        about = points.about()
        if os.getpid() == self._worker:
            with self._lock:
                self.passed += 1
                if self._kill.get("at") == self.passed:
                    self._die(f"at point {self.passed}, {point}")
        if point.startswith("store."):
            self._note(point.removeprefix("store."), *about)
        elif point == "commit.before":
            self._reach(Moment.BEFORE_COMMIT, self._facts)
        elif point == "commit.after":
            facts = list(self._facts)
            self._facts.clear()
            self._reach(Moment.AFTER_COMMIT, facts)
        else:
            self._in_handler(point, about)

    # What a point says --------------------------------------------------------------------------------------------

    @property
    def _facts(self) -> dict[Fact, None]:
        """The facts of this thread's transaction so far."""
        facts: dict[Fact, None] | None = getattr(self._here, "facts", None)
        if facts is None:
            facts = self._here.facts = {}
        return facts

    def _note(self, statement: str, rows: Sequence[Any], params: Mapping[str, Any]) -> None:
        if statement == "add_counts":
            for _, stage, state, _, n, *_ in rows:
                kind = "claim" if state == "in_progress" else str(state)
                if n > 0 and kind in RANKS:
                    self._facts[kind, self._name(stage)] = None
        elif statement == "save_memos":
            for stage, _, name, state, *_ in rows:
                self._facts["memo", self._name(stage), name, state] = None
                append(self._record, "memo", self._name(stage), name)
        elif statement == "insert_items":
            self._facts["submit", self._pipelines.get(params["pipeline"], "a pipeline")] = None

    def _name(self, stage: int) -> str:
        return self._stages.get(stage, f"stage {stage}")

    def _in_handler(self, point: str, about: tuple[Any, ...]) -> None:
        if point in ("run.before", "run.after"):
            [call] = about
            stage = f"{call.pipeline}/{call.spec.name}"
            if point == "run.before":
                stage_here.set(stage)
                append(self._record, "start", stage, [lease.key for lease in call.leases])
                self._reach(Moment.STARTS, [("run", stage)])
            else:
                self._reach(Moment.RETURNS, [("run", stage)])
                stage_here.set("")
        elif point == "effect.after":
            stage, function = about
            name = getattr(function, "__qualname__", None) or type(function).__name__
            self._reach(Moment.EFFECT, [("effect", self._name(stage), name)])
        elif point == "cost":
            pipeline, stage, amount = about
            append(self._record, "cost", f"{pipeline}/{stage}", amount)
            self._reach(Moment.COST, [("cost", f"{pipeline}/{stage}")])
        elif point == OWN_COMMIT:
            self._reach(Moment.OWN_COMMIT, [("own", stage_here.get() or "a thread of a handler")])

    # Being there --------------------------------------------------------------------------------------------------

    def _reach(self, moment: Moment, facts: Sequence[Fact] | Mapping[Fact, None]) -> None:
        if not facts:
            return  # a heartbeat or the like, not about the item
        known = in_order(facts)
        append(self._record, "point", str(moment), known)
        if self._kill.get("moment") != moment:
            return
        with self._lock:
            for fact in known:
                self._times[moment, fact] += 1
            wanted = tuple(self._kill["fact"])
            dies = wanted in known and self._times[moment, wanted] == self._kill["nth"]
        if dies:
            self._die(f"{moment}: {', '.join(spoken(fact) for fact in known)}")

    def _die(self, where: str) -> None:
        append(self._record, "killed", where)
        os.kill(self._worker, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def listen_to_own_commits() -> None:
    """Make every commit through SQLAlchemy, on any connection, reach a point. Effects do not commit: they are part of the
    transaction of the store."""
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    event.listen(Engine, "commit", lambda connection: points.reach(OWN_COMMIT))
