"""The process pool: runs calls in child processes. If a child crashes, runs out of memory or is killed, only its call
is lost.

The owner of the calls defines the messages; see `Conversation`.
"""

from __future__ import annotations

import queue
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from holdfast.errors import ProcessDied
from holdfast.model.log_lines import logger
from holdfast.runtime.call import A_co, C, C_contra, CallOwner, Paces
from holdfast.runtime.fork_server import ForkServer, ForkServerGone, exit_in_words, kill_all_of
from holdfast.runtime.thread_pool import ThreadPool

log = logger("holdfast.runtime")


class Conversation(Protocol[C_contra, A_co]):
    """The messages between parent and child about a call, and the result of the call."""

    def talk(self, call: C_contra, line: socket.socket) -> A_co:
        """Have the child run the call. Raises TimeoutError if it takes too long, EOFError or OSError if the child is
        gone.
        """
        ...

    def is_suspect(self, call: C_contra) -> bool:
        """Whether it needs a fresh child that serves no other call."""
        return False

    def raised(self, call: C_contra, error: BaseException) -> A_co:
        """The result if the call failed, timed out, or lost its child."""
        ...

    def not_run(self, call: C_contra) -> A_co:
        """The result if no child process was available."""
        ...


class _NeverQuick(Paces):
    """It takes longer to talk to a child than to wake a thread."""


class ProcessPool(ThreadPool[C]):
    """Runs calls in child processes: each of its threads talks to one child at a time."""

    def __init__(self, conversation: Conversation[C, Any], owner: CallOwner[C], server: ForkServer) -> None:
        super().__init__(self, replace(owner, out_of_work=lambda is_free: False), _NeverQuick())
        self._conversation = conversation
        self._server = server
        self._spare: queue.SimpleQueue[tuple[int, socket.socket]] = queue.SimpleQueue()
        self._busy: dict[C, int] = {}
        self.raised = conversation.raised

    @property
    def unfit(self) -> bool:
        """Whether no call can run in a child process any more."""
        return self._server.gone or super().unfit

    def stop(self) -> None:
        """End all children, and the threads that talk to them."""
        self._server.close()
        super().stop()

    def _look_at(self, thread: int, call: C, now: float) -> None:
        """Kill a child whose call was handed back. The threads that wait for children kill all others."""
        if call.is_over and not call.is_being_saved and (pid := self._busy.pop(call, None)) is not None:
            self._end_child(pid)

    def run(self, call: C, clock: Callable[[], float]) -> Any:
        call.started = clock()
        suspect = self._conversation.is_suspect(call)
        try:
            pid, line = self._server.child() if suspect else self._a_child()
        except ForkServerGone as error:
            log.error("%s is handed back: %s", call.label, error)
            return self._conversation.not_run(call)
        self._busy[call] = pid
        try:
            answer = self._conversation.talk(call, line)
        except Exception as error:  # a bad call must not end this thread
            how = self._end(call, pid, line)
            if isinstance(error, TimeoutError):
                error = call.timeout_error()
            elif isinstance(error, (EOFError, OSError)):
                error = ProcessDied(f"the process that ran it ended with {how}")
            return self._conversation.raised(call, error)
        if suspect:
            self._end(call, pid, line)
        elif self._busy.pop(call, None) is not None:
            self._spare.put((pid, line))
        return answer

    def _end(self, call: C, pid: int, line: socket.socket) -> str:
        line.close()
        return "a shutdown" if self._busy.pop(call, None) is None else self._end_child(pid)

    def _end_child(self, pid: int) -> str:
        try:
            return exit_in_words(self._server.end(pid))
        except ForkServerGone as error:
            kill_all_of(pid)
            return f"nobody to say how: {error}"

    def _a_child(self) -> tuple[int, socket.socket]:
        try:
            return self._spare.get_nowait()
        except queue.Empty:
            return self._server.child()
