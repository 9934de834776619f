"""A job file at work: workers that follow it while it changes, look at its sources, and lose nothing over it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, Pipeline
from holdfast.answers import Events
from tests.sources.site import serving
from tests.support.mother import Forked, Piped
from tests.support.processes import wait_for
from tests.support.slowness import slowness

SHELF = """
import os, pathlib, time

def extract(item, ctx):
    time.sleep(float(item.data.get("sleep", 0)))
    with open("marks", "a") as marks:
        marks.write(item.key + "\\n")
    return {"n": item.data.get("n")}

def chunk(item, ctx):
    return 1
"""

JOB = """
store: {url}
resources:
  api: {{rate: {rate}, concurrency: 16}}
pipelines:
  books:
    stages:
      extract: {{handler: the_shelf.extract, resource: api}}
      {chunk}: {{handler: the_shelf.chunk, after: extract}}
    sources:
      inbox: {{files: "inbox/*.txt", every: 1s, settle: 0s}}
      fixed: {{list: [{{key: always, n: 1}}]}}
    merge: holdfast.merge_provenance
"""


class Desk:
    """A folder with a job file, and workers on it."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        (folder / "inbox").mkdir()
        (folder / "the_shelf.py").write_text(SHELF)
        self.write()
        self._workers: list[Forked] = []

    def write(self, rate: str = "5000/s", chunk: str = "chunk", text: str | None = None) -> None:
        new = self.folder / "job.new"
        new.write_text(text if text is not None else JOB.format(url=self.url, rate=rate, chunk=chunk))
        new.replace(self.folder / "job.yaml")

    def holdfast(self, *words: str, code: int = 0) -> str:
        process = Piped("holdfast.cli", words, os.environ, folder=self.folder)
        said = "".join(process.communicate(timeout=60))
        assert process.returncode == code, f"{process.returncode}: {said}"
        return said

    def worker(self) -> None:
        with (self.folder / "said").open("ab") as said:
            words = ["worker", "job.yaml", "--poll", "0.2s", "--lease", "30s"]
            self._workers.append(Forked("holdfast.cli", words, os.environ, stdout=said, folder=self.folder))

    @property
    def said(self) -> str:
        return (self.folder / "said").read_text()

    @property
    def marks(self) -> list[str]:
        marks = self.folder / "marks"
        return marks.read_text().splitlines() if marks.exists() else []

    def kill(self) -> None:
        """End the workers there are, with no time to say goodbye."""
        for worker in self._workers:
            worker.send_signal(signal.SIGKILL)
            worker.wait(20)
        self._workers = []

    def end(self) -> None:
        for worker in self._workers:
            worker.send_signal(signal.SIGTERM)
        for worker in self._workers:
            worker.wait(20)


@pytest.fixture
def desk(tmp_path: Path, url: str) -> Iterator[Desk]:
    folder = tmp_path / "desk"
    folder.mkdir()
    desk = Desk(folder, url)
    yield desk
    desk.end()


@pytest.fixture
def app(desk: Desk) -> Iterator[Holdfast]:
    with Holdfast(desk.url) as app:
        yield app


def events(app: Holdfast, event: str) -> Events:
    return app.events(event=event, most=1000)


def rate(app: Holdfast) -> Any:
    return next((one.allowed.get("rate") for one in app.limits() if one.name == "api"), None)


@pytest.mark.req("J15", "J20", "J21")
def test_a_job_file_is_run_from_its_sources_to_its_last_stage(desk: Desk, app: Holdfast):
    for number in range(5):
        (desk.folder / "inbox" / f"{number}.txt").write_text(str(number))
    assert "job.yaml is in order." in desk.holdfast("check", "job.yaml")
    desk.holdfast("run", "job.yaml")
    assert len(desk.marks) == 6
    assert {one.states["done"] for one in app.status().pipelines[0].stages} == {6}
    # What is there already costs nothing, and a change is found.
    (desk.folder / "inbox" / "5.txt").write_text("another")
    told = desk.holdfast("discover", "job.yaml", "inbox")
    assert "books/inbox: 6 found, 1 new, 0 changed, 5 unchanged" in told
    desk.holdfast("run", "job.yaml")
    assert len(desk.marks) == len(set(desk.marks)) == 7


