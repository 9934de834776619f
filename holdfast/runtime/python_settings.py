"""Tunes Python while a worker runs, and restores the settings afterwards. This affects speed only."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

#: How long a thread may hold the GIL while another waits for it. The committer needs it after every reply of the
#: database; with Python's default of 5 ms it would mostly wait for busy handlers.
SWITCH_SECONDS = 0.0005
#: How many new objects trigger a garbage collection, instead of Python's 700. By then the objects of a whole batch of
#: quick items are gone and cost nothing to scan.
YOUNG_OBJECTS = 10_000


_lock = threading.Lock()
#: How many workers run in this process, and what restores the settings after the last of them.
_working = 0
_restore = ExitStack()


@contextmanager
def set_for_work() -> Iterator[None]:
    """The first worker of a process changes the settings, the last one restores them."""
    global _working
    with _lock:
        _working += 1
        if _working == 1:
            _restore.enter_context(_changed())
    try:
        yield
    finally:
        with _lock:
            _working -= 1
            if _working == 0:
                _restore.close()


@contextmanager
def _changed() -> Iterator[None]:
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
