"""What a forked child of a test does first and last: it ends with its parent, has files of its own, leaves an exit code.

    pid = os.fork()
    if pid == 0:
        become(work, files=[nothing, said, said])
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NoReturn

PR_SET_PDEATHSIG = 1


def become(work: Callable[[], object], files: Sequence[int]) -> NoReturn:
    """Do this with these files as input, output and errors; end with 0, with what SystemExit says, or with a traceback."""
    code = 1
    try:
        die_with_parent()
        _take(*files)
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


def _take(stdin: int, stdout: int, stderr: int) -> None:
    for number, file in enumerate((stdin, stdout, stderr)):
        os.dup2(file, number)
    # As Python makes them when it begins: the parent's know things about its files, not about these.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115


def die_with_parent() -> None:
    """A test run that is killed must not leave processes behind."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
