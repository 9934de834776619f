"""What the pieces of a loop share: its settings, its counters, whether it is stopping, and the rows that it skips for now."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, TypeVar

import sqlalchemy as sa
from sqlalchemy import ColumnElement

from holdfast.adopt.connections import Open, Place, is_async, makes_transactions, sync_engine_of
from holdfast.adopt.loop.batch_or_alone import ALONE, BATCH
from holdfast.adopt.loop.counters import Counters
from holdfast.adopt.loop.job import Job
from holdfast.adopt.loop.sync_or_async_engine import sleep
from holdfast.adopt.loop.transact import Effect, patiently, transact, transact_once
from holdfast.adopt.rows.claim import ClaimTerms, OrderBy, order_of
from holdfast.adopt.rows.compiled_statements import DirectLine
from holdfast.adopt.rows.outcome import Retry, error_text, read_retry
from holdfast.adopt.rows.sql import Key, Where, conditions_of, has_last_attempts, is_last_attempt, key_in
from holdfast.adopt.sqlalchemy_errors import Complaints
from holdfast.adopt.table.mapping import Name, TableMapping
from holdfast.adopt.table.tokens import LoopIdentity
from holdfast.errors import UsageError
from holdfast.model import functions
from holdfast.model.backoff import Backoff
from holdfast.model.durations import Duration, seconds
from holdfast.model.log_lines import logger

log = logger("holdfast.adopt")

#: Default for stale_after: with a heartbeat column, and without one.
STALE_SECONDS, STALE_WITHOUT_BEAT_SECONDS = 120.0, 1800.0
#: How long to skip a row that cannot be changed.
ASIDE_SECONDS = 60.0
#: How often to check whether the loop is stopping: a signal does not wake a waiting thread.
CHECK_SECONDS = 0.1
#: Limit of rows to skip: their keys are part of every claim.
MOST_ASIDE = 500

T = TypeVar("T")
RowHandler = Callable[[Job], Any]


class Aside(NamedTuple):
    """Until when a row is skipped, by the monotonic clock, and whether the database refused it."""

    until: float
    is_refused: bool


class _AsUsual:
    """The default, which depends on the columns: for `retry`, a Backoff if attempts are counted, and none otherwise."""


AS_USUAL = _AsUsual()


def _terms(terms: ClaimTerms) -> dict[str, ClaimTerms]:
    last = [is_last_attempt(terms.mapping)] if has_last_attempts(terms.mapping) else []
    return {BATCH: terms.but(map(sa.not_, last)), ALONE: terms.but(last)}


class LoopState:
    """The settings of a loop, checked, and what changes while it runs."""

    def __init__(
        self,
        at: Place,
        mapping: TableMapping,
        handler: RowHandler,
        *,
        name: str | None = None,
        batch: int = 10,
        poll: Duration = "1s",
        concurrency: int = 1,
        max_instances: int | None = None,
        where: Where = None,
        order_by: OrderBy = None,
        columns: Sequence[Name] | None = None,
        retry: Retry | _AsUsual = AS_USUAL,
        stale_after: Duration | _AsUsual | None = AS_USUAL,
        beat: Duration | None = None,
        timeout: Duration | None = None,
        isolate: Literal["process"] | None = None,
        grace: Duration = "10s",
        report: Duration = "60s",
        guarded: bool = True,
    ) -> None:
        self.name = name or f"loop {mapping.name}"
        if not makes_transactions(at):
            given = type(at).__name__
            raise UsageError(f"{self.name}: give an Engine or a sessionmaker (or an async one), not a {given}")
        self.at = at
        self.mapping = mapping
        self.engine = sync_engine_of(at, mapping)
        self.is_sqlite = self.engine.dialect.name == "sqlite"
        self.handler = handler
        self.is_async_handler = functions.is_async(handler)
        self._check(isolate)
        self.batch = self._number("batch", batch)
        self.concurrency = self._number("concurrency", concurrency)
        self.max_instances = None if max_instances is None else self._number("max_instances", max_instances)
        self.poll_seconds = self._length("poll", poll)
        self.isolate = isolate
        self.timeout_seconds = None if timeout is None else self._length("timeout", timeout)
        self.grace_seconds = seconds(grace, what=f"{self.name}: grace")
        self.report_seconds = self._length("report", report)
        self.where: list[ColumnElement[bool]] = conditions_of(where)
        named = None if columns is None else tuple(columns)
        #: How to claim a batch, and a row that runs alone. Built once, so that claim statements are cached.
        self.terms = _terms(ClaimTerms(mapping, tuple(self.where), order_of(mapping, order_by), named))
        counted = "attempts" in mapping.columns
        self.retry = (Backoff() if counted else None) if isinstance(retry, _AsUsual) else read_retry(retry, self.name)
        self.stale_seconds = self._read_stale(stale_after)
        self.beat_seconds = self._read_beat(beat)
        self.guarded = guarded
        self.identity = LoopIdentity(name or "")
        self.counters = Counters()
        # Plain booleans, not events: a signal handler may set them at any point, and must not take a lock.
        self.stopping = False
        self.hurrying = False
        self._aside: dict[Key, Aside] = {}
        self._complaints = Complaints()
        self._lines = threading.local()

    def _check(self, isolate: str | None) -> None:
        """Refuse settings that cannot work before anything runs."""
        handler, mapping, url = self.handler, self.mapping, self.engine.url
        if not callable(handler):
            raise UsageError(f"{self.name}: the handler {handler!r} cannot be called")
        if is_async(self.at) and getattr(handler, "wants_sync_session", False):
            raise UsageError(f"{self.name}: with an async engine, a handler that gets a session must be an `async def`")
        if getattr(handler, "gets_session", False) and is_counted_by_the_model(mapping):
            log.warning(
                "%s: a handler that writes its own row increments the version and loses the row; map a holder column",
                self.name,
            )
        in_memory = url.database in (None, "", ":memory:") and not url.query.get("uri")
        if in_memory and self.is_sqlite:
            raise UsageError(f"{self.name}: a SQLite database in memory belongs to one connection; give it a file")
        if isolate not in (None, "process"):
            raise UsageError(f'{self.name}: isolate={isolate!r}: it is "process" or None')
        if isolate and is_async(self.at):
            raise UsageError(f'{self.name}: isolate="process" needs a sync engine; handlers may be async all the same')

    def stop(self) -> None:
        """Stop claiming, let running handlers finish within the grace period, hand the rest back. A second call hands back
        at once."""
        self.hurrying = self.stopping
        self.stopping = True

    def job(self, held: Any) -> Job:
        return Job(held, self.at, lambda: self.stopping)

    def may_wait(self, error: BaseException) -> bool:
        """Whether to keep retrying a transient database error: yes, until the second `stop`. Logs it once a minute."""
        self._complaints.warn("%s: waiting for the database: %s", self.name, error)
        return not self.hurrying

    def may_wait_to_begin(self, error: BaseException) -> bool:
        """Like `may_wait`, for work that has not begun: until the first `stop`."""
        return self.may_wait(error) and not self.stopping

    def nap(self, length: float) -> None:
        """Sleep, at most until the second `stop`."""
        until = time.monotonic() + length
        while not self.hurrying and (left := until - time.monotonic()) > 0:
            sleep(self.engine, min(left, CHECK_SECONDS))

    def begin(self, work: Callable[[Open], T]) -> T:
        """Run this in a transaction of its own, and retry it after transient errors until the first `stop`."""
        return patiently(lambda: transact(self.engine, work), self.may_wait_to_begin, self.nap)

    def finish(self, work: Callable[[Open], T], effects: Sequence[Effect] = ()) -> T:
        """Run a single statement, or a transaction with effects; retry it after transient errors until the second `stop`."""
        if effects:
            return patiently(lambda: transact(self.at, work, effects), self.may_wait, self.nap)
        return patiently(lambda: transact_once(self.engine, work), self.may_wait, self.nap)

    @property
    def line(self) -> DirectLine:
        """This thread's direct access to SQLite's driver. It leaves connections in the engine's pool for the handlers, two
        for each, and one for upkeep."""
        line: DirectLine | None = getattr(self._lines, "line", None)
        if line is None:
            line = self._lines.line = DirectLine(others=2 * self.concurrency + 1)
        return line

    @contextmanager
    def summed_up(self) -> Iterator[None]:
        """Log the counters at the end of a run, as a warning if rows failed, were lost or were left."""
        counters = self.counters
        counters.left = None
        before = counters.troubles
        yield
        level = logging.WARNING if counters.left or counters.troubles > before else logging.INFO
        log.log(level, "%s: %s", self.name, counters)

    def set_aside(self, key: Key, for_seconds: float | None = None) -> None:
        """Skip a row for a while, in this process only: one to be retried later, or one that cannot be changed."""
        while len(self._aside) >= MOST_ASIDE:
            self._aside.pop(next(iter(self._aside)), None)
        length = ASIDE_SECONDS if for_seconds is None else for_seconds
        self._aside[key] = Aside(time.monotonic() + length, is_refused=for_seconds is None)

    def aside(self) -> dict[Key, Aside]:
        """The rows that are set aside now."""
        now = time.monotonic()
        for key in [key for key, one in list(self._aside.items()) if one.until <= now]:
            self._aside.pop(key, None)
        return dict(self._aside)

    def is_aside_full(self) -> bool:
        """Whether the limit is full of rows that cannot be changed: setting aside another one drops the oldest."""
        return sum(one.is_refused for one in self.aside().values()) >= MOST_ASIDE

    def not_aside(self) -> list[ColumnElement[bool]]:
        """The condition that excludes rows set aside."""
        aside = self.aside()
        return [sa.not_(key_in(self.mapping.key, list(aside)))] if aside else []

    def refused(self, key: Key, error: BaseException, what: str) -> None:
        """The database refuses to change a row: skip it for a while."""
        self.set_aside(key)
        self.counters.add(refused=1)
        self.counters.add_error(error_text(error))
        log.warning("%s: row %r %s: %s", self.name, key if len(key) > 1 else key[0], what, error_text(error))

    # Settings ---------------------------------------------------------------------------------------------------------

    def _number(self, what: str, given: int) -> int:
        if isinstance(given, bool) or not isinstance(given, int) or given < 1:
            raise UsageError(f"{self.name}: {what}={given!r} must be a number from 1")
        return given

    def _length(self, what: str, given: Duration) -> float:
        found = seconds(given, what=f"{self.name}: {what}")
        if found <= 0:
            raise UsageError(f"{self.name}: {what} must be longer than zero")
        return found

    def _read_stale(self, given: Duration | _AsUsual | None) -> float | None:
        columns = self.mapping.columns
        has_times = bool({"heartbeat", "started", "updated"} & columns.keys())
        if isinstance(given, _AsUsual):
            usual = STALE_SECONDS if "heartbeat" in columns else STALE_WITHOUT_BEAT_SECONDS
            return usual if has_times else None
        if given is None:
            return None
        if not has_times:
            raise UsageError(f"{self.name}: stale_after needs a heartbeat, started or updated column")
        return self._length("stale_after", given)

    def _read_beat(self, given: Duration | None) -> float:
        longest = (self.stale_seconds or STALE_SECONDS) / 3
        if given is None:
            return min(longest, 10.0)
        found = self._length("beat", given)
        if found > longest:
            raise UsageError(f"{self.name}: beat={given!r} is too long: at most a third of stale_after, {longest:g} s")
        return found


def is_counted_by_the_model(mapping: TableMapping) -> bool:
    """Whether only a version fences claims, and SQLAlchemy increments it with every change of the row."""
    counted = None if mapping.mapper is None else mapping.mapper.version_id_col
    return counted is not None and mapping.fence == ("version",) and mapping.columns["version"] is counted
