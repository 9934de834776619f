"""Every Python block of the README and of the guides is run, as it is printed, with what its page takes for granted beside it.

A block is executed after the stages that it says it comes after; then an item passes the pipeline that it defines. Statements
that belong into a handler become one. Blocks that another test runs, or that cannot be run here, are named with the reason.
"""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Pipeline
from tests.docs.test_guides import blocks

ROOT = Path(__file__).resolve().parents[2]
GUIDES = ROOT / "docs" / "guide"
PAGES = {"README": ROOT / "README.md", **{page.stem: page for page in sorted(GUIDES.glob("*.md"))}}

#: Blocks that other tests run as they are printed, by page and number. Whole pages are not named: a block that is added to one
#: is run here until another test runs it.
ELSEWHERE = {
    "README 0": "tests/docs/test_readme.py",
    "README 2": "tests/docs/test_own_tables_commands.py",
    "crash-tests 0-2": "test_the_tests_of_the_guide_pass",
    "dashboard 0": "tests/web/test_dashboard_in_apps.py",
    "handlers 2": "tests/store/test_forks.py",
    "half-an-hour 0": "tests/docs/test_half_an_hour.py",
    "large-results 0": "tests/docs/test_large_results.py",
    "logs 0": "tests/telemetry/test_logs.py",
    "model-providers 0-4": "tests/docs/test_model_providers_guide.py",
    "monitoring 0": "tests/telemetry/test_metrics_by_opentelemetry.py",
    "own-tables 0-7": "tests/examples/test_curation_guides.py",
    "production-storage 0": "tests/examples/test_curation_guides.py",
    "results 0-1": "tests/export/test_views.py",
    "tracing 0": "tests/telemetry/test_traces.py",
    "typed-values 0": "tests/docs/test_typed_program.py",
    "web-apps 0-1": "tests/web/test_web_apps.py",
    "web-apps 2-4": "tests/web/test_dashboard_in_apps.py",
}
#: Blocks that define nothing to run: classes for pytest, and a pipeline that only works at night.
DEFINED = ("sources 3", "job-file 1", "alerts 0")

ITEM = {
    "key": "v.epub",
    "path": "v.epub",
    "text": "one two",
    "title": "V.",
    "url": "http://example.org",
    "meta": {"html": ""},
}
RESULT = {"text": "one two", "markdown": "one two", "chunks": ["one", "two"]}

