"""A job file that is saved while it is in use: its tuning is taken over, a broken file or another spec changes nothing."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from holdfast.jobfile import Broken, JobDefinition, JobFileWatch, Reloaded, SpecChanged, load
from tests.jobfile.conftest import Folder

pytestmark = pytest.mark.req("J17")

FILE = """\
store: sqlite:///books.db
resources:
  gemini: {rate: 60/min}
pipelines:
  books:
    stages:
      extract: {handler: shelf.extract, resource: gemini}
    merge: shelf.newest
    sources: {inbox: {files: "*.epub"}}
    tuning: {concurrency: 4}
alerts: {loud: {event: attempt_failed}}
"""


class Saved:
    """A job file that is watched."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.loads = 0
        self.watch = JobFileWatch(folder.file, load(folder.write(FILE)), self._load)

    def _load(self, path: Path) -> JobDefinition:
        self.loads += 1
        return load(path)

    def save(self, old: str, new: str) -> None:
        """Save in place, as some editors do."""
        text = self.folder.file.read_text()
        assert old in text
        self.folder.write(text.replace(old, new))

    def replace(self, text: str) -> None:
        """Save beside it and put it in its place, as others do."""
        beside = self.folder.path / ".holdfast.yaml.swp"
        beside.write_text(text)
        beside.replace(self.folder.file)

    def settle(self) -> None:
        """As if the last change were long ago."""
        past = time.time() - 60
        os.utime(self.folder.file, (past, past))


@pytest.fixture
def saved(folder: Folder) -> Saved:
    return Saved(folder)


def test_a_file_that_is_not_touched_is_no_news(saved: Saved) -> None:
    assert [saved.watch.one_pass() for _ in range(3)] == [None] * 3
    assert saved.loads == 1, "to see whether it changed between loading and watching"


def test_a_file_that_changed_before_the_first_look_is_seen(saved: Saved) -> None:
    saved.save("60/min", "90/min")
    assert isinstance(saved.watch.one_pass(), Reloaded)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("60/min", "90/min"),
        ("{rate: 60/min}", "{rate: 60/min}\n  disk: {concurrency: 1}"),
        ("concurrency: 4", "concurrency: 8"),
        ("tuning: {concurrency: 4}", "tuning: {guards: {exists: /mnt/books}}"),
        ("    tuning: {concurrency: 4}\n", ""),
    ],
)
def test_another_tuning_is_taken_over_once(old: str, new: str, saved: Saved) -> None:
    before = saved.watch.job
    saved.watch.one_pass()
    saved.save(old, new)
    news = saved.watch.one_pass()
    assert isinstance(news, Reloaded)
    assert (news.job.resources, news.job.tunings) != (before.resources, before.tunings)
    assert news.job.pipelines == before.pipelines
    assert saved.watch.job is news.job
    assert saved.watch.one_pass() is None


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("books.db", "other.db", "store"),
        ("extract: {handler: shelf.extract", "extract: {handler: shelf.chunk", "pipelines.books.stages.extract"),
        ("resource: gemini", 'version: "2"', "pipelines.books.stages.extract"),
        ("resource: gemini}", "resource: gemini}\n      more: {handler: shelf.chunk}", "pipelines.books.stages.more"),
        ("extract: {", "renamed: {", "pipelines.books.stages.extract, pipelines.books.stages.renamed"),
        ("alerts", "  pieces: {stages: {a: {handler: shelf.extract}}}\nalerts", "pipelines.pieces"),
        ("    merge: shelf.newest\n", "", "pipelines.books.merge"),
        ("*.epub", "*.pdf", "pipelines.books.sources.inbox"),
        ("inbox:", "outbox:", "pipelines.books.sources.inbox, pipelines.books.sources.outbox"),
        ("event: attempt_failed", "event: paused", "alerts.loud"),
    ],
)
def test_another_spec_is_told_once_and_changes_nothing(old: str, new: str, what: str, saved: Saved) -> None:
    before = saved.watch.job
    saved.watch.one_pass()
    saved.save(old, new)
    news = saved.watch.one_pass()
    assert isinstance(news, SpecChanged)
    assert ", ".join(news.what) == what
    # Nor is the tuning that comes with it taken over: it may belong to the new spec.
    saved.save("60/min", "90/min")
    assert saved.watch.one_pass() is None
    assert saved.watch.job is before
    saved.replace(FILE.replace("60/min", "90/min"))
    assert isinstance(saved.watch.one_pass(), Reloaded), "with the old spec back, it is"


def test_the_same_thing_written_in_another_way_is_no_news(saved: Saved) -> None:
    saved.watch.one_pass()
    same = FILE.replace("resource: gemini", "resource: [gemini]").replace("shelf.extract", '"shelf:extract"')
    saved.replace(f"# a comment\n{same}")
    assert saved.watch.one_pass() is None


