"""Errands: memos that handlers wait for, written by the committer's thread before anything else: money is at stake."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from holdfast.engine.remember import MemoWrite, remember
from holdfast.errors import LeaseLost, StoreError
from holdfast.store import Transaction

#: Memos that go into one transaction at most.
MOST = 1000

Commit = Callable[[Callable[[Transaction], None]], None]


class Errands:
    """A queue of memos, each with a future that tells when it is safe, or that the lease was lost."""

    def __init__(self, commit: Commit) -> None:
        self._commit = commit
        self._queue: deque[tuple[MemoWrite, Future[None]]] = deque()

    def __bool__(self) -> bool:
        return bool(self._queue)

    def add(self, memo: MemoWrite) -> Future[None]:
        future: Future[None] = Future()
        # Whoever waits may give up waiting; the memo is written all the same.
        future.set_running_or_notify_cancel()
        self._queue.append((memo, future))
        return future

    def run(self) -> None:
        """Write what was asked for so far."""
        left = len(self._queue)
        while left > 0:
            errands = [self._queue.popleft() for _ in range(min(left, MOST))]
            left -= len(errands)
            self._write(errands)

    def _write(self, errands: list[tuple[MemoWrite, Future[None]]]) -> None:
        memos = [memo for memo, _ in errands]
        try:
            self._commit(lambda tx: remember(tx, memos))
        except StoreError:
            self._queue.extendleft(reversed(errands))
            raise
        except Exception as error:
            if len(errands) == 1:
                errands[0][1].set_exception(error)
                return
            # One of them cannot be written, and must not take the others along.
            for place, one in enumerate(errands):
                try:
                    self._write([one])
                except StoreError:
                    self._queue.popleft()  # it is back there, in front of those that came after it
                    self._queue.extendleft(reversed(errands[place:]))
                    raise
            return
        for memo, future in errands:
            if memo.lost:
                future.set_exception(
                    LeaseLost(
                        f"item {memo.lease.key!r}: the lease of attempt {memo.lease.attempt} has ended; "
                        f"{memo.name!r} is not recorded, another worker has the item"
                    )
                )
            else:
                memo.lease.remember(memo.name, memo.kept)
                future.set_result(None)
