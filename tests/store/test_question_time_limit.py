"""A question that was given a time is ended in the database once that has passed; what writes has no such limit."""

from __future__ import annotations

import time
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast, Pipeline
from holdfast.errors import QuestionTimeout
from holdfast.store import Transaction
from holdfast.store.postgres_address import read_url
from tests.support.slowness import slowness
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.req("P17"), pytest.mark.req("V14")]

#: A statement without an end, on both databases.
ENDLESS = "WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n % 7 + 1 FROM c) SELECT COUNT(*) FROM c"


def endless(tx: Transaction) -> Any:
    return tx.store.driver.run_text(ENDLESS)


@pytest.fixture
def app(url: str):
    made = Pipeline("books", store=url)
    made.stage(name="read")(lambda item, ctx: None)
    made.add(["emma"])
    with Holdfast(url, create=False) as opened:
        yield opened


def test_a_statement_without_end_is_ended_and_the_next_question_is_answered(app: Holdfast):
    began = time.monotonic()
    with app.answer_within(0.5), pytest.raises(QuestionTimeout, match="in the time that was given"):
        app._read(endless)
    assert time.monotonic() - began < 60 * slowness()
    assert [one.key for one in app.items()] == ["emma"]
    with app.answer_within(60):
        assert [one.key for one in app.items()] == ["emma"]


def test_many_quick_statements_are_ended_too(app: Holdfast):
    def many(tx: Transaction) -> None:
        while True:
            tx.run("read_pipeline_states")

    with app.answer_within(0.3), pytest.raises(QuestionTimeout):
        app._read(many)
    with app.answer_within(0), pytest.raises(QuestionTimeout):
        app.items()


def test_a_connection_of_its_own_for_a_long_question_has_the_same_limit(app: Holdfast):
    with app.answer_within(0.5), app.scan() as store, pytest.raises(QuestionTimeout):
        store.read(endless)


def test_what_writes_has_no_limit(app: Holdfast):
    app.status()
    with app.answer_within(0):
        app.pause("books", reason="a look")
    assert app.status().pipelines[0].paused


def test_postgres_runs_nothing_any_more_once_a_question_has_ended(app: Holdfast, url: str):
    if not url.startswith("postgres"):
        pytest.skip("SQLite runs in this process")
    with app.answer_within(0.5), pytest.raises(QuestionTimeout):
        app._read(endless)
    with psycopg.connect(read_url(url)[0]) as connection:
        running = f"SELECT COUNT(*) FROM pg_stat_activity WHERE query = '{ENDLESS}' AND state <> 'idle'"
        wait_for(lambda: connection.execute(running).fetchone() == (0,), 30)
