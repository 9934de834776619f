"""Tests with the same `xdist_group` mark run in one process, one after the other: they share something dear, or must not run
side by side.

xdist would tell them by a change of their ids, which pytest from 9.2 on does not let it make, and after which
`--last-failed` would not know them again. Here the processes that run tests write the groups into a file, for the one that
hands tests out.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import wait_for

VARIABLE = "HOLDFAST_TEST_GROUPS"
MARK = "xdist_group"
#: What xdist calls the first of the processes that run tests.
FIRST = "gw0"
#: Long enough for a busy machine.
COLLECTED_SECONDS = 300


def make_place(config: pytest.Config) -> None:
    """Where groups are written to: the same file for all processes, gone with the first of them."""
    if VARIABLE in os.environ:
        return
    descriptor, place = tempfile.mkstemp(prefix="hf-groups-")
    os.close(descriptor)
    os.environ[VARIABLE] = place
    config.add_cleanup(lambda: Path(os.environ.pop(VARIABLE)).unlink())


def let_the_first_go_ahead(config: pytest.Config) -> None:
    """Wait in all processes but the first until that one has collected the tests. To compile them, with their asserts
    rewritten, takes as long as all the rest of collecting: one does it, and the others load what it has compiled."""
    if getattr(config, "workerinput", {}).get("workerid", FIRST) != FIRST:
        wait_for(lambda: Path(os.environ[VARIABLE]).stat().st_size, COLLECTED_SECONDS)


def tell(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Write down which test is in which group, in a process that was told to run tests by another."""
    if hasattr(config, "workerinput"):
        groups = {item.nodeid: mark.args[0] for item in items if (mark := item.get_closest_marker(MARK))}
        place = Path(os.environ[VARIABLE])
        mine = place.with_name(f"{place.name}-{os.getpid()}")
        mine.write_text(json.dumps(groups))
        mine.replace(place)


def scheduler(config: pytest.Config, log: Any) -> Any:
    """Hands out groups, the largest first, and then the tests that are in none."""
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def schedule(self) -> None:
            self.groups: dict[str, str] = json.loads(Path(os.environ[VARIABLE]).read_text())
            super().schedule()

        def _split_scope(self, nodeid: str) -> str:
            return self.groups.get(nodeid, nodeid)

        def _reschedule(self, node: Any) -> None:
            # One that was started in place of another has to say first what it has collected.
            if node in self.registered_collections:
                super()._reschedule(node)

        def remove_node(self, node: Any) -> str | None:
            """What ended its process is not tried again in the next one: a test that hangs would hang there, too."""
            crashed = None
            for unit in self.assigned_work[node].values():
                running = next((nodeid for nodeid, is_completed in unit.items() if not is_completed), None)
                if running is not None and crashed is None:
                    unit[running], crashed = True, running
            self.assigned_work[node] = {
                scope: unit for scope, unit in self.assigned_work[node].items() if not all(unit.values())
            }
            super().remove_node(node)
            return crashed

    return Groups(config, log)
