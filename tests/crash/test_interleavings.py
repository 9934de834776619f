"""Workers interleaved by a seed, with crashes, lost replies and stalls between their steps: nothing lost, nothing twice.

A failing seed is named in the message; `HOLDFAST_SEED=17 pytest tests/crash/test_interleavings.py` runs it alone.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable

import psycopg
import pytest

from holdfast.store import Store, open_store
from holdfast.store.postgres_address import read_url
from holdfast.testing import ManualClock
from tests.support.effort import effort
from tests.support.stepping import FAULTS, Story, Threads, Turns
from tests.support.steps import quick_url

SEEDS = {"sqlite": effort(50, 2000), "postgres": effort(16, 400)}
LABELS = ("main", "ann", "bob", "cyd", "person")


def seeds(database: str) -> Iterable[int]:
    if one := os.environ.get("HOLDFAST_SEED"):
        return [int(one)]
    return range(int(os.environ.get("HOLDFAST_SEEDS", SEEDS[database])))


@pytest.mark.req("V1", "V2", "V3", "V6")
@pytest.mark.fault(1, 3, 4, 6, 7, 18, 19, 20, 26)
def test_workers_in_any_order_under_any_fault_lose_nothing_and_complete_nothing_twice(database, request):
    fired: Counter[str] = Counter()
    with quick_url(database, request) as url:
        clock = ManualClock()
        stores: dict[str, Store] = {label: open_store(url, clock=clock) for label in LABELS}
        stores["main"].upgrade()
        watch = psycopg.connect(read_url(url)[0], autocommit=True) if database == "postgres" else None
        try:
            for seed in seeds(database):
                story: Story = Turns(stores, clock, seed) if watch is None else Threads(stores, clock, seed, watch)
                try:
                    story.run()
                    story.judge()
                except (Exception, AssertionError) as error:
                    raise AssertionError(
                        f"SEED={seed} on {database}: HOLDFAST_SEED={seed} runs it alone: {error}"
                    ) from error
                fired += story.fired
        finally:
            if watch is not None:
                watch.close()
            for store in stores.values():
                store.close()
    print(dict(fired))
    if len(list(seeds(database))) > 20:
        assert set(fired) == set(FAULTS), f"never fired: {set(FAULTS) - set(fired)}"
