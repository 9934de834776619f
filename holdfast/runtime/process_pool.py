"""The process pool: runs calls in child processes. If a child crashes, runs out of memory or is killed, only its call
is lost.

Each thread of the pool talks to one child at a time. The owner of the calls defines the messages; see `Conversation`.
"""

from __future__ import annotations

import queue
import socket
import time
from collections.abc import Sequence
from typing import Any, Generic, Protocol

from holdfast.errors import ProcessDied
from holdfast.model.logs import logger
from holdfast.runtime.call import A_co, C, C_contra, CallOwner
from holdfast.runtime.fork_server import ForkServer, ForkServerGone, kill_all_of
from holdfast.runtime.thread_group import ThreadGroup

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


class ProcessPool(Generic[C]):
    """Runs calls in child processes."""

    def __init__(self, conversation: Conversation[C, Any], owner: CallOwner[C], server: ForkServer) -> None:
        self._conversation = conversation
        self._owner = owner
        self._server = server
        self._calls: queue.SimpleQueue[C | None] = queue.SimpleQueue()
        self._spare: queue.SimpleQueue[tuple[int, socket.socket]] = queue.SimpleQueue()
        self._busy: dict[C, int] = {}
        self._threads = ThreadGroup("holdfast-isolated", owner.width, self._serve)

    @property
    def unfit(self) -> bool:
        """Whether no call can run in a child process any more."""
        return self._server.gone or self._threads.impossible

    def submit(self, calls: Sequence[C]) -> None:
        for call in calls:
            self._calls.put(call)
        self._threads.grow(len(calls))

    def withdraw(self) -> list[C]:
        """Take back the calls that have not started."""
        calls: list[C] = []
        while True:
            try:
                call = self._calls.get_nowait()
            except queue.Empty:
                return calls
            if call is not None:
                calls.append(call)

    def look(self, now: float) -> None:
        """Kill the children whose calls were handed back. The threads that wait for children kill all others."""
        for call, pid in list(self._busy.items()):
            if call.is_over and not call.is_being_saved and self._busy.pop(call, None) is not None:
                self._end_child(pid)

    def stop(self) -> None:
        self._server.close()
        for _ in range(self._threads.count):
            self._calls.put(None)

    def join(self, seconds: float) -> None:
        """Nothing to wait for: children end with their server, and the threads that talk to them follow."""

    def _serve(self) -> None:
        while True:
            call = self._calls.get()
            if call is None:
                return
            if self._owner.may_start(call):
                answer = self._run(call)
                if call.end():
                    self._owner.report(call, answer)

    def _run(self, call: C) -> Any:
        call.started = time.monotonic()
        suspect = self._conversation.is_suspect(call)
        try:
            pid, line = self._server.child() if suspect else self._a_child()
        except ForkServerGone as error:
            log.error("%s is handed back: %s", call.label, error)
            return self._conversation.not_run(call)
        self._busy[call] = pid
        try:
            answer = self._conversation.talk(call, line)
        except TimeoutError:
            line.close()
            self._end(call, pid)
            return self._conversation.raised(call, call.timeout_error())
        except (EOFError, OSError):
            line.close()
            how = self._end(call, pid)
            return self._conversation.raised(call, ProcessDied(f"the process that ran it ended with {how}"))
        except Exception as error:  # a bad call must not end this thread
            line.close()
            self._end(call, pid)
            return self._conversation.raised(call, error)
        if suspect:
            line.close()
            self._end(call, pid)
        elif self._busy.pop(call, None) is not None:
            self._spare.put((pid, line))
        return answer

    def _end(self, call: C, pid: int) -> str:
        return "a shutdown" if self._busy.pop(call, None) is None else self._end_child(pid)

    def _end_child(self, pid: int) -> str:
        try:
            return self._server.end(pid)
        except ForkServerGone as error:
            kill_all_of(pid)
            return f"nobody to say how: {error}"

    def _a_child(self) -> tuple[int, socket.socket]:
        try:
            return self._spare.get_nowait()
        except queue.Empty:
            return self._server.child()
