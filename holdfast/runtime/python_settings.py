"""Tunes Python while a worker runs, and restores the settings afterwards. This affects speed only."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

#: How long a thread may hold the GIL while another waits for it. The committer needs it after every reply of the
#: database; with Python's default of 5 ms it would mostly wait for busy handlers.
SWITCH_SECONDS = 0.0005
#: How many new objects trigger a garbage collection, instead of Python's 700. By then the objects of a whole batch of
#: quick items are gone and cost nothing to scan.
YOUNG_OBJECTS = 10_000


@contextmanager
def set_for_work() -> Iterator[None]:
    """Hide existing objects (modules, functions, the user's own data) from the garbage collector, which in a busy worker
    would scan all of them every few thousand items: a tenth of the worker's time, and nothing found. Let it leave young
    objects alone, too, and have threads take turns quickly.
    """
    switch_seconds, threshold = sys.getswitchinterval(), gc.get_threshold()
    freezes = not gc.get_freeze_count()  # otherwise the program has called freeze itself
    sys.setswitchinterval(min(switch_seconds, SWITCH_SECONDS))
    if threshold[0]:  # zero means that collection is switched off
        gc.set_threshold(max(threshold[0], YOUNG_OBJECTS), *threshold[1:])
    if freezes:
        gc.freeze()
    try:
        yield
    finally:
        if freezes:
            gc.unfreeze()
        gc.set_threshold(*threshold)
        sys.setswitchinterval(switch_seconds)
