"""What docs/guide/when-things-go-wrong.md shows is what commands print in that trouble, up to numbers, times and ids."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_commands import typed
from tests.docs.test_guides import ROOT, blocks
from tests.support.waiting import wait_for

#: By what the block shows: the program that gets into this trouble, and the commands that lead there.
HEAD = """
from holdfast import Backoff, CredentialRefused, Pipeline
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
REFUSED = """
class AuthenticationError(CredentialRefused): ...

books = Pipeline("books", resources={"llm": {"budget": "4.00", "zone": "Europe/Berlin"}})

@books.stage(resource="llm")
def summary(item, ctx): raise AuthenticationError("AuthenticationError: invalid x-api-key")
"""
SPENT = """
books = Pipeline("books", resources={"llm": {"budget": "0.80"}})

@books.stage(resource="llm", estimate="0.40")
def summary(item, ctx): return ctx.once("ask", str.upper, item.key, cost="0.40")
"""
BYTES = """
books = Pipeline("books")

@books.stage()
def summary(item, ctx): return ctx.once("ask", str.encode, item.key, cost="0.40")
"""
#: The last page reruns the twenty before it, and each of these reruns sixty of the first 1,200.
RERUNS = """
links = Pipeline("links")

@links.stage()
def link(item, ctx):
    number = int(item.key.removeprefix("page-"))
    others = range(1201, 1221) if number == 1221 else range(number - 1200, 1201, 20) if number > 1200 else ()
    for other in others:
        ctx.submit("links", f"page-{other}", when_exists="rerun")
"""
#: Here work waits for a person, so a run does not end.
WAITING = {
    "does not accept the key": REFUSED,
    "has a budget of": SPENT,
    "AnswerNotKept": BYTES,
    "rerun each other": RERUNS,
}
TROUBLES = {
    "holdfast errors": TORN,
    "holdfast why page-7.pdf": TORN,
    "the new work of digest": RENAMED,
    "that may have been charged": CUT_OFF,
}
#: Done to items that have not run.
ACTS = ("holdfast cancel",)
BLOCKS = blocks(ROOT / "docs" / "guide" / "when-things-go-wrong.md", "console")
PAGES = [f"page-{number}.pdf" for number in range(1, 21)]


def masked(text: str) -> str:
    """On one line, without what differs from store to store."""
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", text)
    text = re.sub(r"\b[0-9a-f]{10}\b", "ID", text)
    text = re.sub(r"(?:< )?\b\d[\d,.]*(?:(?<=\d) m?s\b)?", "N", text)
    return " ".join(text.split())


def shown_for(words: str) -> str:
    [block] = [one for one in BLOCKS if words.lower() in one.lower().replace("\n", " ")]
    return block


def asked(words: str) -> list[str]:
    """The words of the command in that block."""
    return shlex.split(shown_for(words).removeprefix("$ ").partition("\n")[0])[1:]


def assert_shown(words: str, said: str) -> None:
    shown = shown_for(words).partition("\n")[2]
    wanted = re.escape(masked(shown)).replace("…", ".*")
    assert re.fullmatch(wanted, masked(said)), f"{masked(said)}\n\n{masked(shown)}"


@pytest.mark.parametrize("words", TROUBLES)
def test_the_page_shows_what_the_command_prints(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    before = PAID if TROUBLES[words] == RENAMED else TROUBLES[words]
    Path("books.py").write_text(HEAD + before)
    typed("add", "books.py", "page-7.pdf", "page-8.pdf", *(["gone.pdf"] if before == TORN else ["page-1.pdf"]))
    assert typed("run", "books.py", "--quiet")[0] in (0, 3)
    Path("books.py").write_text(HEAD + TROUBLES[words])
    assert_shown(words, typed(*asked(words))[1])


@pytest.mark.parametrize("words", WAITING)
def test_the_page_shows_what_the_command_prints_while_work_waits(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_URL", f"sqlite:///{tmp_path}/holdfast.db")
    Path("books.py").write_text(HEAD + WAITING[words])
    keys = [f"page-{number}" for number in range(1, 1222)] if WAITING[words] == RERUNS else PAGES
    assert typed("add", "books.py", *keys)[0] == 0
    run = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "run", "books.py", "--quiet", "--concurrency", "1"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        wait_for(lambda: words in typed(*asked(words))[1], 120)
    finally:
        run.terminate()
        run.wait()
    assert_shown(words, typed(*asked(words))[1])


@pytest.mark.parametrize("words", ACTS)
def test_the_page_shows_what_an_act_on_many_items_prints(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    Path("books.py").write_text(HEAD + PAID)
    assert typed("add", "books.py", *PAGES)[0] == 0
    assert_shown(words, typed(*asked(words))[1])


def test_every_block_of_the_page_is_printed_by_a_command() -> None:
    assert sorted(shown_for(words) for words in (*TROUBLES, *WAITING, *ACTS)) == sorted(BLOCKS)
