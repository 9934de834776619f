"""SIGTERM and SIGINT while a worker works: the worker handles them; this says so, and gives the exit code."""

from __future__ import annotations

import os
import signal

from holdfast.worker import Worker


def say_stopping() -> None:
    """Called in the middle of anything, also of a print: so not by print."""
    os.write(2, b"\nholdfast: stopping; running handlers get their grace, once more hands them back at once\n")


def exit_code(worker: Worker) -> int:
    """What a shell expects of a command that a signal ended."""
    return 128 + (worker.stopped_by or signal.SIGINT)
