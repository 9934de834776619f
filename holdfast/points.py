"""Named points in the code at which a test may step in: to count, to stall, to end the process.

In production nothing listens and a point costs one comparison. `holdfast.testing` installs the listeners.
"""

from __future__ import annotations

from collections.abc import Callable

Listener = Callable[[str], None]

listener: Listener | None = None

#: Every point a worker passes through in one cycle, in order. `store.<statement>` comes on top, before each statement.
WORKER_POINTS = (
    "claim.before",
    "claim.after",
    "run.before",
    "run.after",
    "commit.before",
    "commit.after",
)


def reach(point: str) -> None:
    """Tell whoever listens that execution is here."""
    if listener is not None:
        listener(point)


def listen(new: Listener | None) -> Listener | None:
    """Put `new` in the listener's place and return the old one."""
    global listener
    old, listener = listener, new
    return old
