"""After the first edition: the site moves on, code changes, pages are mended, an old database comes over. Each test looks at
what it changes itself, and leaves a newsroom in which everything is done."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from examples.newsroom.fakes.fake_old_database import BECAME, DONE, write_fake_old_database
from examples.newsroom.fakes.fake_site import BROKEN, EMPTY, MISSING, FakeSite
from holdfast import merge_provenance
from holdfast.discovery import discover_now
from holdfast.jobs import load_job, open_job
from tests.examples.newsroom_scene import STAGES, Scene, scene_on
from tests.support.money import charged

PAGES = 24
DATABASES = [pytest.param(name, marks=pytest.mark.together(f"newsroom-{name}")) for name in ("sqlite", "postgres")]


@pytest.fixture(scope="module", params=DATABASES)
def printed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A newsroom whose first edition is out."""
    with scene_on(request.param, tmp_path_factory.mktemp("changes"), request, pages=PAGES) as scene:
        # Faster than the site would like, so that nobody waits for it here.
        scene.edit("rate: 60/s, burst: 20", "rate: 5000/s, burst: 500")
        scene.edit("backoff: {first: 200ms", "backoff: {first: 10ms")
        scene.run(code=3)
        yield scene


@pytest.fixture
def scene(printed: Scene) -> Iterator[Scene]:
    assert printed.is_done(), "an earlier test has failed, and left work behind"
    yield printed
    assert printed.is_done(), printed.app.status()
    assert printed.app.check() == []


def plan(scene: Scene, *words: str) -> dict[str, dict[str, Any]]:
    """What `holdfast plan` says, by stage."""
    [told] = scene.json("plan", scene.file, *words)["pipelines"]
    return {one["stage"]: one for one in told["stages"]}


def finished(scene: Scene, stage: str) -> dict[str, datetime]:
    """When a stage of each item ended."""
    return {row.key: row.updated_at for row in scene.app.items(stage=stage, state="done", most=1000)}


def sound(scene: Scene) -> list[str]:
    """Articles of today that are sound."""
    up = [one for one in scene.server.site.up() if one.number not in (BROKEN, MISSING, EMPTY)]
    return [scene.server.url + one.path for one in up]


# Versions -------------------------------------------------------------------------------------------------------------


@pytest.mark.req("J13")
def test_a_new_version_that_comes_to_the_same_stops_there_and_pays_nothing(scene: Scene):
    calls, visits = scene.calls(), sum(scene.deliveries().values())
    extracted, analysed = finished(scene, "extract"), finished(scene, "analyse")
    scene.edit('version: "2026-02-26.1"', 'version: "2026-02-26.2"')
    try:
        told = plan(scene)
        assert told["extract"]["why"] == {"version": len(extracted) + 1}  # and the one that was skipped
        assert told["analyse"]["sure"] == 0 and told["analyse"]["perhaps"] == len(analysed) + 1
        scene.holdfast("reprocess", scene.file, "--stale", "--reason", "the parser is another one")
        scene.run(code=3)
        assert scene.calls() == calls and sum(scene.deliveries().values()) == visits
        after = finished(scene, "extract")
        assert all(after[key] > extracted[key] for key in extracted)
        assert finished(scene, "analyse") == analysed
        [key, *_] = sound(scene)
        assert scene.stage(key, "extract").version == "2026-02-26.2"
        assert scene.app.history(key)[-1].event == "completed"
    finally:
        scene.edit('version: "2026-02-26.2"', 'version: "2026-02-26.1"\n        compatible_from: "2026-02-26.2"')


@pytest.mark.req("J13", "J10")
def test_a_new_version_of_the_paid_stage_costs_what_the_plan_said_and_a_budget_stops_it(scene: Scene):
    before = scene.server.bill()
    scene.edit("version: v3", "version: v4")
    told = plan(scene, "--stage", "analyse")["analyse"]
    forecast = Decimal(told["cost"])
    assert told["why"] == {"version": told["sure"]} and forecast > 0
    # Only as many as fit into what may be spent.
    scene.holdfast("reprocess", scene.file, "--stale", "--budget", str(forecast / 2), "--reason", "a better analyst")
    scene.run(code=3)
    assert 0 < scene.server.bill() - before <= forecast / 2
    scene.holdfast("reprocess", scene.file, "--stale")
    scene.run(code=3)
    assert scene.server.bill() - before == forecast
    assert {scene.stage(key, "analyse").version for key in sound(scene)} == {"v4"}
    assert set(scene.server.paid().values()) == {1}


