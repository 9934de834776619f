"""The fork server: a process that forks child processes.

It is forked before its parent starts threads, or is a process that has only loaded what its children need. So its
children begin with one thread, no connection, no held lock, and all handlers imported. The server and its children end
when the parent ends, however that happens.
"""

from __future__ import annotations

import os
import signal
import socket
import stat
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.runtime import child_messages as wire
from holdfast.store.driver import Forkable

#: Runs in each child; it talks over its socket until the socket closes.
Serve = Callable[[socket.socket], None]


class ForkServerGone(HoldfastError):
    """No child process is available. The fault lies with this process, not with the work."""


class ForkServer(Forkable):
    """The parent's side: starts a child, ends one, and reports how it ended."""

    def __init__(self, line: socket.socket, pid: int) -> None:
        """`line` leads to a process that runs `serve_forks`."""
        self._talking = threading.Lock()
        self._pid = pid
        self._line = line
        self._lines: list[socket.socket] = []
        #: The server died. Now that threads run, this process cannot fork another: a new process must take over.
        self.gone = False
        # From here on, processes that handlers fork must not keep the sockets open: they would hide the end of this
        # process.
        super().__init__()

    @classmethod
    def forked(cls, serve: Serve) -> ForkServer:
        """A server that is forked from this process, which has only one thread yet."""
        mine, its = socket.socketpair()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # The only other thread there may be watches connections, and the child has none.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            mine.close()
            _run_and_exit(lambda: serve_forks(its, serve))
        its.close()
        return cls(mine, pid)

    def descriptors(self) -> list[int]:
        return [line.fileno() for line in (self._line, *self._lines) if line.fileno() >= 0]

    def child(self) -> tuple[int, socket.socket]:
        """Start a child process; return its pid and the socket to it."""
        mine, its = socket.socketpair()
        with self._talking, its:
            self._lines = [line for line in self._lines if line.fileno() >= 0] + [mine]
            answer = self._ask("child", its)
        if isinstance(answer, str):
            mine.close()
            raise ForkServerGone(f"no child process could be started: {answer}")
        return int(answer), mine

    def end(self, pid: int) -> int:
        """Kill a child if it still runs, wait for it, and return its exit code, negative for a signal."""
        with self._talking:
            return int(self._ask(pid))

    def _ask(self, request: object, gift: socket.socket | None = None) -> Any:
        try:
            wire.send(self._line, request)
            if gift is not None:
                socket.send_fds(self._line, [b"."], [gift.fileno()])
            return wire.receive(self._line)
        except (OSError, EOFError) as error:
            self.gone = True
            raise ForkServerGone(f"the process that makes child processes is gone ({type(error).__name__})") from error

    def close(self) -> None:
        self.closed = True
        with suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)
        with suppress(OSError):
            self._line.close()
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def serve_forks(line: socket.socket, serve: Serve) -> None:
    """Be the server at the other end of a line, until it closes: fork children, kill them and report how they ended."""
    os.setsid()  # the parent handles Ctrl-C in the terminal
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    _drop_connections()
    children: set[int] = set()
    while True:
        try:
            request = wire.receive(line)
        except EOFError:
            break
        if request == "child":
            answer = _fork(line, serve)
            if isinstance(answer, int):
                children.add(answer)
        else:
            answer = _end(request)
            children.discard(request)
        wire.send(line, answer)
    for pid in children:
        kill_all_of(pid)


def _fork(line: socket.socket, serve: Serve) -> int | str:
    """The pid of a new child, or why there is none."""
    _, [descriptor], _, _ = socket.recv_fds(line, 1, 1)
    with socket.socket(fileno=descriptor) as its:
        try:
            pid = os.fork()
        except OSError as error:
            return str(error)
        if pid == 0:
            line.close()
            os.setsid()  # so that processes started by the handler can be killed with it
            _run_and_exit(lambda: serve_alone(its, serve))
    return pid


def _end(pid: int) -> int:
    ended, status = os.waitpid(pid, os.WNOHANG)
    kill_all_of(pid)
    if not ended:
        _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def serve_alone(line: socket.socket, serve: Serve) -> None:
    """Be the child at the other end of a line. Processes that it starts do not keep the line open, so that the other
    end notices when this process ends.
    """
    line.set_inheritable(False)
    cut_off_in_forks = _ChildLine(line)
    serve(line)
    cut_off_in_forks.closed = True


class _ChildLine(Forkable):
    def __init__(self, line: socket.socket) -> None:
        self._line = line
        super().__init__()

    def descriptors(self) -> list[int]:
        return [self._line.fileno()]


def exit_in_words(code: int) -> str:
    """An exit code of a process, negative for a signal, in words."""
    # Signals without a name of their own are not among those that Python lists.
    name = next((one.name for one in signal.Signals if one == -code), "unnamed")
    return f"signal {-code} ({name})" if code < 0 else f"exit code {code}"


def _drop_connections() -> None:
    """Let go of the parent's network connections. If this process kept those of a web server open, their other sides would not
    see the parent close them.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for number in map(int, os.listdir("/dev/fd")):
        with suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            with socket.socket(fileno=os.dup(number)) as one:
                is_connection = one.type == socket.SOCK_STREAM and one.family in (socket.AF_INET, socket.AF_INET6)
            if is_connection:
                # Not closed: the number could be given to another file while an object still uses it.
                os.dup2(null, number, inheritable=False)
    os.close(null)


def kill_all_of(pid: int) -> None:
    """Kill a child and every process in its group."""
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass


def _run_and_exit(what: Callable[[], None]) -> None:
    """Run a forked process to its end, without any of the parent's clean-up code."""
    code = 1
    try:
        what()
        code = 0
    except BaseException as error:
        print(f"holdfast: a child process ended with {type(error).__name__}: {error}", file=sys.stderr)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
