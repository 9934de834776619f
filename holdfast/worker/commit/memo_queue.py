"""The queue of memos. Handlers wait for them and money is at stake, so the committer writes them first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from holdfast.engine.memos import MemoWrite, remember
from holdfast.errors import StoreError
from holdfast.store import Transaction

#: A transaction takes no further group of memos once it has this many.
MOST = 1000

Commit = Callable[[Callable[[Transaction], None]], None]


#: A group of memos that are written together, and the future that completes when they are.
QueuedMemos = tuple[Sequence[MemoWrite], Future[None]]


class MemoQueue:
    """A queue of memos, with a future per group that completes when they are durable. Memos whose lease was lost are
    marked.
    """

    def __init__(self, commit: Commit) -> None:
        self._commit = commit
        self._queue: deque[QueuedMemos] = deque()

    def __bool__(self) -> bool:
        return bool(self._queue)

    def add(self, memos: Sequence[MemoWrite]) -> Future[None]:
        future: Future[None] = Future()
        # A handler may stop waiting; its memos are written all the same.
        future.set_running_or_notify_cancel()
        self._queue.append((memos, future))
        return future

    def run(self) -> None:
        """Write all memos queued so far."""
        left = len(self._queue)
        while left > 0:
            queued: list[QueuedMemos] = []
            n = 0
            while left > 0 and n < MOST:
                queued.append(self._queue.popleft())
                n += len(queued[-1][0])
                left -= 1
            self._write(queued)

    def _write(self, queued: list[QueuedMemos]) -> None:
        memos = [memo for some, _ in queued for memo in some]
        try:
            self._commit(lambda tx: remember(tx, memos))
        except StoreError:
            self._queue.extendleft(reversed(queued))
            raise
        except Exception as error:
            if len(queued) == 1:
                queued[0][1].set_exception(error)
                return
            # One group cannot be written; it must not fail the others.
            self._queue.extendleft(reversed(queued))
            for _ in queued:
                self._write([self._queue.popleft()])
            return
        for some, future in queued:
            for memo in some:
                if not memo.lost:
                    memo.lease.remember(memo.name, memo.kept)
            future.set_result(None)
