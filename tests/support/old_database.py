"""Old databases with stages in a JSON column, as an import finds them: sound rows, and rows of every kind of trouble.

    expected = write_old_database(path, 100_000)

What a row should become is written down here by hand beside the row, not worked out by the code under test.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: The pipeline that the rows are made for.
AFTER = {"fetch": [], "extract": ["fetch"], "embed": ["extract"]}

TABLE = """CREATE TABLE work_items (
    id INTEGER PRIMARY KEY, job_id TEXT, item_key TEXT, status TEXT, attempts INTEGER DEFAULT 0, stages TEXT, data TEXT)"""
RESULTS = "CREATE TABLE results (job_id TEXT, item_key TEXT, stage TEXT, result TEXT, handler_version TEXT)"


@dataclass(frozen=True)
class Case:
    """The stages of a row, the states they should have afterwards, and the problems that should be told of it."""

    stages: Any
    states: dict[str, str]
    problems: Sequence[str] = ()
    #: How many rows of a hundred look like this.
    share: int = 1
    data: Any = '{"n": 1}'
    #: Whether the results of what is done are there.
    results: bool = True


def timed(stage: str, status: str, **more: Any) -> dict[str, Any]:
    return {
        stage: status,
        f"{stage}_started": "2024-05-01T10:00:00",
        f"{stage}_ended": "2024-05-01T10:00:02",
        f"{stage}_elapsed_s": 2.0,
        **{f"{stage}_{name}": value for name, value in more.items()},
    }


FETCHED = timed("fetch", "done")
EXTRACTED = {**FETCHED, **timed("extract", "done")}
ALL = {**EXTRACTED, **timed("embed", "done")}
NEW = {"fetch": "pending"}

CASES: dict[str, Case] = {
    "all done": Case(ALL, {"fetch": "done", "extract": "done", "embed": "done"}, share=40),
    "not begun": Case({"fetch": "pending", "extract": "pending", "embed": "pending"}, NEW, share=8),
    "skipped at the end": Case(
        {**EXTRACTED, **timed("embed", "skipped", error="no text")},
        {"fetch": "done", "extract": "done", "embed": "skipped"},
        share=3,
    ),
    "failed": Case(
        {**FETCHED, **timed("extract", "failed", error="no pages")}, {"fetch": "done", "extract": "failed"}, share=6
    ),
    "exhausted": Case(timed("fetch", "exhausted", error="timed out"), {"fetch": "exhausted"}, share=3),
    "cancelled": Case(timed("fetch", "cancelled"), {"fetch": "cancelled"}),
    "in progress": Case(
        {**FETCHED, "extract": "in_progress", "extract_started": "2024-05-01T10:00:03"},
        {"fetch": "done", "extract": "pending"},
        share=5,
    ),
    "to be tried again": Case(
        {**FETCHED, "extract": "retry_later", "extract_error": "503"},
        {"fetch": "done", "extract": "retry_later"},
        share=5,
    ),
    "next is pending": Case({**FETCHED, "extract": "pending"}, {"fetch": "done", "extract": "pending"}, share=4),
    # What is missing.
    "no stages": Case(None, NEW, ["stages_missing"]),
    "an empty text": Case("", NEW, ["stages_missing"]),
    "JSON null": Case("null", NEW, ["stages_missing"]),
    "an empty object": Case({}, NEW, ["stages_missing"]),
    "the next stage is missing": Case(FETCHED, {"fetch": "done", "extract": "pending"}, ["stage_missing"]),
    "times without a status": Case({"fetch_started": "2024-05-01T10:00:00"}, NEW, ["status_missing"]),
    "done, nobody knows when": Case(
        {"fetch": "done", "extract": "pending"}, {"fetch": "done", "extract": "pending"}, ["end_missing"]
    ),
    # What is malformed.
    "no JSON": Case("{'fetch': 'done'", NEW, ["column_unreadable"]),
    "bytes that are no text": Case(b"\xff\xfe{}", NEW, ["column_unreadable"]),
    "a list": Case(["fetch", "extract"], NEW, ["column_no_object"]),
    "a number": Case(17, NEW, ["column_no_object"]),
    "a status that is a number": Case({"fetch": 3}, NEW, ["status_unreadable"]),
    "a status that nobody knows": Case({"fetch": "finished"}, NEW, ["status_unknown"]),
    "a time that is none": Case(
        {**timed("fetch", "done"), "fetch_started": "yesterday", "extract": "pending"},
        {"fetch": "done", "extract": "pending"},
        ["time_unreadable"],
    ),
    "a length that is none": Case(
        {**timed("fetch", "failed"), "fetch_elapsed_s": "long"}, {"fetch": "failed"}, ["elapsed_unreadable"]
    ),
    # What contradicts itself.
    "ended before it started": Case(
        {**timed("fetch", "done"), "fetch_ended": "2023-01-01T00:00:00", "extract": "pending"},
        {"fetch": "done", "extract": "pending"},
        ["ended_before_started"],
    ),
    "done with an error": Case(
        {**timed("fetch", "done", error="but how"), "extract": "pending"},
        {"fetch": "done", "extract": "pending"},
        ["error_of_passed_stage"],
    ),
    "done after one that failed": Case(
        {**timed("fetch", "failed"), **timed("extract", "done"), "embed": "pending"},
        {"fetch": "failed"},
        ["out_of_order"],
    ),
    "done after one that is not": Case(
        {"fetch": "pending", **timed("extract", "done"), **timed("embed", "failed")},
        NEW,
        ["out_of_order", "out_of_order"],
    ),
    "a stage that is no more": Case({**NEW, **timed("ocr", "done")}, NEW, ["stage_unknown"]),
    "an entry that comes twice": Case('{"fetch": "done", "fetch": "pending"}', NEW, ["entry_repeated"]),
    # What was done, and whose result is not there.
    "no result, and the next is pending": Case(
        {**FETCHED, "extract": "pending"}, NEW, ["result_missing"], results=False
    ),
    "no results of two": Case({**EXTRACTED, "embed": "pending"}, NEW, ["result_missing"] * 2, results=False),
    "no result, and nobody needs it": Case(ALL, {"fetch": "done", "extract": "done", "embed": "done"}, results=False),
    "no result before one that failed": Case(
        {**FETCHED, **timed("extract", "failed")},
        {"fetch": "done", "extract": "failed"},
        ["result_missing_for_retry"],
        results=False,
    ),
    # What is wrong beside the stages.
    "data that are no JSON": Case(NEW, NEW, ["data_unreadable"], data="{n: 1}"),
    "data that are a list": Case(NEW, NEW, ["data_no_object"], data="[1, 2]"),
}


@dataclass
class Expected:
    """What an import should come to."""

    rows: int = 0
    items: int = 0
    repeated: int = 0
    states: dict[str, Counter[str]] = field(default_factory=dict)
    problems: Counter[str] = field(default_factory=Counter)

    def add(self, case: Case) -> None:
        self.items += 1
        self.problems.update(case.problems)
        for stage, state in case.states.items():
            self.states.setdefault(stage, Counter())[state] += 1


def raw(value: Any) -> Any:
    """A value as it lies in a column."""
    return value if value is None or isinstance(value, (str, bytes)) else json.dumps(value)


def results(key: Any, stages: Any, job: str | None = "books") -> list[tuple[Any, ...]]:
    """A row for the result of each stage that is done."""
    done = [name for name, status in stages.items() if status == "done"] if isinstance(stages, dict) else []
    return [(job, key, stage, json.dumps({"of": stage}), None) for stage in done if stage != "ocr"]


def write_old_database(path: Path, rows: int, *, job: str = "books") -> Expected:
    """Write so many rows, of every kind; every thousandth has a key that was there before, another has none."""
    deck = [name for name, case in CASES.items() for _ in range(case.share)]
    expected = Expected(rows=rows)
    made_of: list[tuple[Any, ...]] = []

    def made() -> Iterator[tuple[Any, ...]]:
        for number in range(rows):
            case = CASES[deck[number % len(deck)]]
            key: str | None = f"book-{number:07d}"
            if number % 1000 >= 998:
                # A row without a key has no results; those of a second row with a key would be the first one's.
                case = CASES["not begun"]
            if number % 1000 == 998:
                expected.repeated += 1
                expected.problems["key_repeated"] += 1
                key = f"book-{number - 998:07d}"
            else:
                expected.add(case)
                if number % 1000 == 999:
                    expected.problems["key_unusable"] += 1
                    key = None
            if case.results and key is not None:
                made_of.extend(results(key, case.stages, job))
            yield (job, key, raw(case.stages), case.data)

    with sqlite3.connect(path) as conn:
        conn.execute(TABLE)
        conn.executemany("INSERT INTO work_items (job_id, item_key, stages, data) VALUES (?, ?, ?, ?)", made())
        conn.execute(RESULTS)
        conn.executemany("INSERT INTO results VALUES (?, ?, ?, ?, ?)", made_of)
    conn.close()
    return expected
