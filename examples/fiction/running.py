"""Running: one pass after another, until a process is asked to stop or has nothing left to do."""

from __future__ import annotations

import logging
from collections.abc import Callable

from sqlalchemy.exc import OperationalError

from examples.fiction.stopping import Stop

log = logging.getLogger("examples.fiction")


def keep_going(
    one_pass: Callable[[], int], stop: Stop, *, poll_seconds: float, is_done: Callable[[], bool] | None = None
) -> None:
    """Repeat a pass: at once while it finds something, after a while if not. With `is_done`, end when that says so.

    Trouble with the database is waited for: a pass is a transaction, and can be begun again.
    """
    while not stop.asked:
        try:
            found = one_pass()
            if not found and is_done is not None and is_done():
                return
        except OperationalError as error:
            log.warning("waiting for the database: %s", error.orig)
            found = 0
        if not found:
            stop.wait(poll_seconds)