@pytest.mark.req("J13", "J7")
def test_a_page_that_looks_different_at_every_visit_and_says_the_same_is_not_analysed_again(scene: Scene):
    keys = sound(scene)[:4]
    pages = {key: scene.stage(key, "fetch").result for key in keys}
    analysed, calls = finished(scene, "analyse"), scene.calls()
    for key in keys:
        scene.holdfast("retry", "--stage", "fetch", "--state", "done", "--key", key)
    scene.run(code=3)
    for key in keys:
        assert scene.stage(key, "fetch").result != pages[key]
    assert finished(scene, "analyse") == analysed and scene.calls() == calls


# The site moves on ----------------------------------------------------------------------------------------------------


@pytest.mark.req("J20", "J12", "J13")
def test_a_day_later_what_is_new_runs_and_what_has_changed_is_stale_until_somebody_says_so(scene: Scene):
    site, base = scene.server.site, scene.server.url
    yesterday = {base + one.path: one.revision(site.day) for one in site.up()}
    visits = scene.deliveries()
    site.day += 5
    today = {base + one.path: one for one in site.up()}
    new = today.keys() - yesterday.keys()
    revised = {key for key, one in today.items() if key in yesterday and one.revision(site.day) > yesterday[key]}
    assert new and revised
    told = scene.discover()
    assert sum(counts["new"] for counts in told.values()) == len(new)
    assert told["sitemap"]["vanished"] == len(yesterday.keys() - today.keys())
    scene.run(code=3)
    assert scene.articles().keys() >= new
    # Found a second time by other words is a change as well; all of it waits for a person.
    stale = plan(scene)["fetch"]["why"]["input changed"]
    assert stale >= len(revised)
    assert scene.deliveries().total() - visits.total() == len(new)
    old = {key: row["length"] for key, row in scene.articles().items()}
    scene.holdfast("reprocess", scene.file, "--stale", "--reason", "the site has moved on")
    scene.run(code=3)
    assert scene.deliveries().total() - visits.total() == len(new) + stale
    for key in revised:
        assert scene.stage(key, "extract").result["paragraphs"] == today[key].paragraphs(site.day)
    assert {key for key, row in scene.articles().items() if old.get(key) != row["length"]} <= revised | new


@pytest.mark.req("J12")
@pytest.mark.parametrize("seed", range(3))
def test_the_order_in_which_sources_find_an_article_changes_nothing_but_the_order(seed: int):
    found = [
        {"url": "u", "lastmod": "2026-02-01"},
        {"url": "u", "title": "t", "published": "p"},
        {"url": "u", "title": "t", "queries": ["ferry"], "topics": ["harbour"], "first_seen": "2026-02-03"},
        {"url": "u", "title": "t", "queries": ["harbour"], "topics": ["harbour"], "first_seen": "2026-02-01"},
    ]
    random.Random(seed).shuffle(found)
    merged: dict[str, Any] = {}
    for one in [*found, found[0]]:
        merged = merge_provenance(merged, one)
    assert {**merged, "queries": sorted(merged["queries"])} == {
        "url": "u",
        "title": "t",
        "lastmod": "2026-02-01",
        "published": "p",
        "queries": ["ferry", "harbour"],
        "topics": ["harbour"],
        "first_seen": "2026-02-01",
        "last_seen": "2026-02-03",
    }


# What went wrong ------------------------------------------------------------------------------------------------------


@pytest.mark.req("J7", "J3")
def test_what_is_mended_is_sent_back_by_stage_state_key_error_or_age_and_the_rest_stays(scene: Scene):
    broken = scene.server.url + scene.server.site.articles[BROKEN].path
    bad = ("retry", "--state", "exhausted", "--state", "failed", "--dry-run")
    for filters, expected in (
        ([], 2),
        (["--stage", "fetch"], 2),
        (["--stage", "index"], 0),
        (["--error", "500 Internal"], 1),
        (["--error", "gone"], 1),
        (["--key", "*/markets/*"], 1),
        (["--older-than", "1h"], 0),
        (["--older-than", "0s"], 2),
    ):
        assert scene.json(*bad, *filters)["total"] == expected, filters
    asked = len(scene.server.asked)
    # The other one stays as it is, in this test and in all others.
    scene.server.broken.clear()
    scene.holdfast("retry", "--stage", "fetch", "--state", "exhausted", "--error", "500 Internal", "--reason", "mended")
    assert (scene.stage(broken, "fetch").state, scene.stage(broken, "fetch").attempts) == ("pending", 0)
    scene.run(code=3)
    assert scene.app.show(broken).status == "done" and broken in scene.articles()
    assert [one.path for one in scene.server.asked[asked:] if one.what == "pages"] == [
        broken.removeprefix(scene.server.url)
    ]
    [event] = scene.events("retried", broken)
    assert event.data["reason"] == "mended"


