"""The log of a handler: each line begins with the item, the stage and the attempt."""

from __future__ import annotations

import logging
from typing import Any


class ItemLog(logging.LoggerAdapter[logging.Logger]):
    def log(self, level: int, msg: object, *args: object, stacklevel: int = 1, **kwargs: Any) -> None:
        if self.isEnabledFor(level):
            facts = self.extra or {}
            about = f"[{facts['item']} {facts['stage']} #{facts['attempt']}]"
            # With arguments the message is a format string, but a key is not.
            about = about.replace("%", "%%") if args else about
            self.logger.log(level, f"{about} {msg}", *args, stacklevel=stacklevel + 1, **kwargs)
