"""A disk that does not write: calls of one kind fail with EIO in one process, from the n-th on, or the n-th alone.

    failing = find_way(folder)                                     # or a text: why there is none here
    spawn(crew, folder, "w", **failing.at("fdatasync", 20))        # the 20th and all that follow
    spawn(crew, folder, "w", **failing.at("pwrite64", 20, once=True))

A few lines of C, loaded before libc, do it; where there is no compiler, strace does. Either is blind to who calls: whatever
the process syncs, or writes at a place in a file, counts. Handlers' ledgers are appended to with another call.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

CALLS = ("fdatasync", "pwrite64")

SOURCE = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char *which;
static long first, once;
static atomic_long calls;

__attribute__((constructor)) static void begin(void) {
    const char *nth = getenv("HOLDFAST_TEST_FAIL_NTH");
    which = getenv("HOLDFAST_TEST_FAIL");
    once = getenv("HOLDFAST_TEST_FAIL_ONCE") != 0;
    first = nth ? atol(nth) : 0;
}

static int fails(const char *call) {
    if (!first || strcmp(which, call)) return 0;
    long now = atomic_fetch_add(&calls, 1) + 1;
    if (once ? now != first : now < first) return 0;
    errno = EIO;
    return 1;
}

static long told(long answer) { return answer; }

int fdatasync(int file) { return fails("fdatasync") ? -1 : (int)told(syscall(SYS_fdatasync, file)); }

ssize_t pwrite64(int file, const void *from, size_t size, off64_t at) {
    return fails("pwrite64") ? -1 : told(syscall(SYS_pwrite64, file, from, size, at));
}

ssize_t pwrite(int file, const void *from, size_t size, off_t at) { return pwrite64(file, from, size, at); }
"""

#: Fails with 3 if the second call fails, as it was told.
_PROBE = """
import os, sys
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
os.pwrite(file, b"x", 0)
try:
    os.pwrite(file, b"x", 0)
except OSError:
    sys.exit(3)
"""


class FailingDisk:
    """How to start a process with such a disk."""

    def __init__(self, shim: Path | None, strace: str | None) -> None:
        self._shim, self._strace = shim, strace

    def at(self, call: str, nth: int, *, once: bool = False) -> dict[str, Any]:
        """What `spawn` needs to be told."""
        assert call in CALLS
        if self._shim is not None:
            environment = {
                "LD_PRELOAD": str(self._shim),
                "HOLDFAST_TEST_FAIL": call,
                "HOLDFAST_TEST_FAIL_NTH": str(nth),
                **({"HOLDFAST_TEST_FAIL_ONCE": "1"} if once else {}),
            }
            return {"environment": environment}
        inject = f"inject={call}:error=EIO:when={nth}{'' if once else '+'}"
        # With -D it is strace that is the grandchild: the process has the number and the parent it would have without.
        before = [str(self._strace), "-D", "-f", "-qq", "-o", os.devnull, "-e", f"trace={call}", "-e", inject]
        return {"before": before}


def find_way(folder: Path) -> FailingDisk | str:
    """A way to let calls fail that was tried; a text says why there is none."""
    why = []
    for make in (_by_shim, _by_strace):
        found = make(folder)
        if isinstance(found, str):
            why.append(found)
            continue
        given = found.at("pwrite64", 2)
        done = subprocess.run(
            [*given.get("before", []), sys.executable, "-c", _PROBE, folder / "probe"],
            env={**os.environ, **given.get("environment", {})},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 3:
            return found
        why.append(f"{make.__name__.strip('_')}: the call did not fail: {done.stderr[:200]}")
    return "; ".join(why)


def _by_shim(folder: Path) -> FailingDisk | str:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return "there is no C compiler"
    source, shim = folder / "failing.c", folder / "failing.so"
    source.write_text(SOURCE)
    done = subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", shim, source], capture_output=True, text=True, check=False
    )
    return f"the C compiler cannot build a library: {done.stderr[:200]}" if done.returncode else FailingDisk(shim, None)


def _by_strace(folder: Path) -> FailingDisk | str:
    strace = shutil.which("strace")
    return "there is no strace" if strace is None else FailingDisk(None, strace)