#: What every page takes for granted.
GRANTED = """
import asyncio, json, os
from types import SimpleNamespace
import sqlalchemy as sa
from holdfast import *

URL = "sqlite:///holdfast.db"
books, articles = Pipeline("books", resources={"gemini": {}}), Pipeline("articles")
connections = Pipeline("connections")
client = SimpleNamespace(
    embed=lambda texts, model: SimpleNamespace(vectors=[[1.0] for _ in texts]),
    generate=lambda path, idempotency_key=None: "a text",
)
model = SimpleNamespace(encode=lambda texts: [[1.0] for _ in texts])
provider = SimpleNamespace(find=lambda idempotency_key: None)
my_api = SimpleNamespace(wishes=lambda shelf, after: [SimpleNamespace(isbn="1", title="V.", number=after + 1)])
my_library = SimpleNamespace(books=lambda shelf: [SimpleNamespace(isbn="1", title="V.")])
Book, Summary = dict, dict
PRICE, price, prompt, path = 0.01, "0.10", "?", "v.epub"
new, found = ["ulysses"], [{"key": "emma", "pages": 474}]
price_of = lambda answer: "0.10"
count_tokens = lambda item: 3
split = str.split
def call_gemini(path): return "a text"
def read_page(path): return "a text"
def call(text): return SimpleNamespace(usage=2)
def ask(*args): return {"chapters": [1, 2, 3], "model": "m", "usage": {"in": 1, "out": 2}}
chunks = sa.Table("chunks", sa.MetaData(), sa.Column("document", sa.Text), sa.Column("text", sa.Text))
orders = sa.Table("orders", sa.MetaData(), sa.Column("id", sa.Integer))
def save_chunks(connection, key, parts):
    connection.execute(chunks.insert(), [{"document": key, "text": part} for part in parts])
"""
#: What single blocks take for granted beside that, and what must hold after them.
BEFORE = {
    "README 1": "@connections.stage()\ndef connect(item, ctx): ...\nconnections.register()",
    "first-steps 0": "@books.stage()\ndef extract(item, ctx): ...",
    "first-steps 1": "@books.stage()\ndef extract(item, ctx): ...",
    "first-steps 4": "@books.stage()\ndef extract(item, ctx): return 7\nbooks.add(['walden'])\nbooks.run()",
    "follow-on-items 2": "@books.stage()\ndef extract(item, ctx): ...\napp = Holdfast(URL, [books.spec])\napp.register()\n"
    "engine = store_engine(URL)\norders.metadata.create_all(engine)",
    "import 1": "@books.stage()\ndef fetch(item, ctx): ...",
    "when-things-go-wrong 0": "def ask(path): return '[1]'",
}
AFTER = {
    "alerts 0": "app.close()",
    "first-steps 0": "assert len(Holdfast(URL).items()) == 3",
    "first-steps 1": "assert Holdfast(URL).show('emma').data == {'pages': 474}",
    "follow-on-items 2": "assert app.show('order-7').key == 'order-7'\napp.close()\nbooks = None",
    "import 0": "assert row({'step': '1', 'url': 'u', 'title': 't', 'fetch_output': 'x'})['stages'] == "
    "{'fetch': {'state': 'done', 'result': 'x'}}",
    "import 1": "assert report.imported == 1\nbooks = None",
    "sources 0": "assert by_desk({'desks': ['a']}, {'desks': ['b']})['desks'] == ['a', 'b']",
    "sources 1": "memory = {}\nassert list(find('oak', memory)) == [{'key': '1', 'title': 'V.'}] and memory == {'last': 1}",
    "sources 2": "from pathlib import Path\nassert [one.key for one in Shelf({'shelf': 'oak'}, Path()).look({})] == ['1']",
    "tuning 0": "@books.stage()\ndef render(item, ctx): ...",
    "versions 2": "assert unite({'queries': ['b']}, {'queries': ['a']}) == {'queries': ['a', 'b']}",
}


def every_block() -> Iterator[tuple[str, str]]:
    """Each Python block, by its page and its number there."""
    for page, path in PAGES.items():
        for number, text in enumerate(blocks(path, "python")):
            yield f"{page} {number}", text


