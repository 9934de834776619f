"""Pages for those who keep it running: limits, workers, sources, events, alerts, audit; and the changes they make there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Context, Holdfast, Item, Permanent, Pipeline
from holdfast.answers.json_of import json_of
from holdfast.engine import alert_rules
from holdfast.engine.poll_sources import Wanted, sync_sources
from holdfast.engine.workers import Identity, join
from holdfast.model.alert import AlertRule
from holdfast.store import open_store
from holdfast.web import Access
from holdfast.web.change_settings import CHANGES
from tests.web.conftest import HOSTILE, Web
from tests.web.test_dashboard_pages import lines

pytestmark = pytest.mark.req("P17")

NASTY = "".join(HOSTILE)
PAGES = ("limits", "workers", "sources", "events", "alerts", "audit")


def shop(url: str) -> Pipeline:
    pipeline = Pipeline("shop", store=url, resources={"api": {"rate": "1000/s", "budget": 100}})

    @pipeline.stage(resource="api")
    def weigh(item: Item, ctx: Context) -> int:
        ctx.cost("0.25")
        if item.key.startswith("bad"):
            raise Permanent(f"no scales {NASTY}")
        return 1

    return pipeline


def at_work(url: str) -> None:
    """A worker that is silent, one that died, a source, an alert that waits, and a person's acts, with hostile texts."""
    store = open_store(url)
    facts = {
        "in_hand": 3,
        "done": {"done": 2},
        "progress": [{"item": NASTY, "stage": "weigh", "done": 1, "total": 2, "note": NASTY}],
        "guards": [{"pipeline": "shop", "guard": "hours", "text": NASTY, "until": None}],
        "last_error": {"at": 10**15, "stage": "shop/weigh", "item": NASTY, "error": f"boom {NASTY}"},
    }
    rule = [AlertRule.read("too-many", {"event": "worker_died", "log": True})]
    later = store.read(lambda tx: tx.now) + 10**10
    [(stage,)] = store.read(lambda tx: [(row[0],) for row in tx.run("read_counts")][:1])
    store.write(lambda tx: join(tx, Identity(7, f"one {NASTY}", "host", "1 x", 1), {stage: "1"}, facts))
    store.write(lambda tx: alert_rules.watch_events(tx, rule))
    store.write(lambda tx: tx.record("worker_died", worker=8, name=f"two {NASTY}", why="its process is gone"))
    store.write(lambda tx: alert_rules.watch_events(tx, rule))
    store.write(lambda tx: sync_sources(tx, "shop", {f"shelf{NASTY}": Wanted("d", later, later)}))
    store.close()


@pytest.fixture
def busy(url: str) -> str:
    pipeline = shop(url)
    pipeline.add(["good", "bad-1", NASTY])
    pipeline.run()
    at_work(url)
    with Holdfast(url, create=False) as app:
        app.retry(key="bad-1", by=f"eve {NASTY}", reason=NASTY)
        app.pause("shop/weigh", reason=NASTY, by="bob")
    return url


@pytest.fixture
def web(busy: str, serve: Callable[..., Web]) -> Web:
    return serve(busy)


@pytest.fixture
def app(busy: str) -> Iterator[Holdfast]:
    with Holdfast(busy, create=False) as app:
        yield app


def test_each_page_is_a_question_of_the_app_and_hostile_texts_stay_texts(web: Web, app: Holdfast):
    events = app.newest_events()
    expected: dict[str, Any] = {
        "limits": {"limits": json_of(app.limits()), "pipelines": json_of(app.status().pipelines)},
        "workers": {"workers": app.workers().json(), "dead": app.newest_events(event="worker_died").json()},
        "sources": app.sources().json(),
        "events": events.json(),
        "alerts": app.alert_status().json(),
        "audit": app.audit().json(),
        f"events/{events.events[0].id}": events.events[0].json(),
    }
    assert app.workers()[0].last_error is not None
    for path, answer in expected.items():
        assert web.get(f"/{path}.json").json() == answer, path
        html = web.get(f"/{path}")
        assert html.status_code == 200, path
        assert len(html.content) < 100_000
        for wrong in ("<script>alert", "<img src=x", "\u202e", "62615533"):
            assert wrong not in html.text, path
        assert not [one for one in lines(web.get(f"/{path}.csv").text) for cell in one.values() if cell[:1] == "="]
    names = {"limits": "api", "workers": "silent", "sources": "shelf", "alerts": "too-many", "audit": "bob"}
    for path, name in names.items():
        assert name in web.get(f"/{path}").text, path
    workers = web.get("/workers").text
    assert "boom" in workers and "dead" in workers and "1 of 2" in workers


