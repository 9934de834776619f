"""`holdfast run` of the newsroom, killed at named points of its work again and again, ends as if nothing had happened.

`NEWSROOM_KILLS=50 pytest tests/examples/test_newsroom_killed.py` kills it more often.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.newsroom.fakes.fake_site import EMPTY, MISSING
from examples.newsroom.reading import read_article, words_of
from holdfast.testing import CRASH_VARIABLE
from tests.examples.newsroom_scene import QUICK, Scene, scene_on
from tests.examples.newsroom_workers import the_workers

KILLS = int(os.environ.get("NEWSROOM_KILLS", "3"))
PAGES = 14
#: In the order in which they are reached; each is reached early enough that something is left to do.
POINTS = ("claim.after", "commit.before", "run.after", "commit.after", "run.before", "claim.before")

DATABASES = [pytest.param(name, marks=pytest.mark.together(f"newsroom-{name}")) for name in ("sqlite", "postgres")]


@pytest.fixture(params=DATABASES)
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    with scene_on(request.param, tmp_path, request, pages=PAGES) as scene:
        scene.only("sitemap", "desk")
        # However often it is killed, no attempt is the last; and nothing else goes wrong.
        scene.edit("max_attempts: 4", "max_attempts: 1000")
        for stage in ('version: "2026-02-26.1"', "version: v3", "after: [extract, analyse]"):
            scene.edit(stage, f"{stage}\n        max_attempts: 1000")
        scene.server.broken.clear()
        yield scene


def run(scene: Scene, crash_at: str = "") -> int:
    """`holdfast run`, as a process of its own; its exit code."""
    workers = the_workers()
    environment = {**scene.environment, CRASH_VARIABLE: crash_at}
    return workers.wait(workers.start(["run", scene.file, *QUICK], environment, scene.said, scene.folder))


def expected(scene: Scene) -> set[tuple[str, str, int]]:
    """Every word of every sound article of the site and of the desk, with how often it occurs."""
    texts = {
        scene.server.url + one.path: " ".join([one.title, *one.paragraphs(0)])
        for one in scene.server.site.up()
        if one.number not in (MISSING, EMPTY)
    }
    for file in (scene.folder / "desk").iterdir():
        article = read_article(file.read_text())
        assert article is not None
        texts[file.name] = " ".join([article.title, *article.paragraphs])
    return {(word, key, n) for key, text in texts.items() for word, n in words_of(text).items()}


@pytest.mark.req("J2", "J4", "V2", "V4")
@pytest.mark.fault(3, 4)
def test_killed_at_its_own_points_it_ends_with_the_same_index_and_every_article_is_paid_once(scene: Scene):
    killed = 0
    for n in range(KILLS):
        killed += run(scene, crash_at=f"{POINTS[n % len(POINTS)]}:{2 + n // len(POINTS)}") == -signal.SIGKILL
    assert killed >= min(KILLS, 3)
    assert run(scene) == 3, scene.said.read_text()[-2000:]
    assert scene.is_done() and scene.app.check() == []
    assert len(scene.events("worker_died")) == killed
    index = scene.rows("SELECT word, article, n FROM postings")
    assert len(index) == len(set(index)) and set(index) == expected(scene)
    assert scene.articles().keys() == {key for _, key, _ in index}
    assert set(scene.server.paid().values()) == {1} and len(scene.server.paid()) == len(scene.articles())
    assert sum(one.costs for one in scene.app.costs().sums) == scene.server.bill()
