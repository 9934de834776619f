"""Python's garbage collector, and what it need not look at."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def old_objects_left_alone() -> Iterator[None]:
    """Spare the collector what is there already: modules, functions, the user's own data. A busy worker makes it look at
    everything every few thousand items, which takes a tenth of the worker's time and finds nothing.
    """
    if gc.get_freeze_count():
        yield  # the program has seen to it itself
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
