"""Pages for those who keep it running stay below 100 kB however long the texts are and however many there are of them, and lose
nothing: errors, costs, plans, workers, sources, alerts, throughput, and actions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast import Context, Holdfast, Item, Permanent, Pipeline
from holdfast.engine import alert_rules
from holdfast.engine.poll_sources import Wanted, sync_sources
from holdfast.engine.workers import Identity, join
from holdfast.model.alert import AlertRule
from holdfast.model.key_pattern import exactly
from holdfast.store import Transaction, open_store
from holdfast.web.pages.errors import MOST
from holdfast.web.pages.throughput import MOST_CHARTS
from tests.web.conftest import Web
from tests.web.test_dashboard_page_bytes import TEXT, long_key, nothing, pages_of

pytestmark = pytest.mark.req("P17")

MANY = 90
MODELS = 130
WORKERS = 12
#: Of so many items all stages are done; the others fail, each for a reason of its own.
DONE = 2
#: Of the notifications that have ended, so many are shown.
MOST_ENDED = 100
#: Each character is as long as can be, in an address or in HTML.
NAME = TEXT * 60


def name(n: int) -> str:
    """What a model, a worker or an alert rule may be called at most."""
    return f"n{n:03} {NAME}"[:200]


def label(n: int) -> str:
    """What a stage or a resource may be called at most."""
    return f"n{n:03}-{'漢' * 95}"


def word(n: int) -> str:
    """What tells an error apart from others, as numbers do not."""
    return "".join("abcdefghij"[int(digit)] for digit in f"{n:03}")


def plant(url: str, version: str = "1") -> Pipeline:
    """Every item costs money, at a model of its own."""
    resources: dict[str, dict[str, Any]] = {label(n): {"budget_per_day": "20.00"} for n in range(MANY)}
    made = Pipeline("plant", store=url, resources=resources)

    @made.stage(resource=label(0), version=version)
    def read(item: Item, ctx: Context) -> None:
        n = int(item.key[:4])
        ctx.cost("0.01", facts={"model": name(n)})
        if n >= DONE:
            raise Permanent(f"{word(n)} {NAME}")

    for n in range(MANY):
        made.stage(name=label(n), after=read, resource=label(n), version=version)(nothing)
    return made


def at_work(url: str) -> None:
    """Workers, sources, alert rules and notifications with long texts."""
    store = open_store(url)
    stages = store.read(lambda tx: [row[0] for row in tx.run("read_counts")])
    facts = {
        "in_hand": 3,
        "done": {"done": 2},
        "progress": [{"item": NAME, "stage": NAME, "done": 1, "total": 2, "note": NAME} for _ in range(20)],
        "guards": [{"pipeline": NAME, "guard": "hours", "text": NAME, "until": None} for _ in range(20)],
        "last_error": {"at": 10**15, "stage": NAME, "item": NAME, "error": NAME},
    }
    rules = [AlertRule.read(name(n), {"event": "worker_died", "log": True}) for n in range(MANY)]
    later = store.read(lambda tx: tx.now) + 10**10
    offered = dict.fromkeys(stages, "1")

    def work(tx: Transaction) -> None:
        for n in range(WORKERS):
            join(tx, Identity(100 + n, name(n), "host", "1 x", 10**10), offered, facts)
            tx.record("worker_died", worker=n + 1, name=name(n), why=NAME)
        for n in range(2 * MOST_ENDED):
            tx.record("alert_given_up", alert=name(n % 2), by="log", said=NAME, error=NAME)
        sync_sources(tx, "plant", {name(n): Wanted("d", later, later) for n in range(MANY)})

    store.write(work)
    store.write(lambda tx: alert_rules.watch_events(tx, rules))
    store.write(lambda tx: tx.record("worker_died", worker=1, name=name(WORKERS), why=NAME))
    store.write(lambda tx: alert_rules.watch_events(tx, rules))
    store.close()


@pytest.fixture
def long(url: str) -> str:
    made = plant(url)
    made.add([f"{n:04}{long_key(1)}"[:500] for n in range(MODELS)])
    made.run()
    at_work(url)
    return url


@pytest.fixture
def web(long: str, serve: Callable[..., Web]) -> Iterator[Web]:
    """It has the code, of a newer version of the first stage."""
    with Holdfast(long, [plant(long, version="2").spec], create=False) as app:
        yield serve(app)


def numbered(pages: str) -> list[int]:
    """The numbers in the names that begin rows."""
    return [int(one) for one in re.findall(r'<th scope="row">(?:<a[^>]*>)?<bdi>(?:plant/)?n(\d\d\d)[ -]', pages)]


def all_of(web: Web, address: str) -> str:
    """Its pages, of which there are several."""
    pages = list(pages_of(web, address))
    assert len(pages) > 1, address
    return "".join(pages)


def test_groups_of_errors_go_on_behind_next(web: Web):
    groups = re.findall(r'<tr id="g([0-9a-f]+)">', all_of(web, "errors"))
    assert len(groups) == len(set(groups)) == MOST
    assert "holdfast errors --limit" in web.get("/errors").text


def test_sums_charts_and_budgets_go_on_behind_next(web: Web):
    for query in ("by=model", "by=day&by=model", "by=stage&by=model&by=resource"):
        pages = all_of(web, f"costs?{query}")
        assert list(map(int, re.findall(r'<tr id="m(\d+)">', pages))) == list(range(1, MODELS + 1)), query
        assert pages.count('<svg class="chart"') == 4
        budgets = pages.partition('<h2 id="budgets">')[2].partition('<h2 id="again">')[0]
        assert numbered(budgets) == list(range(MANY))
        assert pages.count("More sums") == 2


def test_a_plan_goes_on_behind_next_and_each_of_its_pages_acts_on_all(web: Web):
    pages = all_of(web, "plan?pipeline=plant")
    assert numbered(pages) == list(range(MANY))
    assert pages.count("Reprocess…") > 1 and 'name="after"' not in pages


def test_workers_sources_and_alerts_go_on_behind_next(web: Web, long: str):
    with Holdfast(long, create=False) as app:
        alerts = app.alert_status()
    workers = all_of(web, "workers")
    assert numbered(workers) == [*range(WORKERS), *reversed(range(WORKERS + 1))]
    assert workers.count("and 10 more") == 2 * WORKERS
    assert numbered(all_of(web, "sources")) == list(range(MANY))
    found = numbered(all_of(web, "alerts"))
    assert found == [int(one[1:4]) for one in [*(r.name for r in alerts.rules), *(d.alert for d in alerts.deliveries)]]
    assert len(alerts.rules) == MANY and len(alerts.deliveries) == MANY + MOST_ENDED


def test_throughput_and_the_overview_go_on_behind_next(web: Web):
    pages = all_of(web, "throughput")
    assert numbered(pages) == [] and pages.count('<tr id="s') == MANY + 1
    assert pages.count('<svg class="chart"') == 2 * MOST_CHARTS
    assert all_of(web, "overview") and all_of(web, "limits")


def test_actions_and_what_they_did_go_on_behind_next(web: Web, long: str):
    with Holdfast(long, create=False) as app:
        keys = [one.key for one in app.items(most=MODELS)]
        named = [exactly(key) for key in keys]
        app.retry(key=named, states=["failed"], stage="read", reason=NAME, by=NAME)
        for _ in range(MANY // 2):
            app.cancel(key=keys[DONE], stage="read", reason=NAME, by=NAME)
            app.retry(key=keys[DONE], states=["cancelled"], stage="read", reason=NAME, by=NAME)
        [first] = [one for one in app.actions(most=1000) if one.id == 1]
        told = app.action(first.id, most=1000)
    assert (len(told.items), len(told.left_alone)) == (MODELS - DONE, DONE)
    assert len(re.findall(r'<tr id="a\d+">', all_of(web, "actions"))) == MANY + 1
    pages = all_of(web, f"actions/{first.id}")
    assert pages.count("changed meanwhile") == DONE
    keys = [re.escape(key[:4]) for key in keys]
    found = re.findall(r'<a href="\.\./item\?[^"]*"><bdi>(\d{4})', pages)
    assert found == keys[DONE:]
