"""Workers that are started and stopped by a number: it is above zero while anything needs one soon, and zero otherwise."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import pytest

from holdfast import Backoff, Holdfast, Pipeline
from holdfast.clock import SECOND
from holdfast.discovery import discovering
from holdfast.engine import alert_rules
from holdfast.engine.claim import claim
from holdfast.engine.hand_back import release
from holdfast.engine.layout import layout
from holdfast.errors import UsageError
from holdfast.model.alert import AlertRule, read_alerts
from holdfast.schema import migrations
from holdfast.store import open_store
from holdfast.store.autoscaling import NOW_POSTGRES, NOW_SQLITE, SOON_US, demand_query
from holdfast.testing import ManualClock
from holdfast.worker import Settings, Worker
from tests.cli.conftest import Commands
from tests.support.effort import effort
from tests.support.mother import ROOT
from tests.support.steps import ask
from tests.support.waiting import wait_for

pytestmark = pytest.mark.req("P18")

STEP_SECONDS = 60
STEPS = 24 * 60
#: How long the number must be zero before workers are stopped, in steps.
COOL_DOWN = 5
PATIENCE = 120.0
ALERTS = read_alerts({"failures": {"event": "attempt_failed", "every": "5m", "log": True}})


class Keda:
    """Asks what `holdfast sql keda` prints, at the time of a clock set by hand."""

    def __init__(self, url: str, clock: ManualClock) -> None:
        self._query = demand_query(url)
        self._clock = clock
        self.store = open_store(url, clock=clock)

    def number(self) -> int:
        now = str(self._clock.now())
        text = self._query.replace(NOW_POSTGRES, now).replace(NOW_SQLITE, now)
        assert text != self._query
        [(found,)] = self.store.read(lambda tx: list(tx.connection.execute(text)))
        return int(found)

    def due_now(self) -> list[str]:
        """What waits for a worker at this moment, as the tables say it."""
        return self.store.read(lambda tx: [name for name, text in DUE.items() if ask(tx, text, now=tx.now)])


DUE = {
    "work": "SELECT 1 FROM holdfast_waiting w JOIN holdfast_stages s ON s.id = w.stage JOIN holdfast_pipelines p "
    "ON p.id = s.pipeline WHERE (s.paused = 0 OR s.retry_after <= :now) AND (p.paused = 0 OR p.retry_after <= :now) LIMIT 1",
    "a lease": "SELECT 1 FROM holdfast_leases LIMIT 1",
    "a retry": "SELECT 1 FROM holdfast_delayed WHERE due_at <= :now LIMIT 1",
    "a source": "SELECT 1 FROM holdfast_sources WHERE active = 1 AND due_at <= :now LIMIT 1",
    "a delivery": "SELECT 1 FROM holdfast_deliveries WHERE due_at <= :now LIMIT 1",
    "an action": "SELECT 1 FROM holdfast_actions WHERE state = 'open' LIMIT 1",
    # Not in the quiet period of the rule.
    "an event": "SELECT 1 FROM holdfast_alerts a WHERE (a.told_at IS NULL OR a.told_at <= :now - 300000000) AND EXISTS ("
    "SELECT 1 FROM holdfast_events e WHERE e.id > a.looked_until AND e.event NOT LIKE 'worker%' AND e.event NOT LIKE 'alert%')",
}


def books(tried: set[str]) -> Pipeline[Any]:
    pipeline = Pipeline("books")
    wait = Backoff(first_seconds=900.0, factor=1.0, most_seconds=900.0)

    @pipeline.stage(backoff=wait)
    def extract(item: Any, ctx: Any) -> None:
        if item.key.startswith("flaky") and item.key not in tried:
            tried.add(item.key)
            raise ValueError("not now")

    @pipeline.stage(after="extract")
    def chunk(item: Any, ctx: Any) -> None:
        return None

    pipeline.source("shelf", list=["found"], every="5h")
    return pipeline


@contextmanager
def opened(url: str, clock: ManualClock, pipeline: Pipeline[Any]) -> Iterator[Holdfast]:
    sources = discovering({pipeline.name: pipeline.sources}, {}, [pipeline.spec])
    with Holdfast(url, [pipeline.spec], alerts=ALERTS, services=[sources], clock=clock) as app:
        yield app


class Deployment:
    """No worker or one, as the number says."""

    def __init__(self, app: Holdfast) -> None:
        self._app = app
        self._running: tuple[Worker, threading.Thread] | None = None
        self.starts = 0

    @property
    def is_up(self) -> bool:
        return self._running is not None

    def start(self) -> None:
        # Its lease is longer than it runs: its heartbeats are sent by another clock.
        worker = self._app.worker(Settings(poll_seconds=0.05, lease_seconds=20_000.0, grace_seconds=5.0))
        thread = threading.Thread(target=worker.run, kwargs={"signals": False}, daemon=True)
        thread.start()
        self._running = worker, thread
        self.starts += 1

    def stop(self) -> None:
        if self._running is not None:
            worker, thread = self._running
            worker.stop()
            thread.join(PATIENCE)
            assert not thread.is_alive()
            self._running = None


def test_nothing_waits_while_the_number_is_zero_over_a_day_of_bursts(url: str) -> None:
    clock, rng, tried = ManualClock(), random.Random(url.partition(":")[0]), set[str]()
    pipeline = books(tried)
    bursts = sorted(rng.sample(range(30, STEPS - 120), effort(5, 20)))
    with opened(url, clock, pipeline) as app, opened(url, clock, pipeline) as people:
        keda, deployment = Keda(url, clock), Deployment(app)
        people.register()
        idle = up = added = 0
        was_zero = False
        try:
            for step in range(STEPS):
                clock.advance(STEP_SECONDS)
                if not deployment.is_up:
                    # Nothing has come from outside since it was asked: what was not soon is not due now.
                    assert not was_zero or keda.due_now() == [], step
                    if step in bursts:
                        added += _burst(people, step, bursts.index(step))
                number = keda.number()
                if deployment.is_up:
                    up += 1
                    wait_for(lambda: keda.due_now() == [], PATIENCE)
                    number = keda.number()
                    idle = 0 if number else idle + 1
                    if idle >= COOL_DOWN:
                        deployment.stop()
                elif number:
                    deployment.start()
                    idle = 0
                else:
                    assert keda.due_now() == []
                was_zero = number == 0
            deployment.stop()
            assert keda.number() == 0
        finally:
            deployment.stop()
            keda.store.close()
        states = {one.name: dict(one.states) for one in people.status().pipeline("books").stages}
        # Every burst was worked on, and so was what the source has found, five hours apart.
        assert states == {"extract": {"done": added + 1}, "chunk": {"done": added + 1}}
        assert people.alert_status().rules[0].told_at is not None
        assert deployment.starts >= 3
        # Most of the day nobody was there.
        assert up < STEPS / 2


def _burst(people: Holdfast, step: int, n: int) -> int:
    """Work, some of it fails at first; every third time it may begin after half an hour only."""
    keys = [f"a{step}-{k}" for k in range(20)] + [f"flaky-{step}"]
    if n % 3 == 2:
        people.pause("books", until="30m", reason="quiet hours")
    people.add("books", keys)
    return len(keys)


@pytest.fixture
def keda(url: str) -> Iterator[Keda]:
    """With a pipeline that nobody needs a worker for."""
    clock = ManualClock()
    pipeline = Pipeline("books")

    @pipeline.stage()
    def only(item: Any, ctx: Any) -> None:
        return None

    with Holdfast(url, [pipeline.spec], clock=clock) as app:
        app.register()
        keda = Keda(url, clock)
        keda.app, keda.clock = app, clock  # type: ignore[attr-defined]
        assert keda.number() == 0
        yield keda
        keda.store.close()


def do(keda: Any, text: str, **params: Any) -> None:
    keda.store.write(lambda tx: ask(tx, text, **params))


DELIVERY = "INSERT INTO holdfast_deliveries (alert, body, due_at) VALUES ('a', '{}', :due)"
DELAYED = (
    "INSERT INTO holdfast_delayed (item, stage, attempts, alone, rerun, due_at) "
    "SELECT 1, id, 1, 0, 0, :due FROM holdfast_stages"
)
SOURCE = "INSERT INTO holdfast_sources (pipeline, name, due_at) SELECT id, 's', :due FROM holdfast_pipelines"


@pytest.mark.parametrize("text", [DELIVERY, DELAYED, SOURCE], ids=["delivery", "retry", "source"])
def test_what_falls_due_within_a_minute_needs_a_worker_and_what_falls_due_later_does_not(keda: Any, text: str) -> None:
    do(keda, text, due=keda.clock.now() + SOON_US + 1 * SECOND)
    assert keda.number() == 0
    keda.clock.advance(1)
    assert keda.number() == 1
    keda.clock.advance(3600)
    assert keda.number() == 1


def test_waiting_work_needs_a_worker_unless_it_is_paused_for_longer(keda: Any) -> None:
    keda.app.add("books", ["a", "b", "c"])
    assert keda.number() == 3
    keda.app.pause("books")
    assert keda.number() == 0
    keda.app.resume("books")
    for name in ("books", "books/only"):
        keda.app.pause(name, until="10m")
        assert keda.number() == 0
        keda.clock.advance(9 * 60 - 1)
        assert keda.number() == 0
        keda.clock.advance(1)
        assert keda.number() == 3
        keda.app.resume(name)


def test_leases_also_those_of_dead_workers_need_a_worker(keda: Any) -> None:
    keda.app.add("books", ["a"])
    [stage] = keda.store.read(layout).stages
    [lease] = keda.store.write(lambda tx: claim(tx, 4711, stage, 1))
    keda.app.pause("books")
    assert keda.number() == 1
    keda.store.write(lambda tx: release(tx, [lease]))
    assert keda.number() == 0


def test_an_action_that_is_not_done_needs_a_worker(keda: Any) -> None:
    keda.app.add("books", ["a", "b", "c"])
    keda.app.cancel(pipeline="books")
    assert keda.number() == 0
    # As if the process of the person had died before the end.
    do(keda, "UPDATE holdfast_actions SET state = 'open'")
    assert keda.number() == 1


def test_events_that_no_rule_has_looked_at_need_a_worker_and_comings_and_goings_do_not(keda: Any) -> None:
    keda.store.write(lambda tx: alert_rules.learn(tx, ALERTS))
    assert keda.number() == 0
    for event in ("worker_started", "worker_stopped", "alert_told"):
        keda.store.write(lambda tx, event=event: tx.record(event))
    assert keda.number() == 0
    keda.store.write(lambda tx: tx.record("attempt_failed"))
    assert keda.number() == 1
    keda.store.write(lambda tx: alert_rules.watch_events(tx, ALERTS))
    # It was found, and is to be told.
    assert keda.number() == 1
    do(keda, "DELETE FROM holdfast_deliveries")
    assert keda.number() == 0


def rules(**every: str) -> tuple[AlertRule, ...]:
    """Rules of which each watches another event."""
    events = {"failures": "attempt_failed", "deaths": "worker_died"}
    return read_alerts({name: {"event": events[name], "every": every[name], "log": True} for name in every})


def notify(keda: Any, watched: Sequence[AlertRule]) -> int:
    """Look once, as a worker does, and deliver what there is to tell; how many rules had something."""
    raised = keda.store.write(lambda tx: alert_rules.watch_events(tx, watched))
    do(keda, "DELETE FROM holdfast_deliveries")
    return int(raised)


def test_a_rule_in_its_quiet_period_needs_a_worker_when_that_ends(keda: Any) -> None:
    watched = rules(failures="24h")
    keda.store.write(lambda tx: alert_rules.declare(tx, ["books"], watched))
    keda.store.write(lambda tx: tx.record("attempt_failed"))
    assert notify(keda, watched) == 1
    keda.clock.advance(120)
    keda.store.write(lambda tx: tx.record("attempt_failed"))
    for _ in range(23):
        assert keda.number() == 0
        keda.clock.advance(3600)
    keda.clock.advance(3600)
    assert keda.number() == 1
    assert notify(keda, watched) == 1
    assert keda.number() == 0


def test_what_one_rule_has_looked_at_needs_a_worker_for_another_rule(keda: Any) -> None:
    watched = rules(failures="1h", deaths="1h")
    keda.store.write(lambda tx: alert_rules.declare(tx, ["books"], watched))
    keda.store.write(lambda tx: tx.record("attempt_failed"))
    assert notify(keda, watched) == 1
    keda.clock.advance(120)
    keda.store.write(lambda tx: tx.record("attempt_failed"))
    assert keda.number() == 1  # the rule about deaths has not looked at it
    assert notify(keda, watched) == 0
    assert keda.number() == 0
    keda.clock.advance(3600)
    assert keda.number() == 1  # the quiet period of the other one has ended
    assert notify(keda, watched) == 1
    assert keda.number() == 0


def test_a_longer_quiet_period_holds_from_the_start_of_the_next_worker_on(keda: Any) -> None:
    keda.store.write(lambda tx: alert_rules.declare(tx, ["books"], rules(failures="1h")))
    keda.store.write(lambda tx: tx.record("attempt_failed"))
    assert notify(keda, rules(failures="1h")) == 1
    keda.clock.advance(4000)
    keda.store.write(lambda tx: tx.record("attempt_failed"))
    assert keda.number() == 1
    keda.store.write(lambda tx: alert_rules.declare(tx, ["books"], rules(failures="3h")))
    assert keda.number() == 0


def test_a_rule_that_its_program_no_longer_has_needs_no_worker(url: str) -> None:
    pipelines = [Pipeline[Any](name) for name in ("books", "films")]
    for one in pipelines:
        one.stage(name="only")(lambda item, ctx: None)
    books, films = (one.spec for one in pipelines)
    clock = ManualClock()
    keda: Any = Keda(url, clock)
    with closing(keda.store):
        with Holdfast(url, [books], alerts=rules(failures="1h"), clock=clock) as app:
            app.worker()
        keda.store.write(lambda tx: tx.record("attempt_failed"))
        do(keda, "INSERT INTO holdfast_deliveries (alert, body, due_at) VALUES ('failures', '{}', 0)")
        assert keda.number() == 2
        # Not the program that had it.
        with Holdfast(url, [films], clock=clock) as app:
            app.worker()
        assert keda.number() == 2
        with Holdfast(url, [books], clock=clock) as app:
            app.worker()
        assert keda.number() == 0
        # A worker that has it and still runs, beside one of the new program.
        do(keda, "DELETE FROM holdfast_deliveries")
        keda.store.write(lambda tx: alert_rules.watch_events(tx, rules(failures="1h")))
        assert keda.number() == 1


def test_a_stage_that_is_back_filled_and_work_that_waits_for_a_version_need_a_worker(keda: Any) -> None:
    do(keda, "UPDATE holdfast_stages SET backfill_next = 1")
    assert keda.number() == 1
    do(keda, "UPDATE holdfast_stages SET backfill_next = NULL")
    held = (
        "INSERT INTO holdfast_holds (stage, item, kind, reason, attempts, alone, rerun, since) "
        "SELECT id, 1, '{}', '', 0, 0, 0, 0 FROM holdfast_stages"
    )
    do(keda, held.format("price"))
    assert keda.number() == 0
    do(keda, "DELETE FROM holdfast_holds")
    do(keda, held.format("version"))
    assert keda.number() == 1


def test_the_printed_query_is_one_number_for_any_program(cli: Commands) -> None:
    pipeline = Pipeline("books", store=cli.url)

    @pipeline.stage()
    def only(item: Any, ctx: Any) -> None:
        return None

    pipeline.add(["a", "b"])
    text = cli("sql", "keda").stdout.strip()
    with closing(open_store(cli.url)) as store:
        assert store.read(lambda tx: [tuple(row) for row in tx.connection.execute(text)]) == [(2,)]


def test_an_address_that_names_no_store_has_no_query() -> None:
    with pytest.raises(UsageError, match="neither"):
        demand_query("mysql://host/db")


def test_the_page_names_every_column_and_need_of_the_view(keda: Any) -> None:
    page = (ROOT / "docs" / "reference" / "sql.md").read_text(encoding="utf-8").partition("## `holdfast_demand`\n")[2]
    columns, needs = (re.findall(r"^\| `(\w+)`", part, re.MULTILINE) for part in page.split("| need | a worker"))
    records = keda.store.read(
        lambda tx: (ask(tx, "SELECT * FROM holdfast_demand LIMIT 0"), tx.store.driver.columns())[1]
    )
    assert list(records) == columns
    [migration] = [one for one in migrations() if "holdfast_demand" in one.text]
    view = migration.text.partition("CREATE VIEW holdfast_demand")[2].partition(";\n")[0]
    assert {"waiting", "running", *re.findall(r"UNION ALL SELECT '(\w+)'", view)} == set(needs)