def test_the_list_of_events_leaves_out_facts_that_say_nothing(web: Web, app: Holdfast):
    [registered] = app.newest_events(event="pipeline_registered").events
    assert registered.data["removed"] == []
    page = web.get("/events?event=pipeline_registered").text
    assert "added: <bdi>weigh</bdi>" in page.replace("<bdi>added</bdi>", "added") and "removed" not in page
    assert "<dt><bdi>removed</bdi></dt><dd><bdi>nothing</bdi>" in web.get(f"/events/{registered.id}").text


def test_events_and_the_audit_are_narrowed_by_their_address(web: Web, app: Holdfast):
    assert {one["event"] for one in web.get("/events.json?event=failed&pipeline=shop").json()["events"]} == {"failed"}
    for query in ("key=bad-1&since=1h", "stage=weigh&event=failed", "since=2020-01-01"):
        assert web.get(f"/events.json?{query}").json()["events"], query
    assert web.get("/events.json?since=2099-01-01").json()["events"] == []
    assert [one["verb"] for one in web.get("/audit.json?by=bob").json()["entries"]] == ["pause"]
    assert [one["verb"] for one in web.get("/audit.json?verb=retry").json()["entries"]] == ["retry"]
    later = (datetime.now(UTC) + timedelta(days=1)).date()
    assert web.get(f"/audit.json?since={later}").json()["entries"] == []


@pytest.mark.parametrize(
    "path",
    [
        "events?event=faild",
        "events?pipeline=shp",
        "events?stage=wigh",
        "events?key=nobody",
        "events?since=soon",
        "events?after=x",
        "events/999999",
        "audit?verb=retyr",
        "audit?after=1/2",
        "change/pause",
        "change/pause?name=shop&kind=person",
        "change/tune?name=ap&kind=resource",
    ],
)
def test_a_wrong_value_is_refused(web: Web, path: str):
    assert web.get(f"/{path}").status_code == 400


def test_a_list_of_events_goes_on_after_its_last_one(web: Web, app: Holdfast):
    for n in range(120):
        app.event("user.note", n=n)
    first = web.get("/events.json?event=user.note").json()
    page = web.get("/events?event=user.note").text
    address = f"./events?event=user.note&amp;after={first['cursor'].replace('/', '%2F')}"
    assert f'href="{address}" rel="next"' in page
    rest = web.get(address.replace("&amp;", "&").removeprefix(".").replace("events?", "events.json?")).json()
    assert [one["data"]["n"] for one in first["events"] + rest["events"]] == list(range(119, -1, -1))


# Changes --------------------------------------------------------------------------------------------------------------


def send(web: Web, change: str, name: str, kind: str, **fields: str) -> Any:
    """What a person does: open the form, fill it in, send it."""
    form = web.form(f"/change/{change}?name={name}&kind={kind}")
    return web.post(f"/change/{change}", {**form, **fields})


