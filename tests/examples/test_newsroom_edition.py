"""A day at the newsroom: three workers as processes of their own, a site that fails, limits and breaks, a worker that is
killed at work; and then everything that must be true of it. Nothing here changes what the day has left.

`NEWSROOM_PAGES=3000 pytest tests/examples/test_newsroom_edition.py` plays it with a larger site.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal

import pytest
import sqlalchemy as sa

from examples.newsroom.fakes import fake_analyst
from examples.newsroom.fakes.fake_pages import STANDING
from examples.newsroom.fakes.fake_prose import SECTIONS
from examples.newsroom.fakes.fake_server import Asked
from examples.newsroom.fakes.fake_site import BROKEN, EMPTY, MISSING, FakeArticle
from examples.newsroom.search import search
from examples.newsroom.tables import engine_of
from holdfast import points
from tests.examples.newsroom_scene import STAGES, Scene, scene_on
from tests.support.processes import wait_for

PAGES = int(os.environ.get("NEWSROOM_PAGES", "150"))
WORKERS = 3
#: As in holdfast.yaml; the site asks for a slower pace than there, so that it would show if anybody did not keep to it.
AT_ONCE, MAX_ATTEMPTS = 8, 4
RATE, BURST = 30, 5
SEARCHES = ("harbour", "ferry")
#: Between the moment an attempt may begin and the one at which its request arrives, on a machine that others use too.
LATE_SECONDS = 0.5

DATABASES = [pytest.param(name, marks=pytest.mark.together(f"newsroom-{name}")) for name in ("sqlite", "postgres")]


@dataclass
class Edition:
    """What the day has left."""

    scene: Scene
    discovered: dict[str, dict[str, int]]
    #: How many leases the worker held that was killed.
    held: int
    #: What the server had been asked before the work was begun once more, with nothing left to do.
    asked: list[Asked]

    def key(self, number: int) -> str:
        return self.scene.server.url + self.scene.server.site.articles[number].path

    def keys(self) -> dict[str, FakeArticle]:
        """The articles that are up, by the key of their item."""
        site = self.scene.server.site
        return {self.scene.server.url + one.path: one for one in site.up()}

    def lost(self, stage: str) -> Counter[str]:
        """How often the death of a worker set an item free."""
        found = self.scene.events("lease_expired")
        return Counter(one.item for one in found if one.stage == stage)


@pytest.fixture(scope="module", params=DATABASES)
def edition(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edition]:
    folder = tmp_path_factory.mktemp("edition")
    with scene_on(request.param, folder, request, pages=PAGES) as scene:
        server = scene.server
        server.pages.fail_every, server.pages.limit_every, server.pages.retry_after = 29, 47, 0.5
        server.analyst.fail_every, server.analyst.limit_every, server.analyst.retry_after = 31, 43, 0.2
        scene.edit("rate: 60/s, burst: 20", f"rate: {RATE}/s, burst: {BURST}")
        told = scene.discover()
        # Slow enough that whoever is killed is at work.
        server.pages.seconds = 0.05
        victim, *others = [scene.worker("--concurrency", "4") for _ in range(WORKERS)]
        wait_for(lambda: len(server.asked) > PAGES // 4)
        held = scene.kill_at_work(victim)
        server.pages.seconds = 0.0
        scene.wait_until_done()
        assert [scene.stop(pid) for pid in others] == [0] * len(others)
        asked = list(server.asked)
        scene.run(code=3)
        assert scene.app.check() == []
        yield Edition(scene, told, held, asked)


# Claims, attempts and their ends --------------------------------------------------------------------------------------


@pytest.mark.req("J1")
def test_three_workers_fetch_every_page_once(edition: Edition):
    """Except where the one that had fetched it died before it could say so."""
    lost = edition.lost("fetch")
    delivered = edition.scene.deliveries()
    for key, article in edition.keys().items():
        if article.number not in (BROKEN, MISSING):
            assert 1 <= delivered[article.path] <= 1 + lost[key], article.path
    assert sum(delivered.values()) >= len(edition.keys()) - 2
    workers = {one.data["worker"] for one in edition.scene.events("worker_started")}
    assert len(workers) >= WORKERS


@pytest.mark.req("J2", "V5")
@pytest.mark.fault(1)
def test_what_the_dead_worker_held_comes_back_by_itself_and_the_lost_attempt_counts(edition: Edition):
    scene = edition.scene
    assert len(scene.events("worker_died")) == 1
    expired = scene.events("lease_expired")
    assert 0 < len(expired) <= edition.held
    for one in expired:
        stage = scene.stage(one.item, one.stage)
        assert stage.state in ("done", "skipped", "exhausted", "failed")
        assert stage.attempts >= 2


@pytest.mark.req("J3")
def test_a_page_that_never_works_is_exhausted_after_its_last_attempt_and_left_alone(edition: Edition):
    key, path = edition.key(BROKEN), edition.scene.server.site.articles[BROKEN].path
    stage = edition.scene.stage(key, "fetch")
    assert (stage.state, stage.attempts) == ("exhausted", MAX_ATTEMPTS)
    assert "500 Internal" in stage.error
    answers = [one for one in edition.scene.server.asked if one.path == path and one.status == 500]
    assert MAX_ATTEMPTS - edition.lost("fetch")[key] <= len(answers) <= MAX_ATTEMPTS
    # The run that came afterwards has asked for no page at all.
    later = edition.scene.server.asked[len(edition.asked) :]
    assert {one.what for one in later} <= {"sources"}


@pytest.mark.req("J4")
def test_every_item_has_one_row_for_each_stage_with_all_that_is_known_of_it(edition: Edition):
    scene = edition.scene
    columns = "key, s.name, state, started_at, ended_at, elapsed_us, error, attempts, x.updated_at"
    rows = scene.rows(
        f"SELECT {columns} FROM {scene.table('item_stages')} x JOIN {scene.table('stages')} s ON s.id = x.stage"
    )
    assert len({row[:2] for row in rows}) == len(rows)
    by_item: dict[str, list[str]] = defaultdict(list)
    for key, stage, state, started, ended, elapsed, error, attempts, updated in rows:
        by_item[key].append(stage)
        assert state in ("done", "skipped", "failed", "exhausted")
        assert started <= ended == updated and elapsed == ended - started and attempts >= 1
        assert (error is not None) == (state in ("failed", "exhausted")) or state == "skipped"
    for key, stages in by_item.items():
        ends = key in (edition.key(BROKEN), edition.key(MISSING))
        assert sorted(stages) == (["fetch"] if ends else sorted(STAGES)), key


@pytest.mark.req("J5")
def test_the_status_of_an_item_follows_from_its_stages_and_is_stored_nowhere(edition: Edition):
    scene = edition.scene
    stages: dict[str, list[str]] = defaultdict(list)
    for key, state in scene.rows(f"SELECT key, state FROM {scene.table('item_stages')}"):
        stages[key].append(state)
    derived = {key: "failed" if {"failed", "exhausted"} & set(states) else "done" for key, states in stages.items()}
    assert dict(scene.rows(f"SELECT key, status FROM {scene.table('item_status')}")) == derived
    assert {key for key, status in derived.items() if status == "failed"} == {edition.key(BROKEN), edition.key(MISSING)}
    # A page without an article was skipped, which counts as done.
    assert "skipped" in stages[edition.key(EMPTY)] and derived[edition.key(EMPTY)] == "done"
    schema, _, table = scene.table("items").rpartition(".")
    columns = {one["name"] for one in sa.inspect(engine_of(scene.url)).get_columns(table, schema=schema or None)}
    assert not {"status", "state", "stages"} & columns


@pytest.mark.req("J6")
def test_counts_and_timings_are_right_and_are_read_without_looking_at_items(edition: Edition):
    scene = edition.scene
    recount = Counter(
        scene.rows(
            f"SELECT s.name, state FROM {scene.table('item_stages')} x JOIN {scene.table('stages')} s ON s.id = x.stage"
        )
    )
    read: list[str] = []
    old = points.listen(read.append)
    try:
        [pipeline] = scene.app.status().pipelines
    finally:
        points.listen(old)
    told = {(stage.name, state): n for stage in pipeline.stages for state, n in stage.states.items()}
    assert told == dict(recount)
    for stage in pipeline.stages:
        times = stage.timings
        ended = sum(n for (name, _), n in recount.items() if name == stage.name)
        assert times.count >= ended
        assert timedelta() < times.mean <= times.max
        assert times.p50 <= times.p90 <= times.p99 <= times.max
    # One statement, over a table that grows with stages and not with items.
    assert "store.read_counts" in read
    assert not {
        name for name in read if name.startswith(("store.rows_by_state", "store.walk_", "store.page_", "store.item_"))
    }
    assert scene.rows(f"SELECT count(*) FROM {scene.table('counts')}")[0][0] < 500


# The log, and the money -----------------------------------------------------------------------------------------------


@pytest.mark.req("J9")
def test_one_log_tells_of_workers_failures_recoveries_discoveries_and_money(edition: Edition):
    scene = edition.scene
    named = {one.event for one in scene.app.events(most=100_000)}
    assert named >= {
        "worker_started",
        "worker_stopped",
        "worker_died",
        "lease_expired",
        "discovered",
        "attempt_failed",
        "exhausted",
        "failed",
        "cooled_down",
        "pipeline_registered",
    }
    stopped = [one.data["done"] for one in scene.events("worker_stopped")]
    assert sum(done.get("done", 0) for done in stopped) > 0
    failures = scene.events("attempt_failed")
    assert all(one.data["error"] for one in failures)
    schema, _, table = scene.table("events").rpartition(".")
    inspector = sa.inspect(engine_of(scene.url))
    indexed = [one["column_names"] for one in inspector.get_indexes(table, schema=schema or None)]
    assert ["event", "at"] in indexed
    tables = [name.removeprefix("holdfast_") for name in inspector.get_table_names(schema=schema or None)]
    assert not [name for name in tables if "run" in name or name.startswith("cost")]


@pytest.mark.req("J10", "V4")
def test_costs_by_item_stage_and_day_are_what_the_analyst_has_charged_to_the_last_digit(edition: Edition):
    scene = edition.scene
    told = scene.json("costs", "--by", "item")
    assert Decimal(told["total"]["costs"]) == scene.server.bill() > 0
    assert set(scene.server.paid().values()) == {1}
    by_item = {one["item"]: Decimal(one["costs"]) for one in told["sums"]}
    for key, article in edition.keys().items():
        if article.number in (BROKEN, MISSING, EMPTY):
            assert key not in by_item
        else:
            assert by_item[key] == fake_analyst.price("\n".join(article.paragraphs(0)))
    by_stage = scene.app.costs(["stage", "day"])
    assert {one.stage for one in by_stage.sums} == {"analyse"}
    assert sum(one.costs for one in by_stage.sums) == sum(by_item.values())
    assert sum(one.payments for one in by_stage.sums) == len(by_item)
    assert {one.resource for one in scene.app.costs(["resource"]).sums} == {"analyst"}


@pytest.mark.req("P11")
def test_the_headers_of_the_analyst_are_heard(edition: Edition):
    """Else a worker would say so, once."""
    said = edition.scene.said.read_text()
    assert "WARNING" in said
    assert "not heard" not in said


# Discovery ------------------------------------------------------------------------------------------------------------


@pytest.mark.req("J20")
def test_every_kind_of_source_finds_what_the_site_and_the_desk_have(edition: Edition):
    site = edition.scene.server.site
    found = {name: counts["found"] for name, counts in edition.discovered.items()}
    assert found == {
        "sitemap": len(site.up()),
        "feed": 20,
        "standing": 2,
        "desk": 3,
        **{word: len(site.search(word)) for word in SEARCHES},
    }
    assert sum(counts["new"] for counts in edition.discovered.values()) == len(site.up()) + 2 + 3
    keys = {one.key for one in edition.scene.app.items(most=10_000)}
    standing = {edition.scene.server.url + path for path in STANDING}
    assert keys == edition.keys().keys() | standing | {"harbour-festival.html", "library-roof.html", "new-ferry.html"}


@pytest.mark.req("J12")
def test_an_article_that_several_sources_find_is_one_item_that_knows_all_of_them(edition: Edition):
    site = edition.scene.server.site
    newest = {one.number for one in site.newest()}
    by_word = {word: {one.number for one in site.search(word)} for word in SEARCHES}
    several, indexed = 0, edition.scene.articles()
    for key, article in edition.keys().items():
        data = edition.scene.app.show(key).data
        words = [word for word in SEARCHES if article.number in by_word[word]]
        assert sorted(data.get("queries", [])) == sorted(words), key
        assert data.get("topics", []) == ([article.section] if words else [])
        finders = {"sitemap", *words, *(["feed"] if article.number in newest else [])}
        assert sorted(data["sources"]) == sorted(finders), key
        if key in indexed:
            assert set(indexed[key]["found_by"].split()) == finders
        assert ("first_seen" in data) == bool(words)
        assert ("published" in data) == (article.number in newest)
        assert data["lastmod"] == str(article.changed_on(0))
        several += len(words) == 2
    assert several > 0


# Pace, and patience ---------------------------------------------------------------------------------------------------


@pytest.mark.req("J14", "V11")
def test_all_processes_together_keep_to_the_pace_of_the_site(edition: Edition):
    """Over any length of time, at most rate × time + burst, as the site itself has counted."""
    times = sorted(one.at for one in edition.asked if one.what == "pages")
    assert len(times) > BURST + RATE * LATE_SECONDS
    for first, begin in enumerate(times):
        for last in range(first, len(times), 10):
            length = times[last] - begin
            assert last - first + 1 <= RATE * (length + LATE_SECONDS) + BURST, f"{last - first + 1} in {length:.2f} s"


@pytest.mark.req("J16", "V6")
@pytest.mark.fault(63)
def test_after_a_429_everybody_waits_as_long_as_the_site_has_asked_for_and_no_attempt_is_spent(edition: Edition):
    asked = [one for one in edition.asked if one.what == "pages"]
    refused = [one for one in asked if one.status == 429]
    episodes: list[float] = []
    for one in refused:
        if not episodes or one.at >= episodes[-1] + edition.scene.server.pages.retry_after:
            episodes.append(one.at)
    assert len(episodes) >= 2
    # Whoever is refused besides the first was under way already.
    assert len(refused) <= len(episodes) * AT_ONCE
    cooled = [one for one in edition.scene.events("cooled_down") if one.stage == "fetch"]
    assert len(cooled) >= len(episodes) and {one.resource for one in cooled} == {"site"}
    spent = Counter(one.item for one in edition.scene.events("attempt_failed") if one.stage == "fetch")
    lost = edition.lost("fetch")
    by_path = {article.path: key for key, article in edition.keys().items()}
    for path in {one.path for one in refused} & by_path.keys():
        key = by_path[path]
        if key not in (edition.key(BROKEN), edition.key(MISSING)):
            assert edition.scene.stage(key, "fetch").attempts == 1 + spent[key] + lost[key]
            assert spent[key] <= sum(one.path == path and one.status == 500 for one in asked)


@pytest.mark.req("J16")
def test_a_failed_attempt_is_not_made_again_before_its_time(edition: Edition):
    by_path: dict[str, list[Asked]] = defaultdict(list)
    for one in edition.asked:
        if one.what == "pages":
            by_path[one.path].append(one)
    waited, delays = 0, set()
    lost = edition.lost("fetch")
    for key, article in edition.keys().items():
        if lost[key]:
            continue  # nobody has written down how that attempt ended
        failures = [one for one in edition.scene.events("attempt_failed", key) if one.stage == "fetch"]
        failed_at = [n for n, one in enumerate(by_path[article.path]) if one.status == 500]
        for event, n in zip(failures, failed_at, strict=False):
            delay = (event.data["due_at"] - event.at).total_seconds()
            delays.add(delay)
            if n + 1 < len(by_path[article.path]):
                assert by_path[article.path][n + 1].at - by_path[article.path][n].at >= delay - 0.01
                waited += 1
    # Each drew its own.
    assert waited >= 3 and len(delays) > 1 and max(delays) <= 0.2 * 2**MAX_ATTEMPTS


# What it was all for --------------------------------------------------------------------------------------------------


@pytest.mark.req("V2")
def test_the_index_has_every_article_as_it_stands_and_nothing_else(edition: Edition):
    scene = edition.scene
    found = scene.articles()
    done = {key for key, article in edition.keys().items() if article.number not in (BROKEN, MISSING, EMPTY)}
    assert found.keys() == done | {one.key for one in scene.app.items(most=10_000)} - edition.keys().keys()
    for key in done:
        article = edition.keys()[key]
        assert (found[key]["title"], found[key]["section"]) == (article.title, article.section)
        assert scene.stage(key, "index").result["words"] == found[key]["length"]
    lengths = dict(scene.rows("SELECT article, sum(n) FROM postings GROUP BY article"))
    assert lengths == {key: row["length"] for key, row in found.items()}


def test_a_search_finds_what_a_person_would_look_for(edition: Edition):
    url = edition.scene.url
    [first, *_] = search("library roof reading room chapel", 3, url)
    assert first.key == "library-roof.html"
    hits = search("ferry harbour fog", 5, url)
    assert len(hits) == 5 and [one.score for one in hits] == sorted((one.score for one in hits), reverse=True)
    articles = edition.keys()
    assert {articles[one.key].section if one.key in articles else "harbour" for one in hits} <= {"harbour", *SECTIONS}
    assert sum("/harbour/" in one.key or one.key.endswith(".html") for one in hits) >= 3
    assert search("nothingofthekind", 3, url) == []


@pytest.mark.req("J21")
def test_what_the_command_line_answers_is_what_a_library_call_returns(edition: Edition):
    scene = edition.scene
    app = scene.app
    key = edition.key(MISSING)
    assert scene.json("status")["pipelines"] == app.status().json()["pipelines"]
    assert [one["key"] for one in scene.json("items", "--limit", "1000")] == [one.key for one in app.items(most=1000)]
    failed = scene.json("items", "--state", "failed", "--stage", "fetch")
    assert [one["key"] for one in failed] == [one.key for one in app.items(state="failed", stage="fetch")] == [key]
    assert scene.json("show", key)["stages"][0]["error"] == app.show(key).stages[0].error
    assert scene.json("why", key)["reason"] == app.why(key).reason == "failed"
    told = scene.json("events", "--event", "attempt_failed", "--limit", "1000")
    assert [one["id"] for one in told] == [one.id for one in app.events(event="attempt_failed", most=1000)]
    assert scene.json("costs") == app.costs().json()
    assert [one["spent"] for one in scene.json("limits")] == [f"{one.spent:f}" for one in app.limits()]
