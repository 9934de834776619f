"""Results as files: JSON lines, CSV, Parquet."""

from __future__ import annotations

import csv
import io
import json
import os
import random
import re
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pyarrow.parquet
import pytest

from holdfast import Holdfast
from holdfast.answers.text_tables import iso
from holdfast.answers.units import instant
from holdfast.errors import UsageError
from holdfast.export import Results, arrow, text_files
from holdfast.export.columns import Column, Kind
from holdfast.store import Store
from holdfast.testing import ManualClock
from tests.support.harness import App

pytestmark = pytest.mark.req("P14")

#: What spreadsheets take for the beginning of a formula.
DANGEROUS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")

VALUES: dict[str, Any] = {
    "text": "plain",
    "number": -5,
    "fraction": -0.5,
    "large": 2**60,
    "object": {"a": [1, {"é": None}]},
    "list": ["=1"],
    "truth": True,
    "nothing": None,
    "formula": "=1+1",
}


@pytest.fixture
def app(url: str, store: Store, clock: ManualClock) -> Iterator[Holdfast]:
    made = App(store, clock)
    made.pipeline({"a": []})
    made.add([{"key": key, "value": value} for key, value in VALUES.items()])
    for lease in made.claim(most=100):
        made.complete(lease, {"value": VALUES[lease.key], "list": [lease.key]})
    made.execute("UPDATE holdfast_outcomes SET cost = 250000")
    with Holdfast(url) as opened:
        yield opened


def written(results: Results, format: Any) -> bytes:
    out = io.BytesIO()
    assert results.write(out, format) == len(VALUES)
    return out.getvalue()


def test_a_line_of_json_has_values_as_they_are(app: Holdfast) -> None:
    lines = [json.loads(line) for line in written(app.results("p"), "jsonl").splitlines()]
    assert {line["key"]: line["result"]["value"] for line in lines} == VALUES
    assert {line["key"]: line["data"]["value"] for line in lines} == VALUES
    assert {(line["stage"], line["state"], line["cost"], line["version"], line["attempts"]) for line in lines} == {
        ("a", "done", "0.25", "1", 1)
    }
    assert all(datetime.fromisoformat(line["finished_at"]).tzinfo for line in lines)


def test_columns_are_picked_in_their_order(app: Holdfast) -> None:
    results = app.results("p", columns="result.value,key,result.list.0,data.none.at.all,pipeline")
    [line] = [line for line in written(results, "jsonl").splitlines() if b'"formula"' in line]
    assert (
        line
        == b'{"result.value":"=1+1","key":"formula","result.list.0":"formula","data.none.at.all":null,"pipeline":"p"}'
    )


def test_no_text_in_a_table_is_a_formula_and_numbers_stay_numbers(app: Holdfast) -> None:
    text = written(app.results("p", columns=["key", "result.value", "cost"]), "csv").decode()
    rows = {row["key"]: row for row in csv.DictReader(io.StringIO(text))}
    assert {key: row["result.value"] for key, row in rows.items()} == {
        "text": "plain",
        "number": "-5",
        "fraction": "-0.5",
        "large": str(2**60),
        "object": '{"a":[1,{"é":null}]}',
        "list": '["=1"]',
        "truth": "true",
        "nothing": "",
        "formula": "'=1+1",
    }
    assert {row["cost"] for row in rows.values()} == {"0.25"}


def test_a_cell_of_text_never_begins_with_what_a_spreadsheet_executes(
    url: str, store: Store, clock: ManualClock
) -> None:
    harms = [f"{start}cmd|' /C calc'!A0" for start in DANGEROUS]
    made = App(store, clock)
    made.pipeline({"a": []})
    made.add([{"key": harm, "text": harm} for harm in harms])
    for lease in made.claim(most=100):
        made.complete(lease, {"text": lease.key, "-n": -1}, version="=1")
    out = io.BytesIO()
    columns = ["key", "version", "data", "data.text", "result.text", "result", "result.-n"]
    with Holdfast(url) as app:
        app.results("p", columns=columns).write(out, "csv")
    [head, *rows] = csv.reader(io.StringIO(out.getvalue().decode(), newline=""))
    assert [row[0] for row in rows] == [f"'{harm}" for harm in harms]
    assert {row[-1] for row in rows} == {"-1"}
    assert not [cell for row in (head, *rows) for cell in row[:-1] if cell.startswith(DANGEROUS)]


