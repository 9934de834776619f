"""Answers that visitors share: a few threads, with a connection each, ask the store for all of them.

If the same question comes several times within about a second, the store is asked once. The longer a question takes, the longer
its answer is used. Every question has a time limit: a page that gives up says so, and the database ends the query. A question
that was slow the last time runs in separate threads, so that the others do not wait for it.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from holdfast.answers.json_of import json_of
from holdfast.answers.text_tables import as_text
from holdfast.app import Holdfast
from holdfast.errors import QuestionTimeout

THREADS = 3
#: Threads for what took longer than this the last time.
SLOW_THREADS = 2
SLOW_SECONDS = 1.0
LIMIT_SECONDS = 5.0
#: An answer is used for so long, and for this many times what it took.
FRESH_SECONDS = 1.0
TIMES_TAKEN = 20
LONGEST_FRESH_SECONDS = 60.0
#: Answers that are kept, and questions that may wait for a thread.
MOST_KEPT = 200
MOST_WAITING = 50


class GaveUp(Exception):
    """A question was not answered in time."""


@dataclass(frozen=True)
class Answered:
    """An answer, when it was given, and how long that took."""

    value: Any
    at: float
    took_seconds: float

    @property
    def age_seconds(self) -> float:
        return max(0.0, time.monotonic() - self.at)

    @property
    def fresh_seconds(self) -> float:
        return min(LONGEST_FRESH_SECONDS, max(FRESH_SECONDS, TIMES_TAKEN * self.took_seconds))

    @cached_property
    def json(self) -> Any:
        return self.value.json() if hasattr(self.value, "json") else json_of(self.value)

    @cached_property
    def mark(self) -> str:
        """The same for the same answer, and for no other."""
        return hashlib.sha256(as_text(self.json).encode()).hexdigest()[:24]


@dataclass
class _Asked:
    future: Future[Answered]
    begun: float = field(default_factory=time.monotonic)

    @property
    def is_fresh(self) -> bool:
        if not self.future.done():
            return True
        if self.future.cancelled() or self.future.exception() is not None:
            return False
        answered = self.future.result()
        return answered.age_seconds < answered.fresh_seconds


class Questions:
    """`opened` makes an app that only reads."""

    def __init__(self, opened: Callable[[], Holdfast], limit_seconds: float = LIMIT_SECONDS) -> None:
        self._opened = opened
        self.limit_seconds = limit_seconds
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="holdfast-web")
        self._slow_pool = ThreadPoolExecutor(SLOW_THREADS, thread_name_prefix="holdfast-web-slow")
        self._slow: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()
        self._asked: OrderedDict[str, _Asked] = OrderedDict()
        self._local = threading.local()
        self._readers: list[Holdfast] = []
        #: How many questions the store was asked.
        self.count = 0

    async def ask(self, name: str, question: Callable[[Holdfast], Any]) -> Answered:
        """The answer to the question of this name; raises GaveUp after the time limit."""
        future = self._shared(name, question)
        asked = asyncio.wrap_future(future)
        # If nobody waits for it any more, nobody asks what became of it.
        asked.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            return await asyncio.wait_for(asyncio.shield(asked), self.limit_seconds)
        except TimeoutError:
            raise GaveUp(f"the store did not answer within {self.limit_seconds:g} s") from None

    def forget(self) -> None:
        """Something was changed: the next question gets a new answer."""
        with self._lock:
            self._asked.clear()

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._slow_pool.shutdown(wait=True, cancel_futures=True)
        for reader in self._readers:
            reader.close()
        self._readers.clear()

    def _shared(self, name: str, question: Callable[[Holdfast], Any]) -> Future[Answered]:
        with self._lock:
            known = self._asked.get(name)
            if known is not None and known.is_fresh:
                return known.future
            if sum(not one.future.done() for one in self._asked.values()) >= MOST_WAITING:
                raise GaveUp("too many questions wait for the store")
            pool = self._slow_pool if name in self._slow else self._pool
            self._asked[name] = asked = _Asked(pool.submit(self._timed, name, question, time.monotonic()))
            self._asked.move_to_end(name)
            while len(self._asked) > MOST_KEPT:
                self._asked.popitem(last=False)
            return asked.future

    def _timed(self, name: str, question: Callable[[Holdfast], Any], asked_at: float) -> Answered:
        begun = time.monotonic()
        left = asked_at + self.limit_seconds - begun
        if left <= 0:
            raise GaveUp("nobody waits for the answer any more")
        try:
            with self._reader().answer_within(left):
                return self._answer(question)
        except QuestionTimeout as error:
            raise GaveUp(str(error)) from None
        finally:
            self._remember(name, time.monotonic() - begun > min(SLOW_SECONDS, self.limit_seconds))

    def _remember(self, name: str, is_slow: bool) -> None:
        with self._lock:
            self._slow.pop(name, None)
            if is_slow:
                self._slow[name] = None
                while len(self._slow) > MOST_KEPT:
                    self._slow.popitem(last=False)

    def _answer(self, question: Callable[[Holdfast], Any]) -> Answered:
        begun = time.monotonic()
        self.count += 1
        value = question(self._reader())
        ended = time.monotonic()
        answered = Answered(value, ended, ended - begun)
        # Made here, once for all who look.
        _ = answered.mark
        return answered

    def _reader(self) -> Holdfast:
        """The app of this thread: no question waits for a lock that another one holds."""
        reader: Holdfast | None = getattr(self._local, "reader", None)
        if reader is None:
            reader = self._local.reader = self._opened()
            with self._lock:
                self._readers.append(reader)
        return reader