@pytest.mark.parametrize(
    "broken", ["pipelines: [", "", FILE.replace("60/min", "sixty"), FILE.replace("extract,", "gone,")]
)
def test_a_broken_file_is_told_once_and_changes_nothing(broken: str, saved: Saved) -> None:
    before = saved.watch.job
    saved.watch.one_pass()
    saved.folder.write(broken)
    news = saved.watch.one_pass()
    assert isinstance(news, Broken)
    assert news.errors[0].line >= 1 and str(news.errors[0]).startswith(f"{saved.folder.file}:")
    assert [saved.watch.one_pass() for _ in range(3)] == [None] * 3
    saved.folder.write(broken + "# still\n")
    assert isinstance(saved.watch.one_pass(), Broken), "another content is told again"
    assert saved.watch.job is before
    saved.replace(FILE)
    assert saved.watch.one_pass() is None
    saved.save("60/min", "90/min")
    assert isinstance(saved.watch.one_pass(), Reloaded)


def test_an_editor_may_replace_the_file_or_be_away_with_it_for_a_moment(saved: Saved) -> None:
    saved.watch.one_pass()
    saved.folder.file.rename(saved.folder.path / "away")
    assert saved.watch.one_pass() is None
    (saved.folder.path / "away").rename(saved.folder.file)
    assert saved.watch.one_pass() is None
    saved.replace(FILE.replace("60/min", "90/min"))
    assert isinstance(saved.watch.one_pass(), Reloaded)
    saved.folder.file.unlink()
    saved.folder.file.mkdir()
    assert saved.watch.one_pass() is None
    saved.folder.file.rmdir()
    saved.replace(FILE)
    assert isinstance(saved.watch.one_pass(), Reloaded)


def test_a_link_that_is_turned_to_another_file_is_seen(saved: Saved) -> None:
    """As a mounted configuration is replaced."""
    for name, rate in (("one", "60/min"), ("two", "90/min")):
        (saved.folder.path / name).mkdir()
        (saved.folder.path / name / "holdfast.yaml").write_text(FILE.replace("60/min", rate))
    current = saved.folder.path / "current"
    current.symlink_to("one")
    watch = JobFileWatch(current / "holdfast.yaml", saved.watch.job, load)
    assert watch.one_pass() is None
    (saved.folder.path / "next").symlink_to("two")
    (saved.folder.path / "next").replace(current)
    assert isinstance(watch.one_pass(), Reloaded)


def test_a_second_change_within_the_same_tick_of_the_clock_is_seen(saved: Saved) -> None:
    """Same length, same file, same time: only the content tells."""
    saved.watch.one_pass()
    saved.save("60/min", "90/min")
    assert isinstance(saved.watch.one_pass(), Reloaded)
    stamp = os.stat(saved.folder.file)
    saved.save("90/min", "30/min")
    os.utime(saved.folder.file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert isinstance(saved.watch.one_pass(), Reloaded)


def test_a_file_that_rests_is_not_read_again(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    saved.settle()
    saved.watch.one_pass()
    monkeypatch.setattr("holdfast.jobfile.watch.read_file", lambda path: pytest.fail("it was read"))
    assert saved.watch.one_pass() is None


def test_a_file_that_is_being_written_is_left_alone_until_it_is_whole(
    saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of a file may be a file in order that says something else."""
    saved.watch.one_pass()
    whole = FILE.replace("60/min", "90/min")
    half = whole[: whole.index("    tuning:")]
    parts = iter([half, half + "    tun", whole])
    saved.folder.write(next(parts))
    slept = time.sleep

    def write_on(seconds: float) -> None:
        slept(seconds)
        part = next(parts, None)
        if part is not None:
            saved.folder.write(part)

    monkeypatch.setattr("holdfast.jobfile.watch.time.sleep", write_on)
    news = saved.watch.one_pass()
    assert isinstance(news, Reloaded)
    assert news.job.resources["gemini"] == {"rate": "90/min"}
    assert news.job.tunings == saved.watch.job.tunings


def test_no_module_is_imported_again(saved: Saved) -> None:
    for rate in range(10, 20):
        saved.replace(FILE.replace("60/min", f"{rate}/min"))
        assert isinstance(saved.watch.one_pass(), Reloaded)
    assert saved.folder.imports == 1
    assert saved.loads == 10


def test_what_cannot_be_read_at_the_moment_of_loading_is_looked_at_again(
    saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved.watch.one_pass()
    text = FILE.replace("60/min", "90/min")

    def gone(path: Path) -> JobDefinition:
        saved.folder.file.unlink()
        return load(path)

    saved.replace(text)
    watch = JobFileWatch(saved.folder.file, saved.watch.job, gone)
    assert watch.one_pass() is None
    saved.replace(text)
    monkeypatch.setattr(watch, "_load", load)
    assert isinstance(watch.one_pass(), Reloaded)


@pytest.mark.req("P13")
def test_another_place_for_kept_content_needs_a_restart(folder: Folder):
    saved = Saved(folder)
    assert saved.watch.job.blobs is None
    saved.replace("blobs: s3://bucket/books\n" + FILE)
    assert saved.watch.one_pass() == SpecChanged(("blobs",))
    assert load(folder.file).blobs == "s3://bucket/books"
