"""Logging for the command line: one line on stderr for each record, which a key or an error message cannot forge."""

from __future__ import annotations

import logging
import sys
import time
from typing import TextIO

from holdfast.app import created_log
from holdfast.model.log_lines import CleanRecords, printable
from holdfast.telemetry.log_context import JsonLines

_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)


class _ToStderr(logging.StreamHandler[TextIO]):
    """Writes to whatever stderr is at the moment: progress bars put themselves in its place."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, value: TextIO) -> None: ...


class _OneLine(logging.Formatter):
    """A record is a line, with its traceback: nobody can write one that looks like another."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%SZ"
    default_msec_format = None

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


#: How lines can look.
FORMATS = ("console", "json")


def set_up(verbosity: int, form: str = FORMATS[0]) -> None:
    """Log to stderr: warnings and new stores, with 1 what holdfast does, with 2 everything of it and what others do."""
    root = logging.getLogger()
    for handler in [one for one in root.handlers if isinstance(one, _ToStderr)]:
        root.removeHandler(handler)
    handler = _ToStderr()
    lines = JsonLines() if form == "json" else _OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(lines)
    handler.addFilter(CleanRecords())
    root.addHandler(handler)
    level = _LEVELS[min(verbosity, 2)]
    logging.getLogger("holdfast").setLevel(level)
    created_log.setLevel(min(level, logging.INFO))
    # Libraries log at INFO for every request they send: that is asked for with -v, not by starting a worker.
    root.setLevel(logging.INFO if verbosity > 1 else logging.WARNING)