@pytest.mark.req("J20")
def test_two_workers_look_at_a_source_once_per_tick_and_find_what_is_new(desk: Desk, app: Holdfast):
    desk.worker()
    desk.worker()
    wait_for(lambda: len(desk.marks) == 1)
    (desk.folder / "inbox" / "late.txt").write_text("late")
    wait_for(lambda: len(desk.marks) == 2)
    began = time.monotonic()
    before = len(events(app, "discovered"))
    wait_for(lambda: len(events(app, "discovered")) >= before + 5)
    # Of five looks the first may come late for its tick: the others take three seconds at least, however many look.
    assert time.monotonic() - began > 2.8
    assert len(set(desk.marks)) == len(desk.marks)


PRESS = """
store: {url}
pipelines:
  companies:
    stages: {{profile: {{handler: the_shelf.profile}}}}
    sources: {{watchlist: {{lines: companies.txt, every: 1s}}}}
  press:
    stages: {{extract: {{handler: the_shelf.extract}}}}
    sources:
      releases:
        html: "{{value}}"
        links: "h2 a"
        allow_private: true
        for_each: {{pipeline: companies, stage: profile, value: press}}
        data: {{found_on: "{{value}}"}}
        every: 1s
"""


@pytest.mark.req("J20", "V5")
def test_the_press_page_of_every_company_is_looked_up_once_also_by_the_worker_after_a_killed_one(
    desk: Desk, app: Holdfast
) -> None:
    with serving() as site:
        for name in "abc":
            links = "".join(f"<h2><a href='/{name}/{number}'>{number}</a></h2>" for number in (1, 2))
            site.put(f"/{name}/press", f"<a href='/'>home</a>{links}")
        shelf = SHELF + "\ndef profile(item, ctx):\n    return {'press': item.key + 'press'}\n"
        (desk.folder / "the_shelf.py").write_text(shelf)
        (desk.folder / "companies.txt").write_text(f"# ours\n{site.url}/a/\n{site.url.upper()}/b/\n")
        desk.write(text=PRESS.format(url=desk.url))
        desk.worker()
        wait_for(lambda: len(desk.marks) == 4)
        desk.kill()
        (desk.folder / "companies.txt").write_text(f"{site.url}/a/\n{site.url}/c/\n")
        desk.worker()
        # The killed one may have been about to save what it had done; that is done again.
        wait_for(lambda: len(set(desk.marks)) == 6)
        assert sorted(set(desk.marks)) == [f"{site.url}/{name}/{number}" for name in "abc" for number in (1, 2)]
        assert sorted(site.asked) == ["/a/press", "/b/press", "/c/press"]
        assert app.show(f"{site.url}/c/2").data["found_on"] == f"{site.url}/c/press"


@pytest.mark.req("J17")
def test_a_saved_tuning_is_in_force_within_two_seconds_and_no_work_is_lost(desk: Desk, app: Holdfast):
    desk.worker()
    wait_for(lambda: len(desk.marks) == 1)
    app.add("books", [f"item-{number}" for number in range(400)])
    for number in range(10):
        desk.write(rate=f"{5000 - number}/s")
        saved = time.monotonic()
        wait_for(lambda: rate(app) == f"{5000 - number}/s")  # noqa: B023
        assert time.monotonic() - saved < 2.0 * slowness()
    wait_for(lambda: len(desk.marks) == 401)
    assert len(set(desk.marks)) == 401


