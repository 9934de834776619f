"""What a forked child of a test does first and last: it ends with its parent, has files of its own, leaves an exit code.

pid = os.fork()
if pid == 0:
    become(work, files=[nothing, said, said])

assert in_a_child(lambda: 1 + 1) == "2"
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NoReturn

PR_SET_PDEATHSIG = 1
#: No child of a test takes this long.
STUCK_SECONDS = 30


def become(work: Callable[[], object], files: Sequence[int]) -> NoReturn:
    """Do this with these files as input, output and errors; end with 0, with what SystemExit says, or with a traceback."""
    code = 1
    try:
        die_with_parent()
        take_files(*files)
        work()
        code = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        # Nothing of the parent's is run at the end, and threads that are left are waited for no longer.
        os._exit(code)


def take_files(stdin: int, stdout: int, stderr: int) -> None:
    for number, file in enumerate((stdin, stdout, stderr)):
        os.dup2(file, number)
    # As Python makes them when it begins: the parent's know things about its files, not about these.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115


def die_with_parent() -> None:
    """A test run that is killed must not leave processes behind."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def in_a_child(work: Callable[[], object]) -> str:
    """Run the work in a forked child; return what it returned, as text, or the error it raised."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        # One that waits for ever is ended, and has no answer.
        signal.alarm(STUCK_SECONDS)
        try:
            answer = repr(work())
        except BaseException:
            answer = traceback.format_exc()
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer
