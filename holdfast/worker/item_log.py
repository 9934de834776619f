"""The log of a handler: each line begins with the item, the stage and the attempt."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from holdfast.telemetry.attributes import Attributes
from holdfast.telemetry.logs import about_attempt, prefix


class ItemLog(logging.LoggerAdapter[logging.Logger]):
    def __init__(self, logger: logging.Logger, about: Callable[[], Attributes]) -> None:
        super().__init__(logger, {})
        self._about = about

    def log(self, level: int, msg: object, *args: object, stacklevel: int = 1, **kwargs: Any) -> None:
        if self.isEnabledFor(level):
            about = prefix(self._about())
            # With arguments the message is a format string, but a key is not.
            about = about.replace("%", "%%") if args else about
            # A thread of the handler has a context of its own.
            with about_attempt(self._about):
                self.logger.log(level, f"{about}{msg}", *args, stacklevel=stacklevel + 1, **kwargs)
