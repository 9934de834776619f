"""Steering the newsroom while a worker is at work: pause, guards, breaker, budget, tuning, schedules. The worker is a process
of its own and lives through all of it; each test has pages of its own, and leaves the newsroom as it found it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from examples.newsroom.fakes.fake_site import FakeSite
from holdfast.answers import PipelineStatus, ResourceLimit
from tests.examples.newsroom_scene import Scene, scene_on, soon

DATABASES = [pytest.param(name, marks=pytest.mark.together(f"newsroom-{name}")) for name in ("sqlite", "postgres")]


@pytest.fixture(scope="module", params=DATABASES)
def open_newsroom(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A worker that serves the newsroom. Its only source is the feed, looked at every second, and quite empty at first."""
    with scene_on(request.param, tmp_path_factory.mktemp("steering"), request, pages=160) as scene:
        scene.only("feed")
        scene.edit("every: 1m, data", "every: 1s, data")
        # Failures are told by the second.
        scene.edit("count: 3, within: 1m, every: 1m,", "count: 3, within: 1m, every: 1s,")
        scene.edit("probe_after: 2s", "probe_after: 500ms")
        # However long a test looks at a site that is down, no page is lost over it.
        scene.edit("max_attempts: 4", "max_attempts: 1000")
        scene.server.broken.clear()
        scene.server.sources.down = True
        scene.holdfast("check", scene.file)
        scene.worker("--concurrency", "4")
        yield scene


@pytest.fixture
def scene(open_newsroom: Scene) -> Iterator[Scene]:
    assert open_newsroom.is_done(), "an earlier test has failed, and left work behind"
    yield open_newsroom
    assert open_newsroom.is_done(), open_newsroom.app.status()
    assert open_newsroom.app.check() == []


def pipeline(scene: Scene) -> PipelineStatus:
    [found] = scene.app.status().pipelines
    return found


def limit(scene: Scene, name: str) -> ResourceLimit:
    return next(one for one in scene.app.limits() if one.name == name)


def asked_for(scene: Scene, keys: list[str]) -> int:
    """How often any of these pages was asked for."""
    paths = {key.removeprefix(scene.server.url) for key in keys}
    return sum(one.path in paths for one in list(scene.server.asked))


def held_by(scene: Scene) -> str:
    """What the guards of the worker have said, as of its last heartbeat."""
    return " ".join(guard.text for one in scene.app.workers() for guard in one.guards)


# Pause ----------------------------------------------------------------------------------------------------------------


@pytest.mark.req("J11")
def test_a_pause_is_four_facts_and_ends_when_a_person_says_so(scene: Scene):
    scene.holdfast("pause", "newsroom", "--reason", "the editor is at lunch")
    told = pipeline(scene)
    assert (told.paused, told.reason, told.paused_until) == (True, "the editor is at lunch", None)
    assert told.paused_at is not None
    keys = scene.take(3)
    scene.add(keys)
    why = scene.json("why", keys[0])
    assert (why["reason"], why["until"]) == ("paused", None) and "at lunch" in why["text"]
    # The worker has heard of them, and begins nothing: a heartbeat later all of them wait.
    beat = max(one.heartbeat_at for one in scene.app.workers())
    soon(lambda: max(one.heartbeat_at for one in scene.app.workers()) > beat + timedelta(seconds=0.5))
    assert asked_for(scene, keys) == 0
    scene.holdfast("resume", "newsroom")
    scene.wait_until_done()
    assert not pipeline(scene).paused
    [*_, paused] = scene.events("paused")
    [*_, resumed] = scene.events("resumed")
    assert paused.data["reason"] == "the editor is at lunch" and resumed.at > paused.at


@pytest.mark.req("J11")
def test_a_pause_with_a_time_ends_by_itself(scene: Scene):
    scene.holdfast("pause", "newsroom", "--for", "1s", "--reason", "a minute of silence")
    paused = pipeline(scene)
    assert paused.paused_until - paused.paused_at == timedelta(seconds=1)
    keys = scene.take(2)
    scene.add(keys)
    scene.wait_until_done()
    [*_, event] = scene.events("resumed")
    assert event.at >= paused.paused_until and event.data["by"] == ""
    assert min(scene.stage(key, "fetch").started_at for key in keys) >= paused.paused_until


# Guards ---------------------------------------------------------------------------------------------------------------


