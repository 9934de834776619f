"""Which machine and process this is, so that a neighbour can tell that a process is gone without waiting for its lease."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from holdfast.clock import boot_id


class Lineage:
    """Tells a process from those forked from it, which costs less than asking the system each time."""

    #: One more in a forked child than in its parent.
    forks = 0

    @classmethod
    def fork(cls) -> None:
        cls.forks += 1


os.register_at_fork(after_in_child=Lineage.fork)


def this_host() -> str:
    """Equal for two processes only if they can see each other: same boot, same process namespace."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        # Nothing can be told about processes here: a host of its own, whose workers only time can bury.
        return f"unknown {secrets.token_hex(8)}"
    return f"{boot_id()} {namespace}"


def this_process() -> str:
    """The process number alone would be given to another process some day; its start makes it unique."""
    return f"{os.getpid()} {_started(os.getpid())}"


def is_alive(process: str) -> bool:
    """Does this process, of this machine, still run?"""
    pid, _, started = process.partition(" ")
    return _started(int(pid)) == started


def _started(pid: int) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "gone"
    state, *fields = stat.rpartition(")")[2].split()
    # A process that has ended but was not collected by its parent yet is as dead as it gets.
    return "gone" if state in "ZX" else fields[18]
