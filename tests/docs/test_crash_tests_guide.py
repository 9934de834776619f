"""What docs/guide/crash-tests.md shows is what the command prints of such a program: one that writes rows outside its stage."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.docs.test_guides import ROOT, blocks
from tests.docs.test_trouble_guide import masked

BOOKS = """
import os

import sqlalchemy as sa

from holdfast import Pipeline, store_engine
from holdfast.testing import paid_call

books = Pipeline("books")
chunks = sa.Table(
    "chunks",
    sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("document", sa.Text),
    sa.Column("text", sa.Text),
)


def create_tables(url):
    chunks.metadata.create_all(store_engine(url))


def call_gemini(key):
    paid_call("gemini")
    return "one two three"


@books.stage()
def extract(item, ctx):
    return {"text": ctx.once("gemini", call_gemini, item.key, cost="0.40")}


@books.stage(after=extract)
def chunk(item, ctx):
    words = ctx.result(extract)["text"].split()
    with store_engine(os.environ["HOLDFAST_URL"]).begin() as connection:
        connection.execute(chunks.delete())
        connection.execute(chunks.insert(), [{"document": item.key, "text": word} for word in words])
    return {"chunks": len(words)}
"""


def test_the_page_shows_what_the_command_prints(tmp_path: Path) -> None:
    [shown] = blocks(ROOT / "docs" / "guide" / "crash-tests.md", "console")
    command, _, lines = shown.removeprefix("$ ").partition("\n")
    (tmp_path / "books.py").write_text(BOOKS)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    ended = subprocess.run(
        [sys.executable, "-m", *command.split()],
        cwd=tmp_path,
        env={**clean, "PYTHONPATH": str(ROOT)},
        text=True,
        capture_output=True,
        timeout=240,
    )
    assert ended.returncode == 1, ended.stderr
    assert re.fullmatch(re.escape(masked(lines)).replace("…", ".*"), masked(ended.stdout)), ended.stdout
    # The numbers that are not times are the same, too.
    assert re.findall(r"\d+ kills|\d+ the same, \d+ different", lines) == re.findall(
        r"\d+ kills|\d+ the same, \d+ different", ended.stdout
    )
