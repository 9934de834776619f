"""The parts of a worker that are others if its program traces."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.engine.finish_leases import FinishedAttempt
from holdfast.worker.attempt_spans import AttemptSpans, TracedCommitter, TracedConversation, TracedRunner
from holdfast.worker.call import StageCall
from holdfast.worker.commit.committer import Committer
from holdfast.worker.handler_environment import Surroundings
from holdfast.worker.isolated import StageConversation
from holdfast.worker.runner import StageRunner

if TYPE_CHECKING:
    from holdfast.telemetry.spans import Spans

#: Gets a call that has ended, and how its attempts ended.
Report = Callable[[StageCall, list[FinishedAttempt]], None]


class Parts:
    """The parts of a worker whose program does not trace."""

    def runner(self, around: Surroundings) -> StageRunner:
        return StageRunner(around)

    def conversation(self, runner: StageRunner, around: Surroundings) -> StageConversation:
        return StageConversation(runner, around)

    def committer(self, *args: Any) -> Committer:
        """`args` are those of a Committer."""
        return Committer(*args)

    def report(self, report: Report) -> Report:
        """What calls are reported to, on their way to the committer."""
        return report

    def close(self) -> None:
        """The worker has ended."""


class TracedParts(Parts):
    """The parts of a worker whose program traces."""

    def __init__(self, spans: Spans, worker_name: str) -> None:
        self._spans = spans
        self._attempts = AttemptSpans(spans, worker_name)

    def runner(self, around: Surroundings) -> StageRunner:
        return TracedRunner(around, self._attempts)

    def conversation(self, runner: StageRunner, around: Surroundings) -> StageConversation:
        return TracedConversation(runner, around, self._attempts)

    def committer(self, *args: Any) -> Committer:
        return TracedCommitter(self._attempts, self._spans, *args)

    def report(self, report: Report) -> Report:
        def traced(call: StageCall, finished: list[FinishedAttempt]) -> None:
            self._attempts.end(call, finished)
            report(call, finished)

        return traced

    def close(self) -> None:
        self._attempts.close()


def parts_of(spans: Spans | None, worker_name: str) -> Parts:
    """The parts of a worker; `spans` makes spans, if its program traces."""
    return Parts() if spans is None else TracedParts(spans, worker_name)
