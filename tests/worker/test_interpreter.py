"""The interpreter is set for a worker while it runs, and set back."""

from __future__ import annotations

import gc
import sys

import pytest

from holdfast import Holdfast, Pipeline
from holdfast.runtime.python_settings import SWITCH_SECONDS, YOUNG_OBJECTS, set_for_work


@pytest.fixture(autouse=True)
def as_python_starts():
    gc.unfreeze()
    before, threshold = sys.getswitchinterval(), gc.get_threshold()
    yield
    gc.unfreeze()
    sys.setswitchinterval(before)
    gc.set_threshold(*threshold)


def test_it_lasts_as_long_as_the_worker_runs(url):
    seen = []
    pipeline = Pipeline("p", store=url)

    @pipeline.stage()
    def look(item, ctx):
        seen.append((gc.get_freeze_count() > 1000, gc.get_threshold()[0], sys.getswitchinterval()))

    pipeline.add([{"key": "a"}])
    before = gc.get_threshold(), sys.getswitchinterval()
    with Holdfast(url, [pipeline.spec]) as app:
        app.run()
    assert seen == [(True, YOUNG_OBJECTS, pytest.approx(SWITCH_SECONDS, rel=0.05))]
    assert gc.get_freeze_count() == 0
    assert (gc.get_threshold(), sys.getswitchinterval()) == before


def test_it_ends_also_with_an_error():
    before = gc.get_threshold(), sys.getswitchinterval()
    with pytest.raises(ValueError, match="broken"), set_for_work():
        raise ValueError("broken")
    assert gc.get_freeze_count() == 0
    assert (gc.get_threshold(), sys.getswitchinterval()) == before


def test_of_several_workers_in_one_process_the_last_one_sets_it_back():
    """They end in the order in which they began, as runs side by side do."""
    before = gc.get_threshold(), sys.getswitchinterval()
    first, second = set_for_work(), set_for_work()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_threshold()[0] == YOUNG_OBJECTS
    second.__exit__(None, None, None)
    assert gc.get_freeze_count() == 0
    assert (gc.get_threshold(), sys.getswitchinterval()) == before


def test_a_program_that_has_set_it_for_itself_keeps_it_so():
    sys.setswitchinterval(0.0001)
    gc.set_threshold(50_000, 5, 5)
    gc.freeze()
    with set_for_work():
        assert sys.getswitchinterval() == pytest.approx(0.0001, rel=0.05)
        assert gc.get_threshold() == (50_000, 5, 5)
    assert gc.get_freeze_count() > 1000
    assert sys.getswitchinterval() == pytest.approx(0.0001, rel=0.05)


def test_a_collector_that_is_switched_off_stays_so():
    gc.set_threshold(0)
    with set_for_work():
        assert gc.get_threshold()[0] == 0


def test_what_becomes_garbage_meanwhile_is_still_found():
    class Ring:
        pass

    with set_for_work():
        ring = Ring()
        ring.itself = ring
        del ring
        assert gc.collect() > 0
