"""What workers record of their attempts, minute by minute, beside the work."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Holdfast, Permanent, Pipeline, RetryLater, Skip
from holdfast.engine import throughput_by_minute
from holdfast.errors import StoreUnavailable
from holdfast.store import open_store
from holdfast.worker.background.throughput import MinuteCounts, MinuteWriter
from tests.support.bench import QUICK, Bench
from tests.support.steps import ask


def test_a_short_run_is_counted_with_every_outcome(run: Bench) -> None:
    pipeline = Pipeline("p")
    snoozed: list[str] = []

    @pipeline.stage(max_attempts=2, backoff=QUICK)
    def first(item: Any, ctx: Any) -> None:
        if item.key == "skip":
            raise Skip("nothing in it")
        if item.key == "bad":
            raise Permanent("never")
        if item.key == "raises":
            raise ValueError("again")
        if item.key == "later" and not snoozed:
            snoozed.append(item.key)
            raise RetryLater(after="10ms")

    @pipeline.stage(after="first")
    def second(item: Any, ctx: Any) -> None:
        return None

    ran = run(pipeline, ["a", "b", "later", "skip", "bad", "raises"])
    first_, second_ = ran.app.throughput()
    assert first_.outcomes == {"done": 3, "skipped": 1, "failed": 1, "retried": 1, "exhausted": 1, "handed_back": 1}
    assert second_.outcomes == {"done": 4}
    assert None not in (first_.run_p50, first_.run_p95, first_.wait_p50, second_.wait_p95)
    assert sum(point.attempts for point in first_.points) == first_.attempts == 8


def test_failures_of_one_cause_are_counted_by_hour(run: Bench) -> None:
    pipeline = Pipeline("p")

    @pipeline.stage(max_attempts=2, backoff=QUICK)
    def only(item: Any, ctx: Any) -> None:
        raise Permanent("never") if item.key == "bad" else ValueError(f"{item.key} is torn")

    torn, never = run(pipeline, ["book-1", "book-2", "bad"]).app.errors()
    # Within the run, an hour may have begun.
    assert [(one.count, sum(one.by_hour), sum(one.by_hour[-2:])) for one in (torn, never)] == [(4, 4, 4), (1, 1, 1)]
    assert len(torn.by_hour) == 24


@pytest.mark.parametrize("isolate", [None, "process"])
def test_work_that_lay_ready_has_waited_until_it_was_claimed(run: Bench, isolate: str | None) -> None:
    pipeline = Pipeline("p")

    @pipeline.stage(isolate=isolate)
    def only(item: Any, ctx: Any) -> None:
        return None

    app = run.app(pipeline, ["a", "b", "c"])
    # As if they had been added two hours ago.
    two_hours = 2 * 3600 * 1_000_000
    app.store.write(lambda tx: ask(tx, "UPDATE holdfast_waiting SET since = since - :by", by=two_hours))
    [found] = run(pipeline).app.throughput()
    assert found.outcomes == {"done": 3}
    assert found.wait_p50 is not None and found.wait_p50 > timedelta(hours=1.7)
    assert found.run_p95 is not None and found.run_p95 < timedelta(hours=1)


def test_what_could_not_be_written_is_written_with_the_next_pass(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = Pipeline("p")

    @pipeline.stage()
    def only(item: Any, ctx: Any) -> None:
        return None

    with Holdfast(url, [pipeline.spec]) as app:
        app.register()
        counts = MinuteCounts()
        now, [stage] = app.store.read(lambda tx: (tx.now, [row[0] for row in tx.run("read_stages")]))
        with closing(open_store(url)) as store:
            writer = MinuteWriter(store, counts)
            counts.add(now, [(stage, "done", [])])
            counts.add(now, [(stage, "lost", [])])

            def unavailable(*_: object) -> None:
                raise StoreUnavailable("gone")

            with monkeypatch.context() as broken:
                broken.setattr(throughput_by_minute, "write", unavailable)
                with pytest.raises(StoreUnavailable):
                    writer.one_pass()
            counts.add(now, [(stage, "done", [])])
            writer.last_pass()
            writer.last_pass()
        [(text,)] = app.store.read(lambda tx: [row[2:] for row in tx.run("read_minutes", **{"from": 0, "until": now})])
        assert text == '{"outcomes":{"done":0,"lost":0},"run":{},"wait":{},"groups":{}}'
