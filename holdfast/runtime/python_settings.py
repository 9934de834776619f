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
    with _old_objects_left_alone(), _young_objects_left_alone(), _quick_turns():
        yield


@contextmanager
def _old_objects_left_alone() -> Iterator[None]:
    """Hide existing objects (modules, functions, the user's own data) from the garbage collector. In a busy worker it
    would scan all of them every few thousand items, which takes a tenth of the worker's time and finds nothing.
    """
    if gc.get_freeze_count():
        yield  # the program has called freeze itself
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def _young_objects_left_alone() -> Iterator[None]:
    before = gc.get_threshold()
    if before[0]:  # zero means that collection is switched off
        gc.set_threshold(max(before[0], YOUNG_OBJECTS), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def _quick_turns() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, SWITCH_SECONDS))
    try:
        yield
    finally:
        sys.setswitchinterval(before)
