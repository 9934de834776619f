"""A small shell with job control on the terminal that its first argument names: one command of holdfast in the foreground."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

import holdfast.cli
from holdfast.cli.top import frame, live
from tests.support.forking import die_with_parent, take_files

#: After how many frames drawing raises an error.
FAILS_VARIABLE = "TOP_FAILS_AFTER"


def main() -> None:
    # Who leads a session gets the first terminal that it opens.
    terminal = os.open(sys.argv[1], os.O_RDWR)
    take_files(terminal, terminal, terminal)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    command = os.fork()
    if not command:
        _be_the_command()
    with suppress(OSError):
        os.setpgid(command, command)
    os.tcsetpgrp(0, command)
    while True:
        _, status = os.waitpid(command, os.WUNTRACED)
        os.tcsetpgrp(0, os.getpgrp())
        if not os.WIFSTOPPED(status):
            break
        print("[stopped]", flush=True)
        # The terminal is left as the command has left it: a whole line is read.
        while os.read(0, 100) != b"F\n":
            pass
        os.tcsetpgrp(0, command)
        os.killpg(command, signal.SIGCONT)
    print(f"[ended {os.waitstatus_to_exitcode(status)}]", flush=True)
    # The terminal stays until it has been looked at.
    signal.pause()


def _be_the_command() -> None:
    die_with_parent()
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    print(f"[began {os.getpid()}]", flush=True)
    if frames := int(os.environ.get(FAILS_VARIABLE, "0")):
        _fail_after(frames)
    sys.argv = ["holdfast", *sys.argv[2:]]
    code = 0
    try:
        holdfast.cli.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        sys.stdout.flush()
        os._exit(code)


def _fail_after(frames: int) -> None:
    """Let drawing fail as a bug would."""
    drawn = 0

    def broken(*given: object) -> object:
        nonlocal drawn
        drawn += 1
        if drawn > frames:
            raise RuntimeError("the frame broke")
        return frame.frame(*given)  # type: ignore[arg-type]

    live.frame = broken  # type: ignore[assignment]