@pytest.mark.req("J18")
def test_an_embargo_holds_everything_back_until_the_file_is_removed(scene: Scene):
    embargo = Path(scene.environment["NEWSROOM_EMBARGO"])
    embargo.write_text("the council speaks at noon")
    soon(lambda: "an embargo" in held_by(scene))
    keys = scene.take(2)
    scene.add(keys)
    why = scene.json("why", keys[0])
    assert why["reason"] == "guard" and "there is an embargo: the council speaks at noon" in why["text"]
    assert asked_for(scene, keys) == 0
    embargo.unlink()
    scene.wait_until_done()
    soon(lambda: not held_by(scene))


@pytest.mark.req("J18")
@pytest.mark.parametrize(
    ("change", "says"),
    [("exists=no/such/file", "no/such/file"), ("disk_free=100000TB", "free"), ("hours=", "")],
    ids=["a file that must exist", "free disk", "hours of the day"],
)
def test_every_guard_can_be_set_while_the_worker_runs_and_says_why_it_holds(scene: Scene, change: str, says: str):
    name = change.partition("=")[0]
    before = {"exists": "", "disk_free": "100MB", "hours": ""}[name]
    if name == "hours":
        # The hour that is furthest from now.
        hour = (time.gmtime().tm_hour + 12) % 24
        change = f"hours={hour:02}:00-{(hour + 1) % 24:02}:00"
        says = f"{hour:02}:00"
    scene.holdfast("tune", "newsroom", change)
    soon(lambda: says in held_by(scene))
    [key] = scene.take(1)
    scene.add([key])
    why = scene.json("why", key)
    assert why["reason"] == "guard" and says in why["text"], why
    assert (why["until"] is not None) == (name == "hours")
    assert asked_for(scene, [key]) == 0
    scene.holdfast("tune", "newsroom", f"{name}={before}")
    scene.wait_until_done()
    soon(lambda: not held_by(scene))


# Breaker, alerts ------------------------------------------------------------------------------------------------------


@pytest.mark.req("J19", "D11")
def test_a_site_that_is_down_opens_the_breaker_which_tells_waits_probes_and_closes_by_itself(scene: Scene):
    scene.server.pages.down = True
    keys = scene.take(12)
    told = len(scene.server.alerts)
    scene.add(keys)
    opened = soon(lambda: scene.events("breaker_opened"))[-1]
    assert opened.resource == "site"
    stopped = limit(scene, "site")
    assert stopped.breaker in ("open", "probing") and stopped.failures >= 5
    # Who would fail is not asked: a dozen pages wait, and only a few have been asked for.
    assert asked_for(scene, keys) <= 20
    # While a probe finds out, nobody knows until when they wait.
    why = soon(lambda: [one for one in map(scene.app.why, keys) if one.reason == "breaker" and one.until])[0]
    assert why.resource == "site"
    # A probe finds it still down, and the site's owner is told over the webhook, once for each rule.
    before = asked_for(scene, keys)
    soon(lambda: asked_for(scene, keys) > before)
    rules = soon(lambda: len({one["alert"] for one in scene.server.alerts[told:]}) >= 2 and scene.server.alerts[told:])
    assert {one["alert"] for one in rules} >= {"the site fails", "the breaker is open"}
    fails = next(one for one in rules if one["alert"] == "the site fails")
    assert fails["count"] >= 3 and fails["examples"][0]["stage"] == "fetch"
    scene.server.pages.down = False
    scene.wait_until_done()
    assert [scene.stage(key, "fetch").state for key in keys] == ["done"] * 12
    assert limit(scene, "site").breaker == "closed"
    assert scene.events("breaker_closed")[-1].at > opened.at


# Money ----------------------------------------------------------------------------------------------------------------


@pytest.mark.req("J10", "V11")
@pytest.mark.fault(66)
def test_a_daily_budget_is_never_passed_and_the_rest_waits_with_a_reason(scene: Scene):
    spent = limit(scene, "analyst").spent_today
    # Room for two calls at the estimate of 0.01, whatever they cost.
    budget = spent + Decimal("0.025")
    scene.holdfast("tune", "newsroom", f"analyst.budget_per_day={budget}", "--reason", "a quiet day")
    keys = scene.take(12)
    scene.add(keys)
    [*_, reached] = soon(lambda: scene.events("budget_reached"))
    soon(lambda: not limit(scene, "analyst").in_use)
    held = limit(scene, "analyst")
    assert held.paused and "budget" in held.reason and held.paused_until is not None
    assert held.spent_today <= budget
    waiting = [key for key in keys if scene.stage(key, "analyse").state == "pending"]
    assert waiting and scene.app.why(waiting[0]).reason == "budget"
    soon(lambda: any(one["alert"] == "money is spent" for one in scene.server.alerts))
    scene.holdfast("tune", "newsroom", "analyst.budget_per_day=")
    scene.wait_until_done()
    assert scene.server.bill() == sum(one.costs for one in scene.app.costs().sums)
    assert reached.at < scene.events("tuned")[-1].at


