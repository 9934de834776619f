"""Identifies this host and process, so that another worker can detect a dead process before its lease expires."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from holdfast.clock import boot_id


class Lineage:
    """Distinguishes a process from its forks, more cheaply than a system call would."""

    #: One more in a forked child than in its parent.
    forks = 0

    @classmethod
    def fork(cls) -> None:
        cls.forks += 1


os.register_at_fork(after_in_child=Lineage.fork)


def this_host() -> str:
    """Identifies the host; equal for two processes only if they see each other: same boot, same PID namespace."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        # Processes cannot be inspected here. A unique host means that only an expired lease proves these workers dead.
        return f"unknown {secrets.token_hex(8)}"
    return f"{boot_id()} {namespace}"


def this_process() -> str:
    """The pid with its start time, because the system reuses pids."""
    return f"{os.getpid()} {_started(os.getpid())}"


def is_alive(process: str) -> bool:
    """Whether this process of this host is still running."""
    pid, _, started = process.partition(" ")
    return _started(int(pid)) == started


def _started(pid: int) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "gone"
    state, *fields = stat.rpartition(")")[2].split()
    # A zombie is dead: its parent just has not collected it yet.
    return "gone" if state in "ZX" else fields[18]
