"""How far a run has come: the counts of its stages, read again and again, for whatever draws them.

The counts are read by a thread with a connection of its own, so that a database which stalls or is away delays neither
the worker nor its stop; what is drawn is the newest that was read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Protocol

from holdfast.answers.status import PipelineStatus, StageStatus
from holdfast.answers.text_tables import spoken
from holdfast.app import Holdfast
from holdfast.errors import HoldfastError
from holdfast.model.log_lines import logger, printable
from holdfast.model.money import spoken as money

log = logger("holdfast.progress")

#: Where it can be drawn over, it is drawn this often.
DRAW_SECONDS = 0.25
#: How often it is asked what was spent.
MONEY_SECONDS = 1.0

#: What the states are called in a line of progress; several may share a word.
_WORDS = {
    "done": "done",
    "skipped": "skipped",
    "failed": "failed",
    "exhausted": "failed",
    "cancelled": "cancelled",
    "in_progress": "running",
    "retry_later": "to be retried",
    "on_hold": "on hold",
    "pending": "waiting",
}


class StageProgress:
    """The counts of one stage, in the words of a progress line."""

    def __init__(self, pipeline: str, stage: StageStatus, total: int) -> None:
        self.label = f"{pipeline}/{stage.name}"
        self.total = total
        #: What keeps it from going on, if something does.
        self.held = printable(stage.held.text) if stage.held else ""
        #: How much longer it takes at the pace of this run, if that can be told yet.
        self.left_seconds: float | None = None
        #: What this run has spent.
        self.spent = Decimal(0)
        self.counts = {"done": 0}
        for state, word in _WORDS.items():
            if state in stage.states:
                self.counts[word] = self.counts.get(word, 0) + stage.states[state]

    @property
    def over(self) -> int:
        """How many items need nothing more from this stage."""
        return sum(self.counts.get(word, 0) for word in ("done", "skipped", "failed", "cancelled"))

    def __str__(self) -> str:
        counts = ", ".join(f"{n:,} {word}" for word, n in self.counts.items())
        more = "".join(f", {part}" for part in (self.eta, self.money) if part)
        return f"{self.label}: {counts}{more}{f' ({self.held})' if self.held else ''}"

    @property
    def money(self) -> str:
        return f"{money(self.spent)} spent" if self.spent else ""

    @property
    def eta(self) -> str:
        return "" if self.left_seconds is None else f"about {spoken(timedelta(seconds=self.left_seconds))} left"


def read_stages(pipelines: Sequence[PipelineStatus]) -> list[StageProgress]:
    stages = []
    for pipeline in pipelines:
        total = max((sum(stage.states.values()) for stage in pipeline.stages), default=0)
        stages += [StageProgress(pipeline.name, stage, total) for stage in pipeline.stages]
    return stages


class Pace:
    """How fast stages have gone in this run, and what they have spent, from the first counts that were read on."""

    def __init__(self) -> None:
        self._first: dict[str, tuple[float, int]] = {}
        self._spent_before: dict[str, Decimal] | None = None
        self._spent: dict[str, Decimal] = {}

    def note_money(self, spent: dict[str, Decimal]) -> None:
        """What stages have spent by now."""
        if self._spent_before is None:
            self._spent_before = spent
        self._spent = {label: n - self._spent_before.get(label, Decimal(0)) for label, n in spent.items()}

    def foretell(self, stages: Sequence[StageProgress], now: float) -> None:
        for stage in stages:
            since, over = self._first.setdefault(stage.label, (now, stage.over))
            if now > since and over < stage.over < stage.total:
                stage.left_seconds = (stage.total - stage.over) * (now - since) / (stage.over - over)
            stage.spent = self._spent.get(stage.label, Decimal(0))


class View(Protocol):
    def draw(self, stages: Sequence[StageProgress]) -> None: ...

    def close(self, stages: Sequence[StageProgress] | None) -> None:
        """Draw how it ended, if that is known, and stop."""
        ...


class Watched:
    """Reads the counts again and again, and lets a view draw them. `tick` is called from the worker's main thread."""

    def __init__(
        self, url: str, pipelines: Sequence[str], make_view: Callable[[], View], tick_seconds: float = DRAW_SECONDS
    ) -> None:
        self._url = url
        self._pipelines = pipelines
        self._make_view = make_view
        self.tick_seconds = tick_seconds
        self._newest: list[StageProgress] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._read, name="holdfast-progress", daemon=True)
        self._view: View | None = None
        self._mute = False

    def tick(self) -> None:
        """Draw. Nothing that goes wrong here may disturb the work; the reader may have left."""
        if self._mute:
            return
        try:
            if self._view is None:
                # Not before: the worker has forked by now, and a fork wants no other thread.
                self._view = self._make_view()
                self._thread.start()
            self._view.draw(self._newest)
        except OSError:
            self._mute = True

    def close(self, pipelines: Sequence[PipelineStatus] | None) -> None:
        """Draw how it ended, and stop."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(timeout=1.0)
        if self._view is None or self._mute:
            return
        try:
            self._view.close(None if pipelines is None else read_stages(pipelines))
        except OSError:
            self._mute = True

    def _read(self) -> None:
        app: Holdfast | None = None
        pace = Pace()
        money_at = 0.0
        while not self._stopped.wait(self.tick_seconds if self._newest else 0.0):
            try:
                app = app or Holdfast(self._url, create=False)
                status = [one for one in app.status().pipelines if one.name in self._pipelines]
                stages = read_stages(status)
                if time.monotonic() >= money_at:
                    money_at = time.monotonic() + MONEY_SECONDS
                    pace.note_money({f"{one.pipeline}/{one.stage}": one.spent for one in app.costs().sums})
                pace.foretell(stages, time.monotonic())
                self._newest = stages
            except HoldfastError as error:
                log.debug("no progress to show: %s", error)
                self._stopped.wait(1.0)
        if app is not None:
            app.close()
