"""A command that acts on many items in small chunks, as a process of its own, ended or interrupted at a named point.

Piped("tests.support.acting_main", [json.dumps({"args": ["retry", "--all"], "chunk": 7, "at": "commit.after:2"})], …)
"""

from __future__ import annotations

import json
import os
import signal
import sys

from holdfast import cli, points
from holdfast.engine import selection


def main() -> None:
    order = json.loads(sys.argv[1])
    selection.CHUNK = order["chunk"]
    point, _, nth = order.get("at", "").partition(":")
    left = int(nth or 1)

    def strike(reached: str) -> None:
        nonlocal left
        if reached == point:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), order.get("signal", signal.SIGKILL))

    if point:
        points.listen(strike)
    sys.argv = ["holdfast", *order["args"]]
    cli.main()
