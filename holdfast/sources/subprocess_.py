"""Run a program and read its lines, with limits on time and output, and without leaving child processes."""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from holdfast.sources.contract import SourceFailed

MAX_BYTES = 200 * 1000 * 1000
MAX_LINE_BYTES = 16 * 1024 * 1024
#: How much of its error output is kept.
COMPLAINT_BYTES = 4096
_PIECE = 64 * 1024
#: How long its children may keep its output open once it has ended.
_AFTER_END_SECONDS = 0.5


def program(name: str, install: str) -> str:
    """The path of a program; SourceFailed says how to install it."""
    found = shutil.which(name)
    if found is None:
        raise SourceFailed(f"the program {name!r} is not there: {install}")
    return found


def lines(
    command: Sequence[str], *, seconds: float, max_bytes: int = MAX_BYTES, check: Callable[[], None] = lambda: None
) -> Iterator[bytes]:
    """Run a program and yield the lines it writes; SourceFailed if it fails, takes too long or writes too much.

    It runs in a process group of its own, which is killed after the last line, or when the reader stops.
    """
    name = os.path.basename(command[0])
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
    except OSError as error:
        raise SourceFailed(f"{name} could not be started: {error.strerror or error}") from None
    complaint = bytearray()
    try:
        yield from _lines(process, name, seconds, max_bytes, complaint, check)
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        status = process.wait()
    if status:
        raise SourceFailed(f"{name} ended with {_spoken(status)}{_last_line(complaint)}")


def _lines(
    process: subprocess.Popen[bytes],
    name: str,
    seconds: float,
    max_bytes: int,
    complaint: bytearray,
    check: Callable[[], None],
) -> Iterator[bytes]:
    deadline = time.monotonic() + seconds
    ended_at: float | None = None
    size, rest = 0, b""
    assert process.stdout is not None and process.stderr is not None
    with selectors.DefaultSelector() as selector:
        for pipe in (process.stdout, process.stderr):
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            check()
            now = time.monotonic()
            if now > deadline:
                raise SourceFailed(f"{name} took longer than {seconds:g} s{_last_line(complaint)}")
            ready = selector.select(timeout=min(0.2, deadline - now))
            for key, _ in ready:
                piece = os.read(key.fd, _PIECE)
                if not piece:
                    selector.unregister(key.fileobj)
                    continue
                size += len(piece)
                if size > max_bytes:
                    raise SourceFailed(f"{name} writes more than {max_bytes:,} bytes")
                if key.fileobj is process.stderr:
                    complaint += piece
                    del complaint[:-COMPLAINT_BYTES]
                    continue
                *full, rest = (rest + piece).split(b"\n")
                if len(rest) > MAX_LINE_BYTES:
                    raise SourceFailed(f"{name} writes a line of more than {MAX_LINE_BYTES:,} bytes")
                yield from full
            if not ready and process.poll() is not None:
                ended_at = ended_at or now
                if now - ended_at > _AFTER_END_SECONDS:
                    # A child process that it left behind holds its output open.
                    break
    if rest:
        yield rest
    # It may close both pipes before it ends.
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=max(0.0, deadline - time.monotonic()))
        return
    raise SourceFailed(f"{name} took longer than {seconds:g} s{_last_line(complaint)}")


def _spoken(status: int) -> str:
    return f"exit code {status}" if status > 0 else f"signal {-status}"


def _last_line(complaint: bytearray) -> str:
    written = [line for line in complaint.decode("utf-8", "replace").splitlines() if line.strip()]
    return f": {written[-1].strip()[:300]}" if written else ""
