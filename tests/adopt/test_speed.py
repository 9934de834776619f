"""What a loop costs: its rate beside that of the same statements issued by hand, in the same run."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from benchmarks.adopt import measure


@pytest.mark.req("S3")
def test_a_loop_with_a_handler_that_does_nothing_keeps_up_with_the_same_statements_by_hand(engine: Engine):
    """The full measurement is `python -m benchmarks.adopt`; here others may be using the machine."""
    assert measure(engine, rows=150, rounds=5) >= 0.4