# Spec and tuning ------------------------------------------------------------------------------------------------------


@pytest.mark.req("J17")
def test_a_tuning_saved_in_the_file_is_followed_by_the_running_worker_and_no_work_is_lost(scene: Scene):
    keys = scene.take(20)
    scene.server.pages.seconds = 0.1
    scene.add(keys)
    soon(lambda: asked_for(scene, keys))
    scene.edit("rate: 60/s", "rate: 55/s")
    soon(lambda: limit(scene, "site").allowed["rate"] == "55/s")
    scene.server.pages.seconds = 0.0
    scene.wait_until_done()
    assert [scene.stage(key, "fetch").attempts for key in keys] == [1] * 20
    assert asked_for(scene, keys) == 20
    scene.edit("rate: 55/s", "rate: 60/s")
    soon(lambda: limit(scene, "site").allowed["rate"] == "60/s")


@pytest.mark.req("J17")
@pytest.mark.fault(61)
def test_another_spec_or_a_broken_file_changes_nothing_and_says_so(scene: Scene):
    scene.edit('version: "2026-02-26.1"', 'version: "2026-03-01.1"')
    [*_, restart] = soon(lambda: scene.events("job_file_wants_restart"))
    assert restart.data["file"] == "holdfast.yaml"
    scene.edit('version: "2026-03-01.1"', 'versoin: "2026-02-26.1"')
    [*_, broken] = soon(lambda: scene.events("job_file_broken"))
    assert any("versoin" in line and "holdfast.yaml:" in line for line in broken.data["what"])
    [key] = scene.take(1)
    scene.add([key])
    scene.wait_until_done()
    assert scene.stage(key, "extract").version == "2026-02-26.1"
    scene.edit('versoin: "2026-02-26.1"', 'version: "2026-02-26.1"')


@pytest.mark.req("J17", "J14")
def test_a_tuned_pace_is_kept_at_once_and_is_an_event_with_a_reason(scene: Scene):
    scene.holdfast("tune", "newsroom", "site.rate=10/s", "site.burst=1", "--reason", "the site has asked us to")
    keys = scene.take(8)
    scene.add(keys)
    scene.wait_until_done()
    begun = sorted(scene.stage(key, "fetch").started_at for key in keys)
    assert begun[-1] - begun[0] >= timedelta(seconds=0.6)
    [*_, event] = scene.events("tuned")
    assert event.data["reason"] == "the site has asked us to"
    scene.holdfast("tune", "newsroom", "site.rate=", "site.burst=")
    assert limit(scene, "site").allowed["rate"] == "60/s"


# Schedules ------------------------------------------------------------------------------------------------------------


@pytest.mark.req("J20")
def test_what_the_feed_brings_is_found_on_schedule_and_goes_through_all_stages(scene: Scene):
    """While it is down its look fails, which is told and tried again, and nothing else stands still for it."""
    failed = soon(lambda: scene.events("discovery_failed"))
    assert failed[0].data["source"] == "feed" and failed[0].data["error"]
    before = scene.server.site
    scene.server.sources.down = False
    # Not on a page that another test has, and short: the look shall bring what was not there before.
    scene.server.site = FakeSite(seed=11, pages=12)
    try:
        scene.holdfast("discover", scene.file, "feed")
        first = {scene.server.url + one.path for one in scene.server.site.newest()}
        assert {one.key for one in scene.app.items(most=1000)} >= first
        looked = len(scene.events("discovered"))
        scene.server.site.day = 10
        later = {scene.server.url + one.path for one in scene.server.site.newest()} - first
        assert later
        soon(lambda: {one.key for one in scene.app.items(most=1000)} >= later)
        soon(lambda: len(scene.events("discovered")) > looked)
        scene.wait_until_done()
        assert all(scene.app.show(key).data["title"] for key in later)
    finally:
        scene.server.site = before
        scene.server.sources.down = True
