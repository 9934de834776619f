"""Counts what a process has done, transaction by transaction, once it is committed: numbers never run ahead of the store."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Protocol

from holdfast.model.layout import Layout
from holdfast.model.log_lines import logger
from holdfast.model.paid_call import PaidCall
from holdfast.store import Transaction
from holdfast.telemetry.metrics_counts import Counts, Labels, SentCounts
from holdfast.telemetry.metrics_table import (
    ATTEMPT_DURATION,
    ATTEMPTS,
    BATCH,
    COMMIT,
    COST,
    IN_DOUBT_TOTAL,
    MICRO,
    TOKENS,
    WAIT,
    Metric,
)

log = logger("holdfast.telemetry")

#: Handlers name models as they like: so many become labels, the others share one.
MOST_MODELS = 100
OTHER = "(other)"
#: How an attempt may end.
OUTCOMES = ("done", "skipped", "retried", "failed", "exhausted", "lost", "handed_back")
#: Attempts that were refused have no duration; work that was handed back may not have begun.
_LOST, _HANDED_BACK = "lost", "handed_back"
#: What a transaction is for where others are freed, and nobody knows how long their handlers ran.
_SWEEP = "sweep"


class Observed(Protocol):
    """Gets every single observation of a histogram, where counts are not enough."""

    def observe(self, metric: Metric, labels: Labels, values: Iterable[float]) -> None: ...


class Metrics:
    """The counts of one process. Any thread that commits adds, another one reads."""

    def __init__(self, observed: Observed | None = None) -> None:
        self._lock = threading.Lock()
        self._counts = Counts()
        self._taken = Counts()
        self._observed = observed
        self._models: set[str] = set()
        self._complained = False

    def begin(self, stages: Iterable[Labels]) -> None:
        """Count from zero what may come of these stages: how fast a counter grows can be told from its second value on."""
        with self._lock:
            for stage in stages:
                self._counts.numbers[IN_DOUBT_TOTAL, stage] += 0
                for outcome in OUTCOMES:
                    self._counts.numbers[ATTEMPTS, (*stage, outcome)] += 0

    def committed(self, op: str, rows: int, seconds: float, tx: Transaction | None) -> None:
        """Count a transaction that was committed. It must never fail: its work is done."""
        try:
            with self._lock:
                if op:
                    self._observe(COMMIT, (op,), [round(seconds * MICRO)])
                    self._observe(BATCH, (op,), [rows])
                if tx is not None and (tx.ended or tx.paid):
                    known: Layout = tx.store.cache["layout"]
                    for stage, outcome, attempts in tx.ended:
                        self._count_attempts(_names(known, stage), outcome, attempts, timed=op != _SWEEP)
                    for gone, come in tx.paid:
                        self._count_calls(known, gone, come)
        except Exception:
            if not self._complained:
                self._complained = True
                log.exception("a transaction could not be counted; this is said once")

    def read(self) -> Counts:
        """What was counted so far, here and in other processes."""
        with self._lock:
            return self._counts.copy()

    def take(self) -> Counts:
        """What was counted since the last time, for another process to add."""
        now = self.read()
        grown, self._taken = now.since(self._taken), now
        return grown

    def add(self, sent: SentCounts) -> None:
        """Add what another process has counted. It may have heard of other models than this one and the rest."""
        with self._lock:
            sent.numbers = [
                (name, (*labels[:2], self._model(labels[2]), *labels[3:]) if name == TOKENS.name else labels, n)
                for name, labels, n in sent.numbers
            ]
            self._counts.add(sent)

    def _count_attempts(self, stage: Labels, outcome: str, attempts: Sequence[Any], timed: bool) -> None:
        # Whole lists at once: every attempt comes through here.
        self._counts.numbers[ATTEMPTS, (*stage, outcome)] += len(attempts)
        if outcome == _LOST or not timed:
            return
        ran = [one.took_us for one in attempts if one.took_us or outcome != _HANDED_BACK]
        leases = [one.lease for one in attempts]
        waited = [lease.since - lease.ready_at for lease in leases if lease.ready_at]
        self._observe(ATTEMPT_DURATION, stage, ran)
        self._observe(WAIT, stage, waited)

    def _observe(self, metric: Metric, labels: Labels, values: Sequence[int]) -> None:
        spread = self._counts.spread(metric, labels)
        if len(values) == 1:
            spread.buckets[bisect_left(metric.bounds, values[0])] += 1
            spread.total += values[0]
        else:
            spread.buckets.update(map(partial(bisect_left, metric.bounds), values))
            spread.total += sum(values)
        if self._observed is not None:
            self._observed.observe(metric, labels, [value / metric.scale for value in values])

    def _count_calls(self, known: Layout, gone: Iterable[PaidCall], come: Iterable[PaidCall]) -> None:
        change: Counter[tuple[Metric, Labels]] = Counter()
        for sign, calls in ((-1, gone), (1, come)):
            for call in calls:
                stage = _names(known, call.stage)
                _, amount, doubts, _, *tokens = call.sums()
                change[COST, (*stage, call.resource)] += sign * amount
                change[IN_DOUBT_TOTAL, stage] += sign * doubts
                if any(tokens):
                    model = self._model(call.model)
                    for direction, n in zip(_DIRECTIONS, tokens, strict=True):
                        change[TOKENS, (*stage, model, direction)] += sign * n
        # A doubt that is settled, or an amount that a person corrects, takes nothing back: a counter only grows.
        self._counts.numbers.update({series: n for series, n in change.items() if n > 0})

    def _model(self, name: str) -> str:
        if name not in self._models:
            if len(self._models) >= MOST_MODELS:
                return OTHER
            self._models.add(name)
        return name


#: What the numbers of tokens of a call are called here, in their order.
_DIRECTIONS = ("in", "out", "cached", "reasoning")


def _names(known: Layout, stage: int) -> Labels:
    row = known.stages[stage]
    return row.pipeline_name, row.name
