"""Named points in the code at which a test may intervene: to count, to delay, to kill the process.

In production nothing listens and a point costs one comparison. `holdfast.testing` installs the listeners.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

PointListener = Callable[[str], None]

listener: PointListener | None = None

#: Every point a worker passes through in one cycle, in order. On top come `store.<statement>`, before each statement,
#: `effect.after`, when an effect has run and is not committed yet, and `cost`, when a handler has reported a cost.
WORKER_POINTS = (
    "claim.before",
    "claim.after",
    "run.before",
    "run.after",
    "commit.before",
    "commit.after",
)


#: Every point that `ctx.keep` passes through, in order: content that is there already is not written, and not named.
KEEP_POINTS = ("keep.before", "keep.writing", "keep.written", "keep.named", "keep.after")

#: The arguments of the last point that a thread reached.
_last = threading.local()


def reach(point: str, *about: Any) -> None:
    """Tell the listener that this point is reached, with arguments."""
    if listener is not None:
        _last.about = about
        listener(point)


def about() -> tuple[Any, ...]:
    """For a listener: the arguments of the point that this thread has just reached. `store.<statement>`: its rows and its
    parameters; `run.before` and `run.after`: the call; `effect.after`: the stage and the function; `cost`: the pipeline,
    the stage and the amount."""
    return getattr(_last, "about", ())


def listen(new: PointListener | None) -> PointListener | None:
    """Set the listener and return the previous one."""
    global listener
    old, listener = listener, new
    return old
