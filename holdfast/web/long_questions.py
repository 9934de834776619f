"""Questions that read a whole pipeline: one at a time, in pieces with pauses between them, and only while somebody looks.

Who asks first sees how far it has come; later on, the last answer with its age, while a new one is made.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from holdfast.app import Holdfast
from holdfast.errors import HoldfastError
from holdfast.web.shared_answers import Answered

#: Called between two pieces, with the share that is read.
OnStep = Callable[[float], None]
Walk = Callable[[Holdfast, OnStep], Any]

#: An answer is used for so long, and for this many times what it took.
FRESH_SECONDS = 15.0
TIMES_TAKEN = 20
MOST_KEPT = 20
#: How long to rest after a piece, as a multiple of what it took.
REST = 2.0


@dataclass(frozen=True)
class Counting:
    """There is no answer yet."""

    share: float


class _Stopped(Exception):
    pass


@dataclass
class _Walked:
    answered: Answered | None = None
    failed: HoldfastError | None = None
    share: float = 0.0
    is_running: bool = False

    @property
    def is_fresh(self) -> bool:
        last = self.answered
        return last is not None and last.age_seconds < max(FRESH_SECONDS, TIMES_TAKEN * last.took_seconds)


class Walks:
    """`opened` makes an app that only reads."""

    def __init__(self, opened: Callable[[], Holdfast]) -> None:
        self._opened = opened
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="holdfast-web-walk")
        self._lock = threading.Lock()
        self._known: OrderedDict[str, _Walked] = OrderedDict()
        self._stopped = threading.Event()

    def ask(self, name: str, question: Walk) -> Answered:
        """The last answer, or how far the first one is; raises what the last walk ended with."""
        with self._lock:
            known = self._known.setdefault(name, _Walked())
            self._known.move_to_end(name)
            failed, known.failed = known.failed, None
            if failed is None and not known.is_fresh and not known.is_running:
                known.is_running, known.share = True, 0.0
                self._pool.submit(self._walk, known, question)
            for other in [one for one, kept in self._known.items() if not kept.is_running][:-MOST_KEPT]:
                del self._known[other]
        if failed is not None:
            raise failed
        return known.answered or Answered(Counting(round(known.share, 2)), time.monotonic(), 0.0)

    def close(self) -> None:
        self._stopped.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _walk(self, known: _Walked, question: Walk) -> None:
        begun = last = time.monotonic()

        def on_step(share: float) -> None:
            nonlocal last
            known.share = share
            if self._stopped.wait((time.monotonic() - last) * REST):
                raise _Stopped
            last = time.monotonic()

        try:
            with self._opened() as app:
                value = question(app, on_step)
            ended = time.monotonic()
            known.answered = Answered(value, ended, ended - begun)
        except HoldfastError as error:
            known.failed = error
        except _Stopped:
            pass
        finally:
            known.is_running = False