@pytest.mark.req("J17")
@pytest.mark.fault(61)
def test_a_broken_file_changes_nothing_and_is_reported_and_a_good_one_is_followed_again(desk: Desk, app: Holdfast):
    desk.worker()
    wait_for(lambda: len(desk.marks) == 1)
    desk.write(text="pipelines: {books: {stages: {extract: {handlr: x}}}}\n")
    wait_for(lambda: events(app, "job_file_broken") != ())
    [event] = events(app, "job_file_broken")
    assert any("job.yaml:1:" in line and "handlr" in line for line in event.data["what"])
    assert rate(app) == "5000/s"
    app.add("books", ["meanwhile"])
    wait_for(lambda: "meanwhile" in desk.marks)
    desk.write(rate="77/s")
    wait_for(lambda: rate(app) == "77/s")


@pytest.mark.req("J17")
@pytest.mark.fault(71)
def test_a_file_that_describes_another_job_asks_for_a_restart_and_the_old_work_goes_on(desk: Desk, app: Holdfast):
    desk.worker()
    wait_for(lambda: len(desk.marks) == 1)
    desk.write(chunk="pieces")
    wait_for(lambda: events(app, "job_file_wants_restart") != ())
    app.add("books", ["meanwhile"])
    wait_for(lambda: app.show("meanwhile").stages[-1].state == "done")
    assert [one.stage for one in app.show("meanwhile").stages] == ["extract", "chunk"]
    # After the restart the renamed stage is run for all, and what the others have made is used again.
    desk.end()
    desk.holdfast("run", "job.yaml")
    assert len(desk.marks) == 2
    assert [one.name for one in app.status().pipelines[0].stages] == ["extract", "pieces"]
    assert app.status().pipelines[0].stages[1].states == {"done": 2}
    assert app.status().pipelines[0].removed[0].states == {"done": 2}


@pytest.mark.req("J12", "J20")
def test_a_source_merges_as_its_pipeline_says(desk: Desk, app: Holdfast):
    desk.holdfast("run", "job.yaml")
    app.add("books", [{"key": "always", "topics": ["mine"]}])
    text = JOB.format(url=desk.url, rate="5/s", chunk="chunk").replace("n: 1}", "n: 1, topics: [theirs]}")
    desk.write(text=text)
    desk.holdfast("discover", "job.yaml", "fixed")
    assert app.show("always").data["topics"] == ["mine", "theirs"]


@pytest.mark.req("J20")
def test_a_pipeline_in_python_has_sources_too(tmp_path: Path, url: str):
    (tmp_path / "inbox").mkdir()
    (tmp_path / "inbox" / "one.txt").write_text("1")
    books = Pipeline("books", store=url)
    seen: list[str] = []
    mark: Callable[..., None] = lambda item, ctx: seen.append(item.key)  # noqa: E731
    books.stage(name="extract")(mark)
    books.source("inbox", files=str(tmp_path / "inbox" / "*.txt"), settle="0s")
    books.source("fixed", list=["a", "b"])
    books.run()
    assert len(seen) == 3
    books.run()
    assert len(seen) == 3


@pytest.mark.req("J20")
def test_discover_tells_as_json_when_a_source_is_due_and_that_one_without_a_schedule_never_is(desk: Desk):
    told = {one["source"]: one for one in json.loads(desk.holdfast("discover", "job.yaml", "--json"))}
    assert told["fixed"]["due_at"] is None and told["fixed"]["counts"]["new"] == 1
    assert told["inbox"]["due_at"] > told["inbox"]["looked_at"]


def test_discover_names_what_it_does_not_know_and_says_what_failed(desk: Desk):
    assert "has no source 'nothing'; there are: fixed, inbox" in desk.holdfast(
        "discover", "job.yaml", "nothing", code=2
    )
    text = JOB.format(url=desk.url, rate="5/s", chunk="chunk")
    wrong = text.replace('files: "inbox/*.txt"', 'csv: "not-there.csv", key: id').replace(", settle: 0s", "")
    desk.write(text=wrong)
    told = desk.holdfast("discover", "job.yaml", code=3)
    assert "books/inbox: failed: " in told and "not-there.csv" in told
    assert "books/fixed: 1 found" in told
