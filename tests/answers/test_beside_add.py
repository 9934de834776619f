"""Questions have connections of their own: during a long `add` they do what they do without it."""

from __future__ import annotations

import threading

from holdfast import Holdfast, points
from holdfast.engine.add import CHUNK, Added

STUCK_SECONDS = 60.0


def asked(app: Holdfast) -> list[str]:
    """The points that `status` passes, in a thread of its own; nothing if it has to wait."""
    passed: list[str] = []

    def ask() -> None:
        me = threading.get_ident()
        old = points.listen(lambda point: passed.append(point) if threading.get_ident() == me else None)
        try:
            app.status()
        finally:
            points.listen(old)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(STUCK_SECONDS)
    return [] if asking.is_alive() else passed


def test_status_runs_the_same_statements_during_a_long_add_on_the_same_object(app: Holdfast) -> None:
    before = asked(app)
    during: list[list[str]] = []

    def look(_: Added) -> None:
        # Called with the lock of all acts held, between two of its transactions.
        during.append(asked(app))

    app.add("shop", (f"new-{number}" for number in range(2 * CHUNK + 1)), progress=look)
    assert "store.read_counts" in before
    assert during == [before] * 3
