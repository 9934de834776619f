"""What `run` shows while it works: bars on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from holdfast.progress import DRAW_SECONDS, StageProgress, View, Watched

if TYPE_CHECKING:
    from rich.progress import Progress

#: A line that would say the same as the one before it is left out this long.
SAME_LINE_SECONDS = 60.0


def watched(url: str, pipelines: Sequence[str], out: TextIO, line_seconds: float) -> Watched:
    """The progress of these pipelines, in the form that fits where it goes."""
    if out.isatty():
        return Watched(url, pipelines, lambda: Bars(out))
    lines: Callable[[], View] = lambda: PlainLines(out, line_seconds)  # noqa: E731
    return Watched(url, pipelines, lines, min(DRAW_SECONDS, line_seconds))


class PlainLines:
    """One line every few seconds."""

    def __init__(self, out: TextIO, seconds: float) -> None:
        self._out = out
        self._seconds = seconds
        self._next_at = time.monotonic() + seconds
        self._last = ""
        self._said_at = 0.0

    def draw(self, stages: Sequence[StageProgress]) -> None:
        now = time.monotonic()
        if now < self._next_at:
            return
        self._next_at = now + self._seconds
        line = "; ".join(map(str, stages))
        if line and (line != self._last or now - self._said_at > SAME_LINE_SECONDS):
            self._last, self._said_at = line, now
            print(line, file=self._out, flush=True)

    def close(self, stages: Sequence[StageProgress] | None) -> None: ...


class Bars:
    """A bar per stage. No thread of its own: the worker forks before it starts its threads."""

    def __init__(self, out: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        text: Callable[[str], TextColumn] = lambda form: TextColumn(form, markup=False)  # noqa: E731
        self._progress: Progress = Progress(
            text("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            text("{task.fields[rate]}"),
            text("{task.fields[failed]}"),
            console=Console(file=out, markup=False, highlight=False),
            auto_refresh=False,
            redirect_stdout=out is sys.stdout,
            redirect_stderr=sys.stderr.isatty(),
        )
        self._tasks: dict[str, Any] = {}
        self._progress.start()

    def draw(self, stages: Sequence[StageProgress]) -> None:
        for stage in stages:
            if stage.label not in self._tasks:
                self._tasks[stage.label] = self._progress.add_task(
                    stage.label, total=stage.total, completed=stage.over, rate="", failed=""
                )
            task = self._tasks[stage.label]
            failed = stage.counts.get("failed", 0)
            self._progress.update(
                task,
                total=stage.total,
                completed=stage.over,
                failed=" ".join([*([f"{failed:,} failed"] if failed else []), *([stage.held] if stage.held else [])]),
            )
            speed = self._progress.tasks[task].speed
            parts = ("" if speed is None else f"{speed:,.1f}/s", stage.eta, stage.money)
            self._progress.update(task, rate=" ".join(part for part in parts if part))
        self._progress.refresh()

    def close(self, stages: Sequence[StageProgress] | None) -> None:
        if stages is not None:
            self.draw(stages)
        self._progress.stop()