def harms() -> list[str]:
    """Short texts of everything that separates, quotes, or begins a formula, and what was found by looking."""
    rng = random.Random(18)
    found = [
        "a;=1+1",
        "a\t=1",
        "a| =1",
        'a;"=1',
        "a,\n@x",
        "a; \ufeff+1",
        ";",
        '";',
        "a;＝1",
        "- one\n- two",
        "0+cmd|'x'!A0",
    ]
    return found + ["".join(rng.choices("=+-@＝;|\t,\"' \r\na", k=rng.randint(1, 8))) for _ in range(600)]


def table(kinds: str, texts: Iterable[str]) -> str:
    """A table with a column for each letter: a text, JSON with the text in it, a number below zero, nothing."""
    of: dict[str, tuple[Kind, Any]] = {
        "t": (Kind.TEXT, lambda text: text),
        "j": (Kind.JSON, lambda text: {"a": [text, {text: -5}]}),
        "n": (Kind.INT, lambda text: -5),
        "0": (Kind.TEXT, lambda text: None),
    }
    out = io.BytesIO()
    writer = text_files.Csv(out, [Column(kind, *of[kind]) for kind in kinds])
    for text in texts:
        writer.write(cast(Any, text))
    writer.close()
    return out.getvalue().decode()


@pytest.mark.parametrize("kinds", ["nt", "tnt", "t", "jt", "tj", "nj", "0t", "tt"])
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_no_text_in_a_table_is_a_formula_wherever_a_spreadsheet_splits_the_lines(separator: str, kinds: str) -> None:
    text = table(kinds, harms())
    for trims in (False, True):
        for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=trims):
            for cell in row:
                # A number is none, nor a number that is followed by a quoted text or by words.
                told = re.sub(r'^-5(,"|,[\w .:/-]*$|$)', "", cell.strip(" \ufeff"))
                assert not told.startswith(("=", "+", "-", "@", "＝", "＋", "－", "＠")), row


def test_a_table_reads_back_as_numbers_and_json_and_texts_with_apostrophes() -> None:
    texts = harms()
    [_, *rows] = csv.reader(io.StringIO(table("tnj", texts), newline=""))
    for text, (told, number, form) in zip(texts, rows, strict=True):
        assert told.replace("'", "") == text.replace("'", "")
        assert number == "-5"
        assert json.loads(form) == {"a": [text, {text: -5}]}


def test_an_empty_text_is_quoted_and_what_is_not_there_is_empty(url: str, store: Store, clock: ManualClock) -> None:
    made = App(store, clock)
    made.pipeline({"a": []})
    made.add(["x"])
    made.complete(made.claim()[0], {"empty": ""})
    with Holdfast(url) as app:
        for columns, line in {"result.empty,result.none,key": b'"",,x', "result.none": b'""'}.items():
            out = io.BytesIO()
            app.results("p", columns=columns).write(out, "csv")
            assert out.getvalue().splitlines()[1] == line


def test_a_long_text_of_separators_takes_no_long_time() -> None:
    for part in (";", "; ", ';"', " ", '"', "\n-", "\ufeff"):
        began = time.process_time()
        text_files.harmless(part * 200_000 + "=")
        assert time.process_time() - began < 2


