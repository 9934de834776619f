"""A job file and a Python program that describe the same thing give the same values."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from holdfast import Backoff, DefinitionError, Pipeline, UsageError, merge_provenance
from holdfast.jobfile import AsWritten
from tests.jobfile.conftest import Folder

#: Everything that a job file can say.
FULL = """\
store: ${HOLDFAST_URL:-sqlite:///books.db}
resources:
  gemini: {rate: 60/min, burst: 5, concurrency: 8, budget_per_day: "20.00", breaker: true}
  disk: {concurrency: 2}
pipelines:
  books:
    stages:
      chunk:
        handler: shelf.chunk
        after: extract
        batch: 16
        isolate: process
        backoff: {first: 1s, most: 1h, factor: 3}
        compatible_from: ["0"]
        normalise: shelf.clean
        after_children: pieces
        resource: [gemini, disk]
        estimate: shelf.estimate
      extract:
        handler: shelf.extract
        version: "2"
        max_attempts: 3
        timeout: 30m
        resource: gemini
        estimate: "0.40"
        units: {tokens: shelf.count_tokens}
        max_cost: "2.00"
        renamed_from: read_pages
        max_reruns_per_hour: 50
      plain: {handler: "shelf:shelf.put", after: [extract, chunk], compatible_from: "0"}
    merge: holdfast.merge_provenance
    sources:
      inbox: {files: "inbox/*.epub", every: 10m}
    prices: {gpt-5-mini: {in: "0.25", out: "2.00"}}
    tuning:
      rate: 10/s
      concurrency: 4
      guards: {hours: "22:00-06:00", disk_free: 5GB, handler: shelf.quiet}
      stages: {extract: {concurrency: 2}}
  pieces:
    stages: {read: {handler: shelf.extract}}
alerts:
  many failures: {event: attempt_failed, count: 10, within: 5m, webhook: "https://alerts.example/x"}
"""

TUNING = {
    "rate": "10/s",
    "concurrency": 4,
    "guards": {"hours": "22:00-06:00", "disk_free": "5GB", "handler": "shelf.quiet"},
    "stages": {"extract": {"concurrency": 2}},
}
RESOURCES = {
    "gemini": {"rate": "60/min", "burst": 5, "concurrency": 8, "budget_per_day": "20.00", "breaker": True},
    "disk": {"concurrency": 2},
}


def in_python(shelf: Any) -> Pipeline:
    """The pipeline `books` of the file above."""
    prices = {"gpt-5-mini": {"in": "0.25", "out": "2.00"}}
    books = Pipeline("books", store="sqlite:///books.db", tuning=TUNING, resources=RESOURCES, prices=prices)
    books.stage(
        after="extract",
        batch=16,
        isolate="process",
        backoff=Backoff(1, 3, 3600),
        compatible_from=["0"],
        normalise=shelf.clean,
        after_children="pieces",
        resource=["gemini", "disk"],
        estimate=shelf.estimate,
    )(shelf.chunk)
    books.stage(
        version="2",
        max_attempts=3,
        timeout="30m",
        resource="gemini",
        estimate=0.40,
        units={"tokens": shelf.count_tokens},
        max_cost="2.00",
        renamed_from="read_pages",
        max_reruns_per_hour=50,
    )(shelf.extract)
    books.stage(name="plain", after=["extract", "chunk"], compatible_from="0")(shelf.shelf.put)
    return books


@pytest.mark.req("J15", "J17")
def test_a_pipeline_in_python_and_a_job_file_that_say_the_same_are_equal(folder: Folder) -> None:
    job = folder.load(FULL)
    books = in_python(importlib.import_module("shelf"))
    assert job.pipelines[0] == books.spec
    assert [stage.name for stage in job.pipelines[0].stages] == ["extract", "chunk", "plain"]
    assert job.tunings["books"] == books.tuning
    assert job.resources == books.resources == RESOURCES
    assert job.store == books.store


@pytest.mark.req("J15")
@pytest.mark.parametrize(
    "setting",
    [
        "version",
        "max_attempts",
        "timeout",
        "batch",
        "isolate",
        "backoff",
        "compatible_from",
        "normalise",
        "after_children",
        "resource",
        "estimate",
        "units",
        "max_cost",
        "renamed_from",
        "max_reruns_per_hour",
    ],
)
def test_a_setting_that_is_left_out_makes_a_difference(setting: str, folder: Folder) -> None:
    """So that the comparison above compares something."""
    lines = FULL.splitlines(keepends=True)
    [*_, at] = [n for n, line in enumerate(lines) if line.startswith(f"        {setting}: ")]
    left = [line for n, line in enumerate(lines) if n != at and not (setting == "resource" and "estimate:" in line)]
    left = [line for line in left if not (setting == "resource" and "units:" in line)]
    job = folder.load("".join(left))
    assert job.pipelines[0] != in_python(importlib.import_module("shelf")).spec


@pytest.mark.req("J15")
def test_a_job_is_all_that_its_file_says(folder: Folder) -> None:
    job = folder.load(FULL, {"HOLDFAST_URL": "sqlite:///other.db"})
    assert job.path == folder.file
    assert job.store == "sqlite:///other.db"
    assert [spec.name for spec in job.pipelines] == ["books", "pieces"]
    assert job.merges == {"books": merge_provenance}
    assert "queries" in job.merges["books"].provenance
    assert job.sources == {"books": (AsWritten("inbox", {"files": "inbox/*.epub", "every": "10m"}),), "pieces": ()}
    [alert] = job.alerts
    assert (alert.name, alert.given["count"]) == ("many failures", 10)
    assert set(job.tunings) == {"books", "pieces"}


@pytest.mark.req("J12", "J15")
def test_a_merge_function_with_fields_of_its_own_is_named_like_any_other(folder: Folder) -> None:
    """Read again it is the same, and no change of the file."""
    code = "import holdfast\nby_desk = holdfast.merge_provenance(fields=['desks', 'meta.queries'])\n"
    (folder.path / "merging.py").write_text(code)
    file = FULL.replace("holdfast.merge_provenance", "merging.by_desk")
    job = folder.load(file)
    assert job.merges["books"].provenance == {"desks", "meta.queries", "first_seen", "last_seen"}
    assert job.merges == folder.load(file).merges


def test_sources_and_alerts_are_what_their_readers_make_of_them(folder: Folder) -> None:
    calls = []

    def read_source(name: str, given: Any, *, where: str, folder: Any) -> str:
        calls.append((name, given, where, folder))
        return f"source {name}"

    def read_alert(name: str, given: Any, *, where: str) -> str:
        calls.append((name, given["event"], where))
        return f"alert {name}"

    job = folder.load(FULL, read_source=read_source, read_alert=read_alert)
    assert job.sources == {"books": ("source inbox",), "pieces": ()}
    assert job.alerts == ("alert many failures",)
    assert calls == [
        ("inbox", {"files": "inbox/*.epub", "every": "10m"}, "pipelines.books.sources.inbox", folder.path),
        ("many failures", "attempt_failed", "alerts.many failures"),
    ]


def test_a_file_may_be_as_short_as_this(folder: Folder) -> None:
    job = folder.load("pipelines: {books: {stages: {extract: {handler: shelf.extract}}}}")
    assert (job.store, job.resources, job.alerts, job.merges) == (None, {}, (), {})
    assert job.pipelines[0].stages[0].handler.__name__ == "extract"


def test_usual_settings_can_be_named_once_and_used_again(folder: Folder) -> None:
    text = """
    pipelines:
      books:
        stages:
          extract: &usual {handler: shelf.extract, max_attempts: 9, timeout: 5m}
          chunk: {<<: *usual, handler: shelf.chunk, after: extract}
    """
    extract, chunk = folder.load(text).pipelines[0].stages
    assert (chunk.max_attempts, chunk.timeout_seconds, chunk.handler.__name__) == (9, 300.0, "chunk")
    assert (extract.max_attempts, extract.handler.__name__) == (9, "extract")


# In Python ------------------------------------------------------------------------------------------------------------


def test_a_pipeline_in_python_has_its_tuning_and_resources_checked() -> None:
    with pytest.raises(UsageError, match=r"pipeline 'books': resources: gemini: rate: 'often' is not a rate"):
        Pipeline("books", resources={"gemini": {"rate": "often"}})
    with pytest.raises(DefinitionError, match="resource name 'a b'"):
        Pipeline("books", resources={"a b": {}})
    with pytest.raises(UsageError, match="resources: 3 is not a mapping"):
        Pipeline("books", resources=3)  # type: ignore[arg-type]
    books = Pipeline("books", tuning={"stages": {"extract": {"rate": "1/s"}}})
    with pytest.raises(UsageError, match="stages: 'extract' is unknown"):
        books.tuning
    books.stage(name="extract")(lambda item, ctx: None)
    assert books.tuning.limits == {"@books/extract": {"rate": "1/s"}}


def test_a_stage_in_python_has_its_estimate_and_units_checked() -> None:
    def work(item: Any, ctx: Any) -> None: ...

    books = Pipeline("books")
    with pytest.raises(UsageError, match="estimate: 'much' is not an amount"):
        books.stage(resource="gemini", estimate="much")
    with pytest.raises(DefinitionError, match="units: 'tokens' needs a function"):
        books.stage(resource="gemini", units={"tokens": 5})(work)  # type: ignore[dict-item]
    with pytest.raises(DefinitionError, match="need a resource"):
        books.stage(estimate=1)(work)


@pytest.mark.req("P12")
def test_a_price_that_cannot_be_read_is_a_problem_at_its_key(folder: Folder) -> None:
    wrong = FULL.replace("prices: {gpt-5-mini: {", "prices: {'g*t': {")
    [problem] = folder.wrong(wrong)
    assert "pipelines.books.prices" in problem and "is not the name of a model" in problem
    [problem] = folder.wrong(FULL.replace('in: "0.25"', "in: cheap"))
    assert "is not an amount" in problem
