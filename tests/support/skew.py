"""A process that is wrong about the time of day: a few lines of C, loaded before libc, shift its wall clock.

    shim = build_shim(folder)                      # or a text: why it cannot be had here
    wrong = Skew(shim, folder / "wrong", hours=2)
    crew.start("w", environment=wrong.environment)
    wrong.set(hours=-1)                            # and its clock jumps while it runs

Only the time of day moves; the clock since boot is the machine's own.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

SOURCE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *shift;  /* seconds, in a file that the test writes to */

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("HOLDFAST_TEST_SHIFT");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *found = mmap(0, sizeof *shift, PROT_READ, MAP_SHARED, file, 0);
    if (found != MAP_FAILED) shift = found;
    close(file);
}

int clock_gettime(clockid_t which, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, which, now);
    if (!failed && shift && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) now->tv_sec += *shift;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (now) *now = precise.tv_sec;
    return precise.tv_sec;
}
"""

#: Prints by how much the time of day differs from a file's, and how long a wait of 10 ms takes.
_PROBE = """
import os, sys, threading, time
os.utime(sys.argv[1])
began = time.monotonic()
threading.Event().wait(0.01)
print(time.time() - os.stat(sys.argv[1]).st_mtime, time.monotonic() - began)
"""


class Skew:
    """By how much the processes of one environment are wrong."""

    def __init__(self, shim: Path, file: Path, *, hours: float = 0) -> None:
        self.environment = {"LD_PRELOAD": str(shim), "HOLDFAST_TEST_SHIFT": str(file)}
        self._file = file
        file.touch()
        self.set(hours=hours)

    def set(self, *, hours: float) -> None:
        """Set their clocks, now: by so much from the true time."""
        # In place: the processes have the file mapped.
        with self._file.open("r+b") as file:
            file.write(struct.pack("=q", round(hours * 3600)))


def build_shim(folder: Path) -> Path | str:
    """Compile the shim and try it; a text says why it cannot be had here."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return "there is no C compiler"
    source, shim = folder / "shift.c", folder / "shift.so"
    source.write_text(SOURCE)
    done = subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", shim, source], capture_output=True, text=True, check=False
    )
    if done.returncode:
        return f"the C compiler cannot build a library: {done.stderr[:200]}"
    # Some Pythons wait by the time of day; under a shifted one they would wait for hours.
    probe = folder / "probe"
    probe.touch()
    wrong = Skew(shim, folder / "probe-shift", hours=-2)
    try:
        said = subprocess.run(
            [sys.executable, "-c", _PROBE, probe],
            env={**os.environ, **wrong.environment},
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        ).stdout
    except subprocess.SubprocessError as error:
        return f"Python does not run under the shim: {error}"
    shifted, waited = map(float, said.split())
    if abs(shifted + 2 * 3600) > 60 or waited > 1:
        return f"the shim does not work with this Python: wrong by {shifted:.0f} s, waited {waited:.1f} s"
    return shim