def test_a_parquet_file_has_the_types_that_were_declared(app: Holdfast, tmp_path: Path) -> None:
    columns = ["key", "result.value", "result", "cost", "attempts", "finished_at", "data.value:json"]
    app.results("p", columns=columns).write(tmp_path / "out.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "out.parquet")
    assert {field.name: str(field.type) for field in table.schema} == {
        "key": "string",
        "result.value": "string",
        "result": "string",
        "cost": "decimal128(24, 6)",
        "attempts": "int64",
        "finished_at": "timestamp[us, tz=UTC]",
        "data.value:json".partition(":")[0]: "string",
    }
    rows = {row["key"]: row for row in table.to_pylist()}
    assert rows["number"]["result.value"] == "-5" and rows["formula"]["result.value"] == "=1+1"
    assert rows["formula"]["data.value"] == '"=1+1"' and rows["nothing"]["data.value"] is None
    assert json.loads(rows["object"]["result"]) == {"value": VALUES["object"], "list": ["object"]}
    assert rows["text"]["cost"] == Decimal("0.25")
    assert rows["text"]["finished_at"] > datetime(2020, 1, 1, tzinfo=UTC)


def test_the_types_do_not_depend_on_the_rows(
    url: str, store: Store, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither on which come first, nor on whether there are any, nor on where one group of rows ends."""
    monkeypatch.setattr(arrow, "GROUP_ROWS", 2)
    made = App(store, clock)
    made.pipeline({"a": []})
    columns = ["key", "result", "data.value", "data.n:int", "data.x:float", "data.b:bool"]
    with Holdfast(url) as app:
        results = app.results("p", columns=columns)
        results.write(tmp_path / "empty.parquet")
        more = [{"n": 1}, {"value": None}, {"value": 1, "x": 1}, {"value": "x", "x": 0.5}, {"value": [1], "b": True}]
        made.add([{"key": f"k{number}", **one} for number, one in enumerate(more)])
        made.run_through()
        results.write(tmp_path / "full.parquet")
    empty, full = (pyarrow.parquet.read_table(tmp_path / f"{name}.parquet") for name in ("empty", "full"))
    assert empty.num_rows == 0 and full.num_rows == 5
    assert empty.schema == full.schema
    assert full["data.value"].to_pylist() == [None, None, "1", "x", "[1]"]
    assert full["data.n"].to_pylist() == [1, None, None, None, None]
    assert full["data.x"].to_pylist() == [None, None, 1.0, 0.5, None]
    assert full["data.b"].to_pylist() == [None, None, None, None, True]


@pytest.mark.parametrize("format", ["jsonl", "csv", "parquet"])
def test_a_value_that_is_not_of_the_declared_type_is_named_and_no_file_is_left(
    app: Holdfast, tmp_path: Path, format: str
) -> None:
    out = tmp_path / f"out.{format}"
    out.write_text("the one before")
    with pytest.raises(UsageError, match=r"item 'text', stage 'a': data.value is \"plain\", which is not of type int"):
        app.results("p", columns="key,data.value:int").write(out)
    assert out.read_text() == "the one before"
    assert [file.name for file in tmp_path.iterdir() if file.name.endswith(".part")] == []


@pytest.mark.parametrize("format", ["jsonl", "csv", "parquet"])
def test_what_was_given_up_in_the_middle_does_not_look_whole(app: Holdfast, format: Any) -> None:
    """Neither does what went to a pipe: a Parquet file without its end cannot be read, and lines have no end of their own."""
    out = io.BytesIO()
    with pytest.raises(UsageError, match="not of type int"):
        app.results("p", columns="key,data.value:int").write(out, format)
    assert not out.getvalue().endswith(b"PAR1") or len(out.getvalue()) == 4


def test_a_file_gets_its_name_when_it_is_complete(app: Holdfast, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    seen = []

    class Watched(Results):
        def _wanted(self) -> Iterator[Any]:
            for row in super()._wanted():
                seen.append(out.exists())
                yield row

    plain = app.results("p")
    watched = Watched(plain._open, plain._which)
    watched.write(out)
    assert seen == [False] * len(VALUES)
    assert len(out.read_text().splitlines()) == len(VALUES)


def test_a_link_stays_a_link_and_the_file_keeps_its_rights(app: Holdfast, tmp_path: Path) -> None:
    file, link = tmp_path / "file.jsonl", tmp_path / "link.jsonl"
    file.write_text("")
    file.chmod(0o640)
    link.symlink_to(file)
    app.results("p").write(link)
    assert link.is_symlink() and len(file.read_text().splitlines()) == len(VALUES)
    assert file.stat().st_mode & 0o777 == 0o640


def test_what_is_no_file_is_written_to_and_stays_what_it_is(app: Holdfast) -> None:
    assert app.results("p").write(os.devnull, "csv") == len(VALUES)
    assert Path(os.devnull).is_char_device()


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("kay", "there is no column 'kay'; .*did you mean 'key'"),
        ("key,key", "column 'key' is there twice"),
        ("result.n:integer", "there is no type 'integer'"),
        ("cost:int", "cost has a type already"),
        ([], "an export needs a column"),
    ],
)
def test_wrong_columns_are_refused_before_anything_is_read(app: Holdfast, columns: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        app.results("p", columns=columns)


def test_an_unknown_format_is_refused(app: Holdfast, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no format 'xlsx'"):
        app.results("p").write(tmp_path / "out.xlsx")


@pytest.mark.parametrize("micros", [0, 1, -1, 1_800_000_000_000_007, 10**15, -(10**18), 2**62, -(2**62), None])
def test_instants_are_written_as_in_all_json(micros: int | None) -> None:
    assert text_files._time(micros) == (None if micros is None else iso(instant(micros)))
