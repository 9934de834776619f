"""What is true of a whole store: the same as its questions answer, for a scraper that cannot load it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from holdfast import Holdfast, Pipeline
from holdfast.cli.metrics import SharedGauges
from holdfast.errors import StoreUnavailable
from holdfast.telemetry.metrics_counts import Counts
from holdfast.telemetry.metrics_gauges import Sample, build_info
from holdfast.telemetry.metrics_prometheus import text_of
from holdfast.telemetry.metrics_table import OF_STORE
from holdfast.testing import ManualClock
from holdfast.version import VERSION
from tests.cli.conftest import Commands
from tests.support.bench import Bench
from tests.support.scrapes import check_with_promtool, fetch, value
from tests.support.waiting import wait_for

pytestmark = pytest.mark.req("P18", "V14")


def shown(app: Holdfast) -> str:
    return text_of(Counts(), app.gauges()).decode()


def limited() -> Pipeline[Any]:
    pipeline = Pipeline(
        "books",
        resources={"gemini": {"rate": "60/min", "burst": 8, "concurrency": 3, "budget": "10", "budget_per_day": "4"}},
    )

    @pipeline.stage(resource="gemini", estimate="0.5")
    def ask(item: Any, ctx: Any) -> None:
        ctx.once("ask", lambda: 1, cost="0.75")

    return pipeline


def test_gauges_say_what_status_limits_and_workers_say(url: str) -> None:
    clock = ManualClock()
    pipeline = limited()
    with Holdfast(url, [pipeline.spec], resources=pipeline.resources, clock=clock) as app:
        app.register()
        app.add("books", ["a", "b"])
        clock.advance(90)
        text = shown(app)
        assert value(text, "holdfast_stages", pipeline="books", stage="ask", state="pending") == 2
        assert value(text, "holdfast_stages", pipeline="books", stage="ask", state="exhausted") == 0
        assert value(text, "holdfast_due_age_seconds", pipeline="books", stage="ask") == pytest.approx(90, abs=0.01)
        assert value(text, "holdfast_budget_remaining", resource="gemini") == 4
        assert value(text, "holdfast_resource_slots_used", resource="gemini") == 0
        assert value(text, "holdfast_resource_open", resource="gemini") == 0
        assert value(text, "holdfast_resource_cooldown_seconds", resource="gemini") == 0
        assert value(text, "holdfast_resource_tokens", resource="gemini") == pipeline_burst(app)
        assert value(text, "holdfast_workers", version=VERSION) is None
        store = "sqlite" if url.startswith("sqlite") else "postgres"
        assert value(text, "holdfast_schema_version", version=VERSION, store=store) == app.schema_version()
        assert value(text, "holdfast_build_info", version=VERSION, store=store) == 1
        check_with_promtool(text)


def pipeline_burst(app: Holdfast) -> float:
    from holdfast.engine.layout import layout

    return float(app.store.read(layout).resource("gemini").spec.bursts)  # type: ignore[union-attr]


def test_a_budget_that_was_spent_and_a_living_worker_are_seen(run: Bench) -> None:
    pipeline = limited()
    with run.serving(pipeline, ["a", "b"]) as (_, ran):
        wait_for(lambda: ran.states("ask").get("done") == 2)
        text = shown(ran.app)
        assert value(text, "holdfast_budget_remaining", resource="gemini") == pytest.approx(4 - 1.5)
        assert value(text, "holdfast_workers", version=VERSION) == 1
        age = value(text, "holdfast_worker_beat_age_seconds", version=VERSION)
        assert age is not None and 0 <= age < 3600


def test_a_retry_that_no_worker_takes_up_is_due(url: str) -> None:
    clock = ManualClock()
    pipeline = Pipeline("books")

    @pipeline.stage()
    def only(item: Any, ctx: Any) -> None:
        return None

    with Holdfast(url, [pipeline.spec], clock=clock) as app:
        app.register()
        app.add("books", ["a"])
        # As if its only attempt had failed, and its worker had ended.
        from tests.support.steps import ask

        due = clock.now() + 60_000_000
        app.store.write(
            lambda tx: (
                ask(
                    tx,
                    "INSERT INTO holdfast_delayed (item, stage, attempts, alone, rerun, due_at, error) "
                    "SELECT item, stage, 1, 0, 0, :due, 'no' FROM holdfast_waiting",
                    due=due,
                ),
                ask(tx, "DELETE FROM holdfast_waiting"),
            )
        )
        assert value(shown(app), "holdfast_due_age_seconds", pipeline="books", stage="only") == 0
        clock.advance(100)
        age = value(shown(app), "holdfast_due_age_seconds", pipeline="books", stage="only")
        assert age == pytest.approx(40, abs=0.01)


def test_the_command_prints_the_gauges_once_and_serves_them_until_stopped(cli: Commands, tmp_path: Any) -> None:
    pipeline = Pipeline("books", store=cli.url)

    @pipeline.stage()
    def only(item: Any, ctx: Any) -> None:
        return None

    pipeline.add(["a"])
    once = cli("metrics", "--once").stdout
    assert value(once, "holdfast_stages", pipeline="books", stage="only", state="pending") == 1
    check_with_promtool(once)
    assert "--port or --once" in cli("metrics", code=2).stderr
    server = cli.start("metrics", "--port", "0")
    assert server.stdout is not None
    address = server.stdout.readline().strip()
    port = int(address.rsplit(":", 1)[1].removesuffix("/metrics"))
    status, text = fetch(port)
    assert (status, value(text, "holdfast_stages", pipeline="books", stage="only", state="pending")) == (200, 1)
    assert fetch(port, "/elsewhere")[0] == 404
    server.terminate()
    assert server.wait(60) == 0


ANSWER = (build_info("sqlite"),)


class _Slow:
    """An app whose store answers when it is told to."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def gauges(self) -> tuple[Sample, ...]:
        self.go.wait(60)
        return ANSWER


def test_many_scrapers_ask_the_store_once_and_none_waits_for_a_slow_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.cli.metrics.LIMIT_SECONDS", 0.05)
    slow = _Slow()
    gauges = SharedGauges(slow)  # type: ignore[arg-type]
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="did not answer"):
            gauges.read()
    assert gauges.count == 1
    slow.go.set()
    wait_for(lambda: gauges.read_if_possible() == ANSWER)
    assert [gauges.read() for _ in range(50)] == [ANSWER] * 50
    assert gauges.count == 1
    gauges.close()


def test_an_sdk_that_asks_for_each_instrument_waits_once_for_a_slow_store_and_hears_of_it_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("holdfast.cli.metrics.LIMIT_SECONDS", 0.05)
    slow = _Slow()
    gauges = SharedGauges(slow)  # type: ignore[arg-type]
    assert gauges.read_if_possible() == ()
    # Whoever would wait for itself from here on would get the answer, in the end.
    monkeypatch.setattr("holdfast.cli.metrics.LIMIT_SECONDS", 3600)
    assert [gauges.read_if_possible() for _ in OF_STORE] == [()] * len(OF_STORE)
    assert caplog.text.count("there are no gauges until the store answers") == 1
    slow.go.set()
    wait_for(lambda: gauges.read_if_possible() == ANSWER)
    gauges.close()
    assert gauges.read() == ANSWER, "an SDK collects once more when the process ends"
