"""A child process of the benchmark, seen from inside: it gets one order, says when it is ready, and says what it found.

    main({"drain": drain})        # drain takes the order and returns figures by name

Standard library only: the scripts of the peers use it too.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, TextIO

Facts = dict[str, Any]


@dataclass(frozen=True)
class Order:
    """What to do, and where. What does not apply to an operation is left as it is."""

    operation: str
    url: str
    items: int = 0
    stages: int = 1
    #: holdfast: async or sync handlers. Peers have one way, their fastest.
    kind: str = ""
    #: add: in bulk, or one by one.
    bulk: bool = True
    #: The file of a Board; empty if handlers have nothing to say.
    board: str = ""
    #: How many handlers may run at once; 0 for the contender's own choice.
    concurrency: int = 0
    #: After how long a worker that says nothing counts as dead.
    lease_seconds: float = 30.0
    #: Handlers keep their items until the board is released.
    hold: bool = False
    #: Every stage of an item sleeps for 5 to 50 ms, and all of them together begin so often per second; 0 for no sleep.
    rate: int = 0
    #: Every handler sleeps so long, and the last stage uses a resource with so many slots, or one without a limit if 0.
    handler_ms: int = 0
    slots: int = 0
    #: Whether no stage waits for another.
    apart: bool = False
    #: drain: end after so many items, although more are waiting; 0 for all.
    most: int = 0
    #: fill: how many items, and in which state.
    state: str = "waiting"
    #: export: the kind of file.
    format: str = ""
    #: watch: the address of a dashboard.
    ui: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_json(cls, text: str) -> Order:
        given = json.loads(text)
        return cls(**{field.name: given[field.name] for field in fields(cls) if field.name in given})

    def ready(self) -> None:
        """Say that everything is set up, and wait for the word to begin."""
        tell({"ready": True})
        if os.read(0, 16) != b"go\n":
            os._exit(1)  # whoever ordered this is gone
        threading.Thread(target=_end_with_whoever_ordered, daemon=True).start()


def _end_with_whoever_ordered() -> None:
    """Nobody is left to end this process: its input was closed while it worked."""
    os.read(0, 1)
    os._exit(1)


_out: TextIO = sys.stdout


def tell(facts: Facts) -> None:
    print(json.dumps(facts), file=_out, flush=True)


def finish(facts: Facts) -> None:
    """Say what was found and end at once, whatever still runs in this process."""
    tell(facts)
    os._exit(0)


def main(operations: Mapping[str, Callable[[Order], Facts]]) -> None:
    """Carry out the order given on the command line."""
    global _out
    # Whatever a library prints goes to the error output: the other one is for figures.
    _out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    logging.basicConfig(level=logging.ERROR)
    order = Order.of_json(sys.argv[1])
    finish(operations[order.operation](order))


def cpu_seconds() -> float:
    """What this process and its ended children have used."""
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in spent)


def most_memory_mb() -> float:
    """The most memory that was resident at once."""
    try:
        with open("/proc/self/status") as file:
            [line] = [line for line in file if line.startswith("VmHWM:")]
        return int(line.split()[1]) / 1024
    except (OSError, ValueError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
