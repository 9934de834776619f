"""A run that did not go well says so."""

from __future__ import annotations

import logging
import pickle
from typing import Any

import pytest

from holdfast import Permanent, Pipeline, RunFailed
from holdfast.answers import Summary
from holdfast.engine import status


@pytest.fixture
def books(url: str) -> Pipeline:
    books = Pipeline("books", store=url)

    @books.stage(max_attempts=1)
    def extract(item: Any, ctx: Any) -> int:
        if item.key.startswith("bad"):
            raise Permanent(f"{item.key} has no pages\nnot one")
        if item.key.startswith("odd"):
            raise ValueError("odd")
        return 1

    return books


def test_what_failed_is_logged_with_counts_and_the_most_frequent_errors(
    books: Pipeline, caplog: pytest.LogCaptureFixture
) -> None:
    books.add(["good", "odd", *(f"bad-{n}" for n in range(3))])
    summary = books.run()
    warnings = [one for one in caplog.records if one.name == "holdfast.app"]
    assert {one.levelno for one in warnings} == {logging.WARNING}
    assert [one.getMessage() for one in warnings] == [
        "4 stages of items did not pass:",
        "books/extract: 1 done, 3 failed, 1 exhausted",
        "  3 × books/extract failed: Permanent: bad-0 has no pages (item 'bad-0')",
        "  1 × books/extract exhausted: ValueError: odd (item 'odd')",
    ]
    assert str(summary).splitlines() == [one.getMessage() for one in warnings[1:]]
    assert repr(summary) == "<Summary books/extract: 1 done, 3 failed, 1 exhausted>"


def test_a_run_that_went_well_says_nothing(books: Pipeline, caplog: pytest.LogCaptureFixture) -> None:
    books.add(["good"])
    summary = books.run(raise_on_failure=True)
    assert (str(summary), summary.errors) == ("books/extract: 1 done", ())
    assert [one for one in caplog.records if one.name == "holdfast.app"] == []


def test_a_failure_may_be_raised_with_the_summary(books: Pipeline, caplog: pytest.LogCaptureFixture) -> None:
    books.add(["good", "bad"])
    with pytest.raises(RunFailed, match="1 done, 1 failed") as caught:
        books.run(raise_on_failure=True)
    assert isinstance(caught.value.summary, Summary) and caught.value.summary.failed == 1
    assert caught.value.exit_code == 3
    assert pickle.loads(pickle.dumps(caught.value)).summary == caught.value.summary
    assert [one for one in caplog.records if one.name == "holdfast.app"] == []


def test_only_the_first_errors_are_looked_at(books: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "LOOKED_AT", 2)
    books.add([f"bad-{n}" for n in range(5)])
    [error] = books.run().errors
    assert (error.count, error.more) == (2, True)
