"""What `top` asks of the store, and how often: one question at a time, with a long pause after one that took long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

from holdfast.answers.item import ItemDetails
from holdfast.answers.overview import BY_DAY, Overview, spent_today
from holdfast.answers.why import Explanation
from holdfast.app import Holdfast
from holdfast.errors import HoldfastError
from holdfast.model.redact import redact

#: Between two questions there is at least this many times what the first one took.
TIMES_TAKEN = 20
#: Rates are those of the last hour, as on the overview of the dashboard and for `holdfast throughput`.
RATE_OVER = "1h"


@dataclass(frozen=True)
class Facts:
    """Everything that a frame shows of the store."""

    store: str
    at: datetime
    overview: Overview
    #: Attempts per minute, by pipeline and stage.
    rates: Mapping[tuple[str, str], float]
    #: By pipeline; None stands for stages that are gone.
    spent_today: Mapping[str | None, Decimal]


@dataclass(frozen=True)
class ItemFacts:
    """One item, and why it does not run."""

    why: Explanation
    details: ItemDetails


Question = Callable[[Holdfast], Facts | ItemFacts]


def ask(app: Holdfast) -> Facts:
    overview = Overview(app.status(), app.limits())
    rates = {(one.pipeline, one.stage): one.per_minute for one in app.throughput(last=RATE_OVER)}
    at = datetime.now(UTC)
    spent = spent_today(app.costs(BY_DAY), overview.limits, at)
    return Facts(redact(app.url), at, overview, rates, spent)


def about_item(key: str, pipeline: str) -> Question:
    """The question about one item."""
    return lambda app: ItemFacts(app.why(key, pipeline), app.show(key, pipeline).without_secrets())


class Reader:
    """Asks again and again, in a thread of its own: a store that stalls keeps nobody from leaving. `tell` gets what was
    answered, or the error, in this thread."""

    def __init__(
        self, app: Holdfast, every_seconds: float, tell: Callable[[Question, Facts | ItemFacts | BaseException], None]
    ) -> None:
        self._app = app
        self._every_seconds = every_seconds
        self._tell = tell
        self._question: Question = ask
        self._soon = threading.Event()
        self._is_over = False
        #: When the question was asked that is not yet answered, on the monotonic clock.
        self.asked_at: float | None = None
        #: Held while a question is asked.
        self.asking = threading.Lock()
        # A process that ends does not wait for it.
        self._thread = threading.Thread(target=self._run, name="holdfast-top-reader", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def look_at(self, question: Question) -> None:
        """Ask this from now on, beginning at once: a person has asked for it, or has changed something."""
        self._question = question
        self._soon.set()

    def end(self) -> None:
        """Ask nothing more."""
        self._is_over = True
        self._soon.set()

    def _run(self) -> None:
        # The first answer is there already.
        self._soon.wait(self._every_seconds)
        while not self._is_over:
            self._soon.clear()
            question, begun = self._question, time.monotonic()
            answer: Facts | ItemFacts | BaseException
            with self.asking:
                self.asked_at = begun
                try:
                    answer = question(self._app)
                except BaseException as error:
                    answer = error
                self.asked_at = None
            if not self._is_over:
                self._tell(question, answer)
            self._soon.wait(pause_seconds(self._every_seconds, time.monotonic() - begun))


def pause_seconds(every_seconds: float, took_seconds: float) -> float:
    """How long nothing is asked after a question that took so long."""
    return max(every_seconds, TIMES_TAKEN * took_seconds)


def is_expected(error: BaseException) -> bool:
    """Whether an error is shown to the person who looks; any other one is a bug, and ends the program."""
    return isinstance(error, HoldfastError)
