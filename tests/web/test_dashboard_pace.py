"""The overview: how fast each stage goes, how long what waits will take, and money of today against the budget."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Context, Holdfast, Item, Pipeline, RetryLater
from holdfast.answers.rate_and_eta import rate, rates
from holdfast.answers.status import Obstacle, PipelineStatus, StageStatus, Timings
from holdfast.answers.throughput import StageThroughput, ThroughputPoint
from holdfast.cli.top import polling
from holdfast.model.money import spoken as money
from tests.support.waiting import wait_for
from tests.web.conftest import Web
from tests.web.paid_shelf import paid_books

pytestmark = pytest.mark.req("P17")

NOON = datetime(2026, 2, 1, 12, tzinfo=UTC)


def stage(*attempts: int, outcomes: dict[str, int]) -> StageThroughput:
    points = tuple(
        ThroughputPoint(NOON + timedelta(minutes=n), count, {}, None, None, None, None)
        for n, count in enumerate(attempts)
    )
    return StageThroughput("p", "s", timedelta(minutes=1), sum(attempts), outcomes, None, None, None, None, points)


def test_attempts_per_minute_count_from_the_first_attempt_in_its_time():
    one = stage(0, 0, 6, 0, 6, outcomes={"done": 9, "retried": 3})
    assert one.per_minute == one.ended_per_minute() == 4.0
    assert one.ended_per_minute("done", "skipped") == 3.0
    assert stage(0, 0, outcomes={}).per_minute == 0.0


def test_the_overview_throughput_and_top_say_the_same_rate(shelf: str):
    """They were measured over three different times."""
    with Holdfast(shelf, create=False) as app:
        over = {(one.pipeline, one.stage): round(one.per_minute, 2) for one in app.throughput()}
        overview = {(one.pipeline, one.stage): one.per_minute for one in rates(app.status(), app.throughput(last="1h"))}
        top = {stage: round(rate, 2) for stage, rate in polling.ask(app).rates.items()}
        assert over == overview == top
        assert all(over.values())


def test_the_overview_has_the_pace_of_each_stage(web: Web, shelf: str):
    rates = {one["stage"]: one for one in web.get("/overview.json").json()["rates"]}
    assert rates["extract"]["per_minute"] > 0 < rates["chunk"]["per_minute"]
    assert rates["extract"]["last_at"] is not None
    page = web.get("/overview").text
    assert 'href="./throughput?pipeline=books&amp;stage=extract"' in page
    assert "Workers write both every 20 seconds" in page
    [line] = [one for one in csv.DictReader(io.StringIO(web.get("/overview.csv").text)) if one["stage"] == "extract"]
    assert float(line["per_minute"]) > 0
    # A book waits and the pace is known, but no worker is alive.
    assert (line["pending"], line["eta_seconds"]) == ("1", "")


def rated(
    waiting: int = 90,
    *,
    past: StageThroughput | None = None,
    paused: bool = False,
    is_offered: bool = True,
    **more: Any,
) -> Any:
    """The rate of a stage that has ended 3 attempts a minute, and 1 more that is retried, as the overview has it."""
    facts: dict[str, Any] = {"after": (), "backfilling": False, "on_hold": (), "held": None, "pending_since": None}
    facts |= {"paused": False, "reason": None, "paused_until": None, "paused_at": None, "due": 0}
    timings = Timings(0, None, None, None, None, None)
    status = StageStatus(name="s", version="1", states={"pending": waiting}, timings=timings, **{**facts, **more})
    pipeline = PipelineStatus("p", paused, None, None, None, (status,), ())
    past = past or stage(0, 0, 6, 0, 6, outcomes={"done": 9, "retried": 3})
    return rate(pipeline, status, past, is_offered)


def test_an_eta_is_what_waits_at_the_pace_at_which_work_ends():
    assert (rated().per_minute, rated().eta) == (4.0, timedelta(minutes=30))
    assert rated().last_at == NOON + timedelta(minutes=4)


def test_the_overview_says_what_is_due_again_while_no_worker_takes_it_up(url: str, serve: Callable[..., Web]):
    """With a worker, what is due is waiting a moment later."""
    made = Pipeline("books", store=url)

    @made.stage()
    def extract(item: Item, ctx: Context) -> Any:
        return RetryLater(after=0.5 if item.key != "later" else 3600)

    made.add(["emma", "walden", "later"])
    with Holdfast(url, [made.spec]) as app:
        worker = app.worker()

        def look() -> None:
            if app.status().pipeline("books").stage("extract").states == {"retry_later": 3}:
                worker.stop()

        worker.run(on_tick=look, tick_seconds=0.01)
        wait_for(lambda: app.status().pipeline("books").stage("extract").due == 2)
        assert app.status().pipeline("books").stage("extract").states == {"retry_later": 3}
    page = serve(url).get("/overview").text
    assert '<th scope="col" class="n">Waiting</th><th scope="col" class="n">Due</th>' in page
    assert re.findall(r'<a class="retry_later" href="[^"]*state=retry_later">(\d)</a>', page) == ["2", "3"]


def test_what_does_not_move_has_no_eta():
    assert rated(0).eta is None
    assert rated(paused=True).eta is None
    assert rated(is_offered=False).eta is None
    assert rated(held=Obstacle("budget", "the budget is spent", None, None, None)).eta is None
    assert rated(past=stage(0, 0, outcomes={})).eta is None
    assert rated(past=stage(0, 5, outcomes={"retried": 5})).eta is None


def test_the_overview_shows_money_of_today_against_the_budget(url: str, serve: Callable[..., Web]):
    pipeline = paid_books(url)
    pipeline.add(["emma", "walden"])
    pipeline.run()
    page = serve(url).get("/overview").text
    with Holdfast(url, create=False) as app:
        [gemini] = [one for one in app.limits() if one.name == "gemini"]
    assert f"<bdi>gemini</bdi>: {money(gemini.spent_today)} spent today of 20.00" in page
    assert '<meter max="20' in page
