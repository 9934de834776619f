"""Results as values, as data frames and in notebooks."""

from __future__ import annotations

import sys
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest

from holdfast import Holdfast, Pipeline
from holdfast.errors import StoreBroken, UsageError
from holdfast.export import results as results_module
from holdfast.model import codec
from holdfast.store import Store
from holdfast.testing import ManualClock
from tests.support.harness import App

pytestmark = pytest.mark.req("P14")


@pytest.fixture
def filled(store: Store, clock: ManualClock) -> App:
    made = App(store, clock)
    made.pipeline({"read": [], "count": ["read"]}, name="books")
    made.add([{"key": f"k{number}", "title": f"<b>{number}</b>"} for number in range(25)])
    for lease in made.claim(most=100):
        made.complete(lease, {"title": codec.decode(lease.data)["title"], "pages": len(lease.key)})
    made.execute("UPDATE holdfast_outcomes SET cost = 500000")
    made.run_through(2)
    return made


@pytest.fixture
def books(url: str, filled: App) -> Pipeline:
    made = Pipeline("books", store=url)

    @made.stage()
    def read(item: Any, ctx: Any) -> Any: ...

    @made.stage(after=read)
    def count(item: Any, ctx: Any) -> Any: ...

    return made


def test_results_are_values(books: Pipeline) -> None:
    found = list(books.results("read"))
    assert [one.key for one in found] == [f"k{number}" for number in range(25)]
    first = found[0]
    assert (first.pipeline, first.stage, first.state, first.version, first.attempts) == (
        "books",
        "read",
        "done",
        "1",
        1,
    )
    assert first.result == {"title": "<b>0</b>", "pages": 2} and first.data == {"title": "<b>0</b>"}
    assert first.cost == Decimal("0.5") and first.error is None
    assert isinstance(first.finished_at, datetime) and first.started_at is not None
    assert first.finished_at >= first.started_at


def test_a_stage_is_named_by_its_function_or_text_and_without_one_all_are_meant(books: Pipeline) -> None:
    [(count, spec)] = [(stage.handler, stage) for stage in books.spec.stages if stage.name == "count"]
    assert {one.stage for one in books.results(count)} == {one.stage for one in books.results(spec.name)} == {"count"}
    assert len(list(books.results())) == 50
    with pytest.raises(UsageError, match="there is no stage 'cuont'"):
        list(books.results("cuont"))


def test_results_can_be_read_again_and_go_on_from_a_cursor(books: Pipeline, filled: App) -> None:
    results = books.results("count")
    assert results.cursor is None
    assert len(list(results)) == len(list(results)) == 25
    filled.add([{"key": "new", "title": "new"}])
    filled.run_through()
    assert "new" in [one.key for one in books.results("count", since=results.cursor)]


def test_results_that_are_not_read_to_the_end_leave_no_cursor(books: Pipeline) -> None:
    results = books.results("read")
    next(iter(results))
    assert results.cursor is None


def test_reading_makes_no_store(tmp_path: Path) -> None:
    made = Pipeline("p", store=f"sqlite:///{tmp_path / 'none.db'}")
    with pytest.raises(StoreBroken, match="does not exist"):
        list(made.results())
    assert list(tmp_path.iterdir()) == []


def test_frames_have_the_declared_types(books: Pipeline) -> None:
    results = books.results("read", columns=["key", "result.title", "result.pages:int", "cost", "finished_at"])
    table = results.to_arrow()
    assert table.column_names == ["key", "result.title", "result.pages", "cost", "finished_at"] == [*results.columns]
    assert table["result.pages"].to_pylist() == [2] * 10 + [3] * 15
    pandas = results.to_pandas()
    assert pandas["result.pages"].sum() == 65 and str(pandas["finished_at"].dtype) == "datetime64[us, UTC]"
    polars = results.to_polars()
    assert polars["cost"].sum() == Decimal("12.5") and polars.schema["result.pages"] == polars["result.pages"].dtype


@pytest.mark.parametrize(
    ("method", "missing", "said"),
    [
        ("to_arrow", "pyarrow", r"to_arrow\(\) needs pyarrow: pip install pyarrow"),
        ("to_pandas", "pandas", r"to_pandas\(\) needs pandas: pip install pandas"),
        ("to_polars", "polars", r"to_polars\(\) needs polars: pip install polars"),
    ],
)
def test_what_is_not_installed_is_named(
    books: Pipeline, monkeypatch: pytest.MonkeyPatch, method: str, missing: str, said: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(UsageError, match=said):
        getattr(books.results(), method)()


def test_a_notebook_shows_the_first_rows_escaped(books: Pipeline) -> None:
    html = books.results("read", columns="key,result.title,cost,finished_at")._repr_html_()
    assert "&lt;b&gt;0&lt;/b&gt;" in html and "<b>" not in html
    assert html.count("<tr>") == results_module.SHOWN + 1 and "The first 20; there are more." in html
    assert "there are more" not in books.results("read", key="k1")._repr_html_()
    assert repr(books.results("read", columns="key")) == "<Results of books/read: key>"


def test_duckdb_reads_the_files_and_the_tables(books: Pipeline, tmp_path: Path) -> None:
    results = books.results("read", columns=["key", "result.pages:int", "cost", "finished_at"])
    for format in ("parquet", "csv", "jsonl"):
        results.write(tmp_path / f"out.{format}")
    table = results.to_arrow()
    with duckdb.connect() as connection:
        connection.register("results", table)
        for source in ("results", "read_parquet('out.parquet')", "read_csv('out.csv')", "read_json('out.jsonl')"):
            asked = source.replace("out.", f"{tmp_path}/out.")
            sums = connection.execute(f'SELECT COUNT(*), SUM("result.pages") FROM {asked}').fetchone()
            assert sums == (25, 65), source


def test_an_app_reads_the_same_with_more_filters(books: Pipeline, url: str) -> None:
    with Holdfast(url) as app:
        assert len(list(app.results("books", "read", older_than="100000d"))) == 0
        assert [one.key for one in app.results("books", "read", key=["k1", "k2*"])] == [
            "k1", "k2", "k20", "k21", "k22", "k23", "k24",
        ]  # fmt: skip
        assert list(app.results("books", state=["failed", "exhausted"])) == []