def single(spans: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Each block of "page 0-2" by itself, with the test that runs it."""
    for span, where in spans.items():
        page, _, numbers = span.rpartition(" ")
        first, _, last = numbers.partition("-")
        for number in range(int(first), int(last or first) + 1):
            yield f"{page} {number}", where


BLOCKS = dict(every_block())
RUN_ELSEWHERE = dict(single(ELSEWHERE))
HERE = {name: text for name, text in BLOCKS.items() if name not in RUN_ELSEWHERE}


def earlier_stages(text: str) -> Iterator[str]:
    """The stages that a block comes after and does not define."""
    for names in re.findall(r"after=(\[[^\]]*\]|[\w\"]+)", text):
        yield from (name for name in re.findall(r"\w+", names) if f"def {name}(" not in text)


def completed(text: str) -> str:
    """A block with what its reader adds: a function below a decorator, a handler around what uses its context."""
    if text.rstrip().splitlines()[-1].startswith("@"):
        return f"{text}\ndef handler(item, ctx): return {{}}"
    if re.search(r"^\w+ = ctx\.", text, re.MULTILINE):
        return f"@books.stage()\ndef handler(item, ctx):\n{textwrap.indent(text, '    ')}\n    return True"
    return text


@pytest.fixture
def namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ALERT_HOOK", "http://127.0.0.1:9/hook")
    (tmp_path / "holdfast.yaml").write_text(
        "store: sqlite:///yaml.db\npipelines: {shelf: {stages: {read: {handler: shelf_handlers.read}}}}\n"
    )
    (tmp_path / "shelf_handlers.py").write_text("def read(item, ctx): ...\n")
    with sqlite3.connect("old.db") as old:
        old.execute(
            "CREATE TABLE work_items (id INTEGER PRIMARY KEY, job_id TEXT, item_key TEXT, stages TEXT, data TEXT)"
        )
        old.execute("INSERT INTO work_items VALUES (1, 'books', 'v.epub', ?, '{}')", [json.dumps({"fetch": "done"})])
    found: dict[str, Any] = {"__name__": "block"}
    exec(GRANTED, found)
    return found


@pytest.mark.parametrize("name", HERE)
def test_the_block_runs_as_it_is_printed(name: str, namespace: dict[str, Any]) -> None:
    exec(BEFORE.get(name, ""), namespace)
    for stage in dict.fromkeys(earlier_stages(HERE[name])):
        exec(f"@books.stage()\ndef {stage}(item, ctx): return {RESULT!r}", namespace)
    if "chunks." in HERE[name] or "save_chunks" in HERE[name]:
        exec("engine = store_engine(URL)\nchunks.metadata.create_all(engine)", namespace)
    if "after_children" in HERE[name]:
        exec("pieces = Pipeline('chunks')\n@pieces.stage()\ndef read(item, ctx): ...\npieces.register()", namespace)
    exec(completed(HERE[name]), namespace)
    exec(AFTER.get(name, ""), namespace)
    if name in DEFINED:
        return
    for pipeline in (namespace["books"], namespace["articles"]):
        if isinstance(pipeline, Pipeline) and pipeline._stages:
            pipeline.add([ITEM])
            summary = pipeline.run()
            assert not summary.failed, summary.errors


def test_every_name_in_the_lists_is_a_block_and_other_tests_are_there_and_read_its_page() -> None:
    assert {*RUN_ELSEWHERE, *DEFINED, *BEFORE, *AFTER} <= BLOCKS.keys()
    assert not RUN_ELSEWHERE.keys() & {*DEFINED, *BEFORE, *AFTER}
    for name, where in RUN_ELSEWHERE.items():
        if where not in globals():
            assert f"{name.rpartition(' ')[0]}.md" in (ROOT / where).read_text(encoding="utf-8"), (name, where)


BOOKS = """
import sqlalchemy as sa
from holdfast import Pipeline, store_engine

books = Pipeline("books")
chunks = sa.Table("chunks", sa.MetaData(), sa.Column("number", sa.Integer))


def create_tables(url):
    chunks.metadata.create_all(store_engine(url))


def save(connection):
    connection.execute(chunks.insert(), [{"number": number} for number in range(61)])


@books.stage()
def chunk(item, ctx):
    ctx.effect(save)
"""


def test_the_tests_of_the_guide_pass(tmp_path: Path) -> None:
    """Those of the page about crash tests, with pytest, in a folder of their own."""
    paid, *tests = blocks(PAGES["crash-tests"], "python")
    (tmp_path / "books.py").write_text(BOOKS)
    fixture = (
        "import pytest\nfrom books import books, create_tables\n\n\n"
        "@pytest.fixture(autouse=True)\ndef tables(holdfast_store):\n    create_tables(holdfast_store.url)\n\n\n"
    )
    (tmp_path / "test_books.py").write_text(fixture + "\n\n".join(tests))
    (tmp_path / "test_paid.py").write_text(
        f"from types import SimpleNamespace\nclient = SimpleNamespace(generate=str.upper)\n{paid}\n\n"
        "def test_the_call_is_counted_and_made():\n    assert call_gemini('v') == 'V'\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    ended = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, timeout=280)
    assert ended.returncode == 0, ended.stdout + ended.stderr
