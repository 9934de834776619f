"""The collector is spared what was there before the worker, and gets it back."""

from __future__ import annotations

import gc

import pytest

from holdfast.worker.garbage import old_objects_left_alone


@pytest.fixture(autouse=True)
def thawed():
    gc.unfreeze()
    yield
    gc.unfreeze()


def test_old_objects_are_left_alone_while_it_lasts_and_no_longer():
    with old_objects_left_alone():
        assert gc.get_freeze_count() > 1000
    assert gc.get_freeze_count() == 0


def test_they_come_back_also_after_an_error():
    with pytest.raises(ValueError, match="broken"), old_objects_left_alone():
        raise ValueError("broken")
    assert gc.get_freeze_count() == 0


def test_a_program_that_has_frozen_its_objects_itself_keeps_them_so():
    gc.freeze()
    with old_objects_left_alone():
        pass
    assert gc.get_freeze_count() > 1000


def test_what_becomes_garbage_meanwhile_is_still_found():
    class Ring:
        pass

    with old_objects_left_alone():
        ring = Ring()
        ring.itself = ring
        del ring
        assert gc.collect() > 0
