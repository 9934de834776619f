"""The runs of a crash test: one item undisturbed, then again from the start for every boundary, killed there and resumed in
new processes until it is done."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.app import Holdfast
from holdfast.crashtest import record
from holdfast.crashtest.boundary import Boundary
from holdfast.crashtest.compare import Difference, Ignored, differences, payments, tables
from holdfast.crashtest.copies import Copies
from holdfast.crashtest.record import Told
from holdfast.crashtest.report import CrashReport, Kill
from holdfast.crashtest.snapshot import Snapshot, take
from holdfast.crashtest.subject_client import SubjectServer
from holdfast.errors import UsageError
from holdfast.model.states import State

#: How many processes an item may need after a kill.
MOST_RESUMES = 20
#: Runs differ slightly: how often a boundary that was not reached is tried again.
TRIES = 3

OnKill = Callable[[Kill], None]


@dataclass(slots=True)
class CrashRun:
    """How one run ended, and the store at the moment of the kill."""

    end: Snapshot
    told: Told
    resumed: int = 0
    killed: Snapshot | None = None


@dataclass(slots=True)
class CrashTest:
    """All runs of one item on one kind of store."""

    server: SubjectServer
    copies: Copies
    folder: Path
    wanted: Sequence[str] | None
    ignored: Ignored
    #: Snapshots by progress of the items, from the first time that progress was seen.
    _by_progress: dict[frozenset[tuple[str, ...]], Snapshot] = field(default_factory=dict)
    _undisturbed: CrashRun | None = None
    _runs: int = 0

    def undisturbed(self) -> CrashRun:
        """One complete run. The tables before it are remembered too."""
        self.copies.fresh()
        self._remember(take(self.copies.url, self.wanted, self.server.blobs))
        run = self._run(None)
        assert run is not None
        self._undisturbed = self._undisturbed or run
        return run

    def compare(self, run: CrashRun) -> list[Difference]:
        """The differences between a run and the first undisturbed one."""
        first = self._undisturbed
        assert first is not None
        found = differences(first.end, run.end, self.ignored)
        return [*found, *payments(first.end, first.told, run.end, run.told)]

    def kill(self, number: int, where: str, order: dict[str, Any]) -> Kill:
        """Kill one run as ordered, resume it, and compare."""
        for _ in range(TRIES):
            self.copies.fresh()
            run = self._run(order)
            if run is not None:
                break
            if "at" in order:
                # Runs do not all pass the same number of points: this one was shorter.
                order = {"at": 1 + order["at"] * 3 // 4}
        else:
            return Kill(number, where, "not reached")
        found = [*self._outside(run), *self.compare(run)]
        return Kill(
            number,
            run.told.killed if "at" in order else where,
            "different" if found else "same",
            run.resumed,
            run.told.starts.total(),
            run.told.paid.total(),
            run.end.doubts.total(),
            found,
        )

    def kill_everywhere(
        self, report: CrashReport, places: Sequence[Boundary], chosen: Sequence[int], at_random: int, on_kill: OnKill
    ) -> None:
        """Kill at these boundaries, counted from 1 (all if none are given), and this many times at random."""
        began = time.monotonic()
        orders = [(n, one.text, one.order) for n, one in enumerate(places, 1) if not chosen or n in chosen]
        if at_random:
            report.seed = report.seed if report.seed is not None else random.SystemRandom().randrange(1_000_000)
            rng = random.Random(report.seed)
            assert self._undisturbed is not None
            picks = [rng.randint(1, self._undisturbed.told.passed) for _ in range(at_random)]
            orders += [(len(places) + n, f"at point {at}", {"at": at}) for n, at in enumerate(picks, 1)]
        for number, where, order in orders:
            report.kills.append(self.kill(number, where, order))
            on_kill(report.kills[-1])
        report.seconds += time.monotonic() - began

    # The parts ----------------------------------------------------------------------------------------------------

    def _run(self, order: dict[str, Any] | None) -> CrashRun | None:
        """One run from start to end; None if it never reached the point of the kill."""
        self._runs += 1
        file = self.folder / f"record-{self._runs}"
        killed = None
        ended = self.server.run(record=file, kill=order)
        if order is not None:
            if not ended.killed:
                return None
            killed = take(self.copies.url, self.wanted, self.server.blobs)
            ended = self.server.run(record=file)
        resumed = 1
        while ended.code != 0 or self._settle():
            if resumed == MOST_RESUMES:
                raise UsageError(
                    f"its worker ended {MOST_RESUMES} times before the item was done, the last time with code {ended.code}; "
                    f"it said: {self.server.said}"
                )
            resumed += 1
            ended = self.server.run(record=file)
        run = CrashRun(
            take(self.copies.url, self.wanted, self.server.blobs), record.read(file), resumed - (order is None), killed
        )
        file.unlink()
        return run

    def _settle(self) -> bool:
        """Resolve calls in doubt that are on hold, as a person would who finds that the provider has no record of them."""
        sent = False
        with Holdfast(self.copies.url, create=False) as app:
            for row in app.items(state=State.ON_HOLD, most=1000):
                held = [one for one in app.memos(row.key, row.pipeline) if one.state == "intended"]
                for memo in held:
                    app.resolve(row.key, memo.name, charged=0, pipeline=row.pipeline, by="crashtest")
                    sent = True
        return sent

    def _remember(self, seen: Snapshot) -> Snapshot:
        return self._by_progress.setdefault(seen.progress, seen)

    def _outside(self, run: CrashRun) -> list[Difference]:
        """Rows that were written or deleted when the worker died, although no stage had ended since."""
        assert run.killed is not None
        before = self._remember(run.killed)
        running = sorted(
            {
                f"{pipeline}/{stage}"
                for (pipeline, _, stage), (state, _, _) in run.killed.stages.items()
                if state == State.IN_PROGRESS
            }
        )
        return [
            Difference(
                "outside",
                f"{one.where} {' or '.join(running) or 'a handler'}",
                f"{one.text} when the worker was killed, though no stage had ended since",
                one.missing,
                one.extra,
            )
            for one in tables(before, run.killed, self.ignored)
        ]