@pytest.mark.req("J9")
def test_old_events_are_forgotten_and_money_is_not(scene: Scene):
    spent = charged(scene.app)
    assert spent and scene.events("attempt_failed")
    scene.holdfast("prune", "--events-older-than", "1h")
    assert scene.events("attempt_failed")
    scene.holdfast("prune", "--events-older-than", "0s", "--yes")
    assert scene.events("attempt_failed") == () and scene.events("discovered") == ()
    assert charged(scene.app) == spent


# An earlier program ---------------------------------------------------------------------------------------------------


@pytest.mark.req("J8")
def test_the_database_of_an_earlier_program_comes_over_and_only_what_it_had_left_is_run(scene: Scene, tmp_path: Path):
    there, before = scene.server.site, scene.deliveries()
    scene.server.site = FakeSite(seed=99, pages=48)
    old = tmp_path / "old.db"
    keys = write_fake_old_database(old, scene.server.site, scene.server.url)
    became = {key: BECAME[_number(key) % len(BECAME)] for key in keys}
    again = {
        key for key, one in became.items() if not one.kept and one.stages == {"fetch": "done", "extract": "pending"}
    }
    whole = Path(scene.file).read_text()
    scene.only("desk")
    try:
        dry = scene.json("import-legacy", scene.file, str(old), "--dry-run")
        report = scene.json("import-legacy", scene.file, str(old))
        assert dry["imported"] == report["imported"] == len(keys)
        assert dry["run_again"] == report["run_again"] == {"newsroom/fetch": {"count": len(again), "cost": None}}
        assert report["costs"]["imported"] == sum("analyse" in one.kept for one in became.values())
        strange = sum(one in BECAME[-2:] for one in became.values())
        told = report["problems"]
        assert told["status_unknown"]["count"] + told["column_unreadable"]["count"] == strange
        # Again, it changes nothing.
        second = scene.json("import-legacy", scene.file, str(old))
        assert (second["already_there"], second["costs"]["imported"]) == (len(keys), 0)
        scene.run(code=3)
    finally:
        scene.server.site = there
        Path(scene.file).write_text(whole)
    assert scene.holdfast("db", "check").stdout == "All is well.\n"
    fetched = scene.deliveries() - before
    for key, one in became.items():
        path = key.removeprefix(scene.server.url).partition("?")[0]
        stages = one.stages if isinstance(one.stages, dict) else {}
        kept = key not in again and (one.status == "done" or stages.get("fetch") in ("done", "failed"))
        assert fetched[path] == (0 if kept or _number(path) in scene.server.broken | {MISSING} else 1), (key, one)
        stage = scene.stage(key, "fetch")
        if kept and stages:
            assert stage.state == stages["fetch"] and stage.ended_at - stage.started_at == timedelta(seconds=1)
        if stages.get("fetch") == "failed":
            assert stage.error == "timed out"
        shown = scene.app.show(key)
        paid = [told.resource for told in shown.history if told.event == "cost"]
        if stages == DONE or one.status == "done":
            assert (shown.status, set(paid)) == ("done", {"(imported)"} if one.kept else set())
        if one.kept and stages != DONE:
            # Half-way: it went on, and its analysis is paid once, by the earlier program or by this one.
            assert (shown.status, paid) == ("done", ["(imported)"] if "analyse" in one.kept else ["analyst"])
            assert shown.stages[3].result["words"] > 0


def _number(key: str) -> int:
    """The number of an article, from its address."""
    return int(key.rpartition("/")[2].partition("-")[0])


# From Python ----------------------------------------------------------------------------------------------------------


@pytest.mark.req("J21")
def test_every_act_of_the_command_line_is_a_library_call(scene: Scene):
    job = load_job(Path(scene.file))
    with open_job(job) as app:
        told = {one.source: one.counts for one in discover_now(app, job.sources, job.merges)}
        assert told == scene.discover()
        assert all(counts["new"] == 0 for counts in told.values())
        stages = {one.stage: one for one in app.plan("newsroom")}
        assert {name: one["sure"] for name, one in plan(scene).items()} == {
            name: one.sure for name, one in stages.items()
        }
        retry = app.retry(pipeline="newsroom", stage="fetch", states=["done"], key="*/harbour/*", dry_run=True)
        words = ("--pipeline", "newsroom", "--stage", "fetch", "--state", "done", "--key", "*/harbour/*", "--dry-run")
        assert scene.json("retry", *words)["counts"] == dict(retry)
        app.pause("newsroom", reason="from a notebook", by="me")
        assert scene.json("status")["pipelines"][0]["reason"] == "from a notebook"
        scene.holdfast("resume", "newsroom")
        assert not app.resume("newsroom")
        assert list(app.tune("newsroom", {"site.rate": "40/s"}).values()) == ["40/s"]
        assert list(scene.json("tune", "newsroom", "site.rate=")["in_force"].values()) == ["5000/s"]
        assert set(STAGES) == {stage.name for spec in app.pipelines for stage in spec.stages}
