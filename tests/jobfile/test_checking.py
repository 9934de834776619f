"""A job file that is not in order: every fault with its line, its column, the path to it, and what was expected."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import DefinitionError, UsageError
from holdfast.jobfile import JobFileError
from tests.jobfile.conftest import Folder

pytestmark = pytest.mark.req("J15")

EVERYTHING = """\
stor: sqlite:///x.db
resources:
  gemini: {rate: 60/mon, burst: 0, concurency: 8, budget: much, breaker: {failures: few}}
  slow: {burst: 3}
  9: {}
pipelines:
  books:
    stages:
      extract: {handler: nowhere.extract, version: 1, timeout: soon, resource: gemin}
      chunk: {after: extrct, batch: 1.5}
      first: {handler: shelf.extract, after: last}
      last: {handler: shelf.extract, after: [extract, first]}
    tuning: {guards: {hours: noon, zone: Mars/Olympus}, stages: {chunks: {rate: 1/s}}}
    sources: {inbox: inbox/*.epub}
alerts:
  loud: {}
"""


EXPECTED_PATH = "expected the full dotted path of a function, as in books.extract"
IN_A_CYCLE = "wait for each other in a cycle, expected an order that ends"


def test_everything_that_is_wrong_is_told_at_once_in_the_order_of_the_file(folder: Folder) -> None:
    assert folder.wrong(EVERYTHING) == [
        "1:1: stor: the key 'stor' is unknown, did you mean 'store'?",
        "3:18: resources.gemini.rate: '60/mon' is not a rate; write it like '10/s', '60/min', '1000/hour' or '500/day'",
        "3:33: resources.gemini.burst: 0 is not a whole number of 1 or more",
        "3:36: resources.gemini.concurency: the key 'concurency' is unknown, did you mean 'concurrency'?",
        "3:59: resources.gemini.budget: 'much' is not an amount; give a number",
        "3:85: resources.gemini.breaker.failures: 'few' is given, expected a whole number of 1 or more",
        "4:3: resources.slow: burst needs a rate",
        '5:3: resources: the key 9 is no text; write it as "9"',
        f"9:26: pipelines.books.stages.extract.handler: there is no module 'nowhere', {EXPECTED_PATH}",
        '9:52: pipelines.books.stages.extract.version: 1 is given, expected a text; in quotes it is one: "1"',
        "9:64: pipelines.books.stages.extract.timeout: 'soon' is not a length of time; write it like '45s', '30m' or '1h30m'",
        "9:80: pipelines.books.stages.extract.resource: resource 'gemin' is not defined, did you mean 'gemini'?",
        f"10:7: pipelines.books.stages.chunk: 'handler' is missing, {EXPECTED_PATH}",
        "10:22: pipelines.books.stages.chunk.after: stage 'extrct' is not defined, did you mean 'extract'?",
        "10:37: pipelines.books.stages.chunk.batch: 1.5 is given, expected a whole number of 1 or more",
        f"11:46: pipelines.books.stages.first.after: the stages first → last → first {IN_A_CYCLE}",
        "13:30: pipelines.books.tuning.guards.hours: 'noon' is not a part of a day; write it like '22:00-06:00'",
        "13:42: pipelines.books.tuning.guards.zone: 'Mars/Olympus' is not a time zone, expected one like Europe/Berlin",
        "13:66: pipelines.books.tuning.stages.chunks: stage 'chunks' is not defined, did you mean 'chunk'?",
        "14:22: pipelines.books.sources.inbox: 'inbox/*.epub' is given, expected a mapping that describes a source",
        "16:3: alerts.loud: it is empty, expected a mapping that describes an alert",
    ]
    assert folder.imports == 0, "a file with faults runs no code"


def test_an_error_carries_its_parts(folder: Folder) -> None:
    with pytest.raises(DefinitionError) as caught:
        folder.load(EVERYTHING)
    error = caught.value
    assert isinstance(error, JobFileError)
    assert error.exit_code == 4
    assert (error.file, error.line, error.column, error.path) == (str(folder.file), 1, 1, "stor")
    last = error.problems[-1]
    assert (last.file, last.line, last.column, last.path) == (str(folder.file), 16, 3, "alerts.loud")
    assert last.what.startswith("it is empty")


WRONG_STAGE = {
    "a handler that is not a path": (
        "handler: extract",
        "4:26: @.handler: 'extract' is not a full dotted path, expected package.",
    ),
    "a handler with a relative path": (
        "handler: .shelf.extract",
        "4:26: @.handler: '.shelf.extract' is not a full dotted path",
    ),
    "a handler that is a call": (
        "handler: 'shelf.extract()'",
        "4:26: @.handler: 'shelf.extract()' is not a full dotted path",
    ),
    "a handler that is a list": (
        "handler: [shelf.extract]",
        "4:26: @.handler: a list is given, expected the full dotted",
    ),
    "no attempt at all": (
        "handler: shelf.extract, max_attempts: 0",
        "4:55: @.max_attempts: 0 is too small, expected 1",
    ),
    "attempts that are a truth value": (
        "handler: shelf.extract, max_attempts: true",
        "4:55: @.max_attempts: true is given, expected a whole number of 1 or more",
    ),
    "attempts in quotes": (
        'handler: shelf.extract, max_attempts: "5"',
        "4:55: @.max_attempts: '5' is given, expected a whole number of 1 or more",
    ),
    "no time at all": (
        "handler: shelf.extract, timeout: 0s",
        "4:50: @.timeout: '0s' is too short, expected more than zero",
    ),
    "a negative time": ("handler: shelf.extract, timeout: -5", "4:50: @.timeout: -5 must be zero or more"),
    "nothing after a key": (
        "handler: shelf.extract, timeout: ",
        "4:49: @.timeout: nothing is given, expected a length of",
    ),
    "an unknown way to isolate": ("handler: shelf.extract, isolate: thread", "4:50: @.isolate: 'thread' is unknown"),
    "a backoff that shrinks": (
        "handler: shelf.extract, backoff: {factor: 0.5}",
        "4:59: @.backoff.factor: 0.5 is too small, expected 1 or more",
    ),
    "a backoff with a wrong key": (
        "handler: shelf.extract, backoff: {first_seconds: 1}",
        "4:51: @.backoff.first_seconds: the key 'first_seconds' is unknown, expected one of: first, most, factor",
    ),
    "a resource that nothing defines": (
        "handler: shelf.extract, resource: gemini",
        "4:51: @.resource: resource 'gemini' is not defined, there is none",
    ),
    "an estimate that is neither": (
        "handler: shelf.extract, estimate: free",
        "4:51: @.estimate: 'free' is not an amount; give a number, or the full dotted path of a function of the item",
    ),
    "a negative estimate": ("handler: shelf.extract, estimate: -1", "4:51: @.estimate: -1 is negative"),
    "an estimate of nothing": ("handler: shelf.extract, estimate: 1", "4:7: @: an estimate, or units, need a resource"),
    "a stage after itself": (
        "handler: shelf.extract, after: extract",
        "4:48: @.after: the stages extract → extract wait for each other in a cycle",
    ),
    "a stage after one twice": (
        "handler: shelf.extract, after: [x, x]",
        "4:7: @: after=['x', 'x'] names a stage twice",
    ),
    "reruns of a later stage": (
        "handler: shelf.extract, after: extract, max_reruns_per_hour: 5",
        "4:7: @: max_reruns_per_hour is for first stages",
    ),
    "no reruns": ("handler: shelf.extract, max_reruns_per_hour: 0", "4:62: @.max_reruns_per_hour: 0 is too small"),
    "children of nobody": ("handler: shelf.extract, after_children: x", "4:7: @: after_children='x' needs after="),
    "a version that is empty": ('handler: shelf.extract, version: ""', "4:50: @.version: the text is empty"),
    "versions that are numbers": (
        "handler: shelf.extract, compatible_from: [1]",
        '4:59: @.compatible_from[0]: 1 is given, expected a text; in quotes it is one: "1"',
    ),
    "units that are no functions": (
        "handler: shelf.extract, units: {tokens: 5}",
        "4:57: @.units.tokens: 5 is given, expected the full dotted path of a function",
    ),
    "a stage that is a path": (None, "4:16: @: 'shelf.extract' is given, expected a mapping with 'handler', 'after', "),
}


@pytest.mark.parametrize("what", WRONG_STAGE)
def test_a_wrong_stage_is_told_with_its_place(what: str, folder: Folder) -> None:
    settings, said = WRONG_STAGE[what]
    written = "shelf.extract" if settings is None else f"{{{settings}}}"
    lines = folder.wrong(f"pipelines:\n  books:\n    stages:\n      extract: {written}\n")
    assert lines[0].replace("pipelines.books.stages.extract", "@").startswith(said), lines
    assert folder.imports == 0


WRONG = {
    "no pipelines": ("store: sqlite:///x.db", "1:1: 'pipelines' is missing, expected the pipelines, by name"),
    "an empty list of pipelines": ("pipelines: {}", "1:1: pipelines: it is empty, expected at least one pipeline"),
    "a pipeline without stages": (
        "pipelines: {books: {}}",
        "1:13: pipelines.books: 'stages' is missing, expected the stages",
    ),
    "an empty list of stages": (
        "pipelines: {books: {stages: {}}}",
        "1:21: pipelines.books.stages: it is empty, expected at",
    ),
    "stages in a list": (
        "pipelines: {books: {stages: [shelf.extract]}}",
        "1:29: pipelines.books.stages: a list is given, expected a mapping of names to stages",
    ),
    "a pipeline with a wrong name": (
        "pipelines: {7up: {stages: {a: {handler: shelf.extract}}}}",
        "1:13: pipelines.7up: '7up' is not a valid name for a pipeline, expected a letter, then letters, digits, '_'",
    ),
    "a stage with a wrong name": (
        "pipelines: {books: {stages: {a b: {handler: shelf.extract}}}}",
        "1:30: pipelines.books.stages.a b: 'a b' is not a valid name for a stage",
    ),
    "a store of no known kind": (
        "store: mysql://me:letmein@db/books",
        "1:8: store: an address of no known kind, expected sqlite:///PATH or postgresql://…",
    ),
    "a store that is a number": (
        "store: 3",
        "1:8: store: 3 is given, expected sqlite:///PATH or postgresql://…; in quotes",
    ),
    "limits that do not go together": ("resources: {a: {burst: 2}}", "1:13: resources.a: burst needs a rate"),
    "a rate that is a number": (
        "resources: {a: {rate: 60}}",
        "1:23: resources.a.rate: 60 is given, expected a rate, as in",
    ),
    "units that are no rates": (
        "resources: {a: {units: {t: many}}}",
        "1:28: resources.a.units.t: 'many' is not a rate",
    ),
    "a share over all": ("resources: {a: {breaker: {share: 2}}}", "1:34: resources.a.breaker.share: 2 is no share"),
    "a breaker that is a number": (
        "resources: {a: {breaker: 5}}",
        "1:26: resources.a.breaker: 5 is given, expected true, false, or a mapping with 'failures', 'share', …",
    ),
    "yes for true": (
        "resources: {a: {adaptive: yes}}",
        "1:27: resources.a.adaptive: 'yes' is given, expected true or false",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_file_is_told_with_its_place(what: str, folder: Folder) -> None:
    text, said = WRONG[what]
    lines = folder.wrong(text)
    assert any(line.startswith(said) for line in lines), lines
    assert "letmein" not in "".join(lines)


WRONG_TUNING = {
    "a guard with a zone alone": (
        "guards: {zone: Europe/Berlin}",
        "6:5: pipelines.books.tuning: guards: zone needs hours",
    ),
    "a wrong size": (
        "guards: {disk_free: plenty}",
        "6:34: pipelines.books.tuning.guards.disk_free: 'plenty' is not a size",
    ),
    "a guard that is nowhere": (
        "guards: {handler: [shelf.quiet, nowhere.quiet]}",
        "6:46: pipelines.books.tuning.guards.handler[1]: there is no module 'nowhere'",
    ),
    "limits of a stage that do not go together": (
        "stages: {extract: {burst: 2}}",
        "6:23: pipelines.books.tuning.stages.extract: burst needs a rate",
    ),
    "a burst without a rate": ("burst: 2", "6:5: pipelines.books.tuning: burst needs a rate"),
}


@pytest.mark.parametrize("what", WRONG_TUNING)
def test_a_wrong_tuning_is_told_with_its_place(what: str, folder: Folder) -> None:
    tuning, said = WRONG_TUNING[what]
    text = "pipelines:\n  books:\n    stages:\n      extract: {handler: shelf.extract}\n\n    tuning: {%s}\n"
    [line] = folder.wrong(text % tuning)
    assert line.startswith(said)


IN_ORDER = "pipelines:\n  books:\n    stages:\n      extract: {handler: shelf.extract}\n"


def test_what_those_who_read_sources_and_alerts_refuse_has_the_place_of_the_key_they_name(folder: Folder) -> None:
    def read(name: str, given: dict[str, Any], *, where: str, folder: Any = None) -> str:
        if "every" in given:
            raise UsageError(f"{where}: every: {given['every']!r} is not a length of time")
        if "event" not in given:
            raise UsageError(f"{where}: nothing to look at; give files, or a list")
        return name

    text = IN_ORDER + "    sources:\n      inbox:\n        files: x\n        every: often\n      other: {most: 3}\n"
    lines = folder.wrong(text + "alerts: {good: {event: x}, bad: {count: 1}}\n", read_source=read, read_alert=read)
    assert lines == [
        "8:9: pipelines.books.sources.inbox: every: 'often' is not a length of time",
        "9:7: pipelines.books.sources.other: nothing to look at; give files, or a list",
        "10:28: alerts.bad: nothing to look at; give files, or a list",
    ]


def test_a_file_with_faults_is_not_given_to_those_who_read_sources(folder: Folder) -> None:
    def read(*args: Any, **more: Any) -> None:
        raise AssertionError("a source may run code")

    folder.wrong(IN_ORDER + "    sources: {inbox: {files: x}}\nstor: x\n", read_source=read)
