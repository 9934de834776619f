"""What docs/guide/when-things-go-wrong.md shows is what commands print in that trouble, up to numbers, times and ids."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.test_commands import typed
from tests.docs.test_guides import ROOT, blocks

#: By what the block shows: the program that gets into this trouble, and the commands that lead there.
HEAD = """
from holdfast import Backoff, Pipeline
import json

AT_ONCE = Backoff(first_seconds=0, most_seconds=0)
"""
TORN = """
class HTTPStatusError(Exception): ...

books = Pipeline("books")

@books.stage(max_attempts=1)
def fetch(item, ctx):
    if item.key == "gone.pdf":
        raise HTTPStatusError("404 Not Found for 'https://example.org/gone.pdf'")

def ask(key): return '{"title": "V'

def summarise(item, ctx):
    return json.loads(ctx.once("ask", ask, item.key, cost="0.40"))

books.stage(after="fetch", name="summary", max_attempts=2, backoff=AT_ONCE)(summarise)
"""
PAID = """
books = Pipeline("books")

@books.stage()
def fetch(item, ctx): ...

@books.stage(after=fetch)
def summary(item, ctx): return ctx.once("ask", str.upper, item.key, cost="0.40")
"""
RENAMED = PAID.replace("def summary", "def digest")
CUT_OFF = """
books = Pipeline("books")

def ask(key): raise RuntimeError("the line went dead")

@books.stage(max_attempts=1)
def summary(item, ctx): return ctx.once("ask", ask, item.key, cost="0.40")
"""
TROUBLES = {
    "holdfast errors": TORN,
    "holdfast why page-7.pdf": TORN,
    "the new work of digest": RENAMED,
    "that may have been charged": CUT_OFF,
}
#: Blocks in which work waits for a person: a run does not end there, so they are not reached here.
LEFT_OUT = ("does not accept the key", "has a budget of", "AnswerNotKept", "rerun each other")
BLOCKS = blocks(ROOT / "docs" / "guide" / "when-things-go-wrong.md", "console")


def masked(text: str) -> str:
    """On one line, without what differs from store to store."""
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", text)
    text = re.sub(r"\b[0-9a-f]{10}\b", "ID", text)
    text = re.sub(r"(?:< )?\b\d[\d,.]*(?:(?<=\d) m?s\b)?", "N", text)
    return " ".join(text.split())


def shown_for(words: str) -> str:
    [block] = [one for one in BLOCKS if words.lower() in one.lower().replace("\n", " ")]
    return block


@pytest.mark.parametrize("words", TROUBLES)
def test_the_page_shows_what_the_command_prints(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    before = PAID if TROUBLES[words] == RENAMED else TROUBLES[words]
    Path("books.py").write_text(HEAD + before)
    typed("add", "books.py", "page-7.pdf", "page-8.pdf", *(["gone.pdf"] if before == TORN else ["page-1.pdf"]))
    assert typed("run", "books.py", "--quiet")[0] in (0, 3)
    Path("books.py").write_text(HEAD + TROUBLES[words])
    command, _, shown = shown_for(words).removeprefix("$ ").partition("\n")
    _, said = typed(*command.split()[1:])
    wanted = re.escape(masked(shown)).replace("…", ".*")
    assert re.fullmatch(wanted, masked(said)), f"{masked(said)}\n\n{masked(shown)}"


def test_every_block_of_the_page_is_shown_or_named() -> None:
    assert sorted(shown_for(words) for words in (*TROUBLES, *LEFT_OUT)) == sorted(BLOCKS)
