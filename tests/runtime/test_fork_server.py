"""A process that forks child processes, as their parent sees it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import pytest

from holdfast.runtime import child_messages as wire
from holdfast.runtime.fork_server import ForkServer, ForkServerGone
from tests.support.waiting import wait_for

#: Longer than any of these tests takes on a busy machine.
PATIENCE_SECONDS = 60.0


@contextmanager
def child_of(serve: Callable[[socket.socket], None]) -> Iterator[tuple[ForkServer, int, socket.socket]]:
    server = ForkServer.forked(serve)
    try:
        pid, line = server.child()
        line.settimeout(PATIENCE_SECONDS)
        with line:
            yield server, pid, line
    finally:
        server.close()


def forks(line: socket.socket) -> int:
    if (pid := os.fork()) == 0:
        time.sleep(10 * PATIENCE_SECONDS)
        os._exit(0)
    return pid


def starts_a_program(line: socket.socket) -> int:
    # Also one that gets all descriptors that can be inherited.
    program = [sys.executable, "-c", f"import time; time.sleep({10 * PATIENCE_SECONDS})"]
    return subprocess.Popen(program, close_fds=False).pid


@pytest.mark.parametrize("leave", [forks, starts_a_program], ids=["forked", "started"])
def test_the_death_of_a_child_is_noticed_although_its_own_children_live_on(leave: Callable[[socket.socket], int]):
    def serve(line: socket.socket) -> None:
        wire.send(line, leave(line))
        wire.receive(line)
        os.kill(os.getpid(), signal.SIGKILL)

    with child_of(serve) as (server, pid, line):
        grandchild = wire.receive(line)
        wire.send(line, "die")
        with pytest.raises(EOFError):
            wire.receive(line)
        assert psutil.pid_exists(grandchild)
        assert server.end(pid) == -signal.SIGKILL
        wait_for(lambda: not psutil.pid_exists(grandchild) or psutil.Process(grandchild).status() == "zombie")


def test_a_child_that_runs_is_killed_and_one_that_has_ended_keeps_its_exit_code():
    def serve(line: socket.socket) -> None:
        if wire.receive(line) == "end":
            os._exit(7)
        wire.receive(line)

    with child_of(serve) as (server, first, line):
        wire.send(line, "end")
        with pytest.raises(EOFError):
            wire.receive(line)
        assert server.end(first) == 7
        second, other = server.child()
        with other:
            wire.send(other, "stay")
            assert server.end(second) == -signal.SIGKILL


def test_without_its_server_nobody_gets_a_child():
    with child_of(lambda line: wire.receive(line)) as (server, _, _):
        os.kill(server._pid, signal.SIGKILL)
        wait_for(lambda: psutil.Process(server._pid).status() == "zombie")
        with pytest.raises(ForkServerGone):
            server.child()
        assert server.gone
