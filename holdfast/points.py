"""Named points in the code at which a test may step in: to count, to stall, to end the process.

In production nothing listens and a point costs one comparison. `holdfast.testing` installs the listeners.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

PointListener = Callable[[str], None]

listener: PointListener | None = None

#: Every point a worker passes through in one cycle, in order. On top come `store.<statement>`, before each statement,
#: `effect.after`, when an effect has run and is not committed yet, and `cost`, when a handler has told what it spent.
WORKER_POINTS = (
    "claim.before",
    "claim.after",
    "run.before",
    "run.after",
    "commit.before",
    "commit.after",
)


#: What the point that a thread reached last is about.
_last = threading.local()


def reach(point: str, *about: Any) -> None:
    """Tell whoever listens that execution is here, and what it is about."""
    if listener is not None:
        _last.about = about
        listener(point)


def about() -> tuple[Any, ...]:
    """For a listener: what the point is about that this thread has just reached. `store.<statement>`: its rows and its
    parameters; `run.before` and `run.after`: the call; `effect.after`: the stage and the function; `cost`: the pipeline,
    the stage and the amount."""
    return getattr(_last, "about", ())


def listen(new: PointListener | None) -> PointListener | None:
    """Put `new` in the listener's place and return the old one."""
    global listener
    old, listener = listener, new
    return old
