"""What a loop costs, counted in statements. `python -m benchmarks.adopt` has the times, which depend on the machine."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine

from benchmarks.adopt import measure
from holdfast.adopt import Job, Loop
from tests.adopt.tables import Jobs


@pytest.mark.req("S3")
def test_a_row_costs_one_statement_and_a_claim_one_for_all_its_rows(engine: Engine, jobs: Jobs):
    jobs.add(100)
    sent: Counter[str] = Counter()

    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        sent[statement.split()[0]] += 1

    def begin(job: Job) -> None:
        sent["handled"] += 1

    loop = Loop(engine, jobs.mapping, begin, batch=10)
    loop.run(drain=True)
    assert sent["handled"] == 100
    jobs.set(status="queued", attempts=0)
    sent.clear()
    sa.event.listen(engine, "before_cursor_execute", note)
    Loop(engine, jobs.mapping, begin, batch=10).run(drain=True)
    sa.event.remove(engine, "before_cursor_execute", note)
    # A completion for each row, a claim for each ten and one that finds nothing; what is stale, spent or suspect is asked
    # for once, however many rows there are.
    assert sent["handled"] == 100
    assert sum(sent.values()) - 100 <= 100 + 11 + 25, sent


def test_the_benchmark_measures_the_loop_beside_the_same_statements_by_hand(engine: Engine):
    said: list[str] = []
    assert measure(engine, rows=50, rounds=2, say=said.append) > 0
    assert "by hand" in said[0] and "ratio" in said[0]
