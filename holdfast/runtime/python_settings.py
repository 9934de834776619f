"""How Python is set while a worker runs in the process, and set back afterwards. All of it is a matter of speed alone."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

#: How long a thread may keep the interpreter while another wants it. The thread that commits wants it after every answer
#: of the database; with Python's own 5 ms it would mostly wait for handlers that are in the middle of something.
SWITCH_SECONDS = 0.0005
#: So many new objects, instead of Python's 700, make the garbage collector look at them: those of a whole batch of quick
#: items are gone by then, and need not be looked at.
YOUNG_OBJECTS = 10_000


@contextmanager
def set_for_work() -> Iterator[None]:
    with _old_objects_left_alone(), _young_objects_left_alone(), _quick_turns():
        yield


@contextmanager
def _old_objects_left_alone() -> Iterator[None]:
    """Spare the garbage collector what is there already: modules, functions, the user's own data. A busy worker makes it
    look at everything every few thousand items, which takes a tenth of the worker's time and finds nothing.
    """
    if gc.get_freeze_count():
        yield  # the program has seen to it itself
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def _young_objects_left_alone() -> Iterator[None]:
    before = gc.get_threshold()
    if before[0]:  # else it is switched off
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