def test_a_pipeline_a_stage_and_a_resource_are_paused_and_resumed_under_the_persons_name(web: Web, app: Holdfast):
    moved = send(web, "pause", "shop", "pipeline", **{"for": "2h", "reason": "lunch"})
    assert (moved.status_code, moved.headers["location"]) == (303, "../limits")
    shop = app.status().pipeline("shop")
    assert (shop.paused, shop.reason, shop.stage("weigh").paused) == (True, "lunch", True)
    assert shop.paused_until is not None and shop.paused_at is not None
    assert shop.paused_until - shop.paused_at == timedelta(hours=2)
    send(web, "pause", "api", "resource", reason="down")
    assert app.limits()[0].paused
    for name, kind in (("shop", "pipeline"), ("shop/weigh", "pipeline"), ("api", "resource")):
        assert send(web, "resume", name, kind).status_code == 303
    assert not app.limits()[0].paused
    assert not app.status().pipeline("shop").stage("weigh").paused
    told = [(one.verb, one.reason) for one in app.audit(by="ada").entries]
    assert told == [("resume", "")] * 3 + [("pause", "down"), ("pause", "lunch")]
    assert send(web, "pause", "shp", "pipeline").status_code == 400


def test_only_the_limits_that_were_changed_in_the_form_are_tuned(web: Web, app: Holdfast):
    form = web.form("/change/tune?name=api&kind=resource")
    page = web.get("/change/tune?name=api&kind=resource").text
    assert 'name="set-rate" value="1000/s"' in page
    app.tune("shop", {"api.budget": 7}, by="bob")
    sent = {name.replace("was-", "set-"): value for name, value in form.items() if name.startswith("was-")}
    fields = {**form, **sent, "set-rate": "5/s", "set-breaker": '{"failures": 3}', "reason": "slowly"}
    assert web.post("/change/tune", fields).status_code == 303
    assert app.limits()[0].allowed == {"rate": "5/s", "budget": 7, "breaker": {"failures": 3}}
    [tuned, *_] = app.audit(verb="tune").entries
    assert (tuned.by, tuned.reason) == ("ada", "slowly")
    # An empty field takes back what was set here; the form without a change does nothing.
    again = web.form("/change/tune?name=api&kind=resource")
    assert web.post("/change/tune", {**again, "set-rate": ""}).status_code == 303
    assert app.limits()[0].allowed["rate"] == "1000/s"
    assert web.post("/change/tune", again).status_code == 400
    for name, key in (("@shop", "concurrency"), ("@shop/weigh", "concurrency")):
        assert send(web, "tune", name, "pipeline", **{f"set-{key}": "2"}).status_code == 303
    allowed = {one.name: one.allowed for one in app.limits()}
    assert allowed["@shop"] == allowed["@shop/weigh"] == {"concurrency": 2}
    assert send(web, "tune", "api", "resource", **{"set-rate": "fast"}).status_code == 400


def test_a_look_is_asked_for_and_left_to_a_worker(web: Web, app: Holdfast):
    [before] = app.sources()
    fields = {**web.form("/change/discover?name=x&kind=source"), "name": f"shop/{before.source}", "reason": "now"}
    moved = web.post("/change/discover", fields)
    assert (moved.status_code, moved.headers["location"]) == (303, "../sources")
    [after] = app.sources()
    assert before.due_at is not None and after.due_at is not None and after.due_at < before.due_at
    assert [(one.verb, one.by, one.reason) for one in app.audit(verb="discover").entries] == [
        ("discover", "ada", "now")
    ]


def test_who_may_only_read_finds_no_way_to_change_anything(busy: str, serve: Callable[..., Web], app: Holdfast):
    before = app.audit()
    for web in (serve(busy, read_only=True), serve(busy, access=lambda request: Access("eve", verbs={"retry"}))):
        assert "change/" not in web.get("/limits").text + web.get("/sources").text
        for name in CHANGES:
            address = f"/change/{name}?name=shop&kind=pipeline"
            assert web.get(address).status_code == 403
            assert web.post(f"/change/{name}", {"name": "shop", "kind": "pipeline"}).status_code == 403
    assert app.audit() == before


def test_a_change_needs_the_token_of_its_session_and_a_post(web: Web, app: Holdfast):
    before = app.audit()
    form = web.form("/change/pause?name=shop&kind=pipeline")
    assert web.post("/change/pause", {**form, "form_token": "0" * 64}).status_code == 403
    assert web.post("/change/pause", form, headers={"origin": "http://evil.example"}).status_code == 403
    assert web.get("/change/pause?name=shop&kind=pipeline").status_code == 200
    assert app.audit() == before
