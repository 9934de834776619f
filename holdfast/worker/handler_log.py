"""The log of a handler: each line begins with the item, the stage and the attempt."""

from __future__ import annotations

import logging
from typing import Any

from holdfast.telemetry.log_context import Attempt, about_attempt, prefix


class ItemLog(logging.LoggerAdapter[logging.Logger]):
    def __init__(self, logger: logging.Logger, attempt: Attempt) -> None:
        super().__init__(logger, {})
        self._attempt = attempt

    def log(self, level: int, msg: object, *args: object, stacklevel: int = 1, **kwargs: Any) -> None:
        if self.isEnabledFor(level):
            about = prefix(self._attempt._about())
            # With arguments the message is a format string, but a key is not.
            about = about.replace("%", "%%") if args else about
            # A thread of the handler has a context of its own.
            with about_attempt(self._attempt):
                self.logger.log(level, f"{about}{msg}", *args, stacklevel=stacklevel + 1, **kwargs)
