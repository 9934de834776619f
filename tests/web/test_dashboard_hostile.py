"""Hostile texts in every field that somebody else fills, in every page, in every form of it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from urllib.parse import urlencode

import pytest

from holdfast import Context, Holdfast, Item, Permanent, Pipeline
from holdfast.web.pages import pages
from tests.web.conftest import HOSTILE, Web

pytestmark = [pytest.mark.req("P17"), pytest.mark.fault(76)]

#: What a terminal obeys, and what turns the direction of a text around.
TURNS = "\u202a\u202b\u202c\u202d\u2066\u2067\u2068\u2069"
ESCAPES = f"\x1b]0;title\x07\x1b[2J\x9b31m\r\n{TURNS}"
LONG = "A" * 5_000_000
#: What no page and no file may have in it: each of them would mean that a text got out of its place.
NEVER_IN_FILES = ("\u202e", *TURNS, "62615533", "\x1b", "\x07", "\x9b")
#: Beside these, what is markup in a page, and a text in a file.
NEVER = ("<script>alert", "<img src=x", *NEVER_IN_FILES)


@pytest.fixture
def hostile(url: str) -> str:
    """Keys, data, results, errors, reasons, names of calls, models, events and workers, all of them hostile."""
    text = " ".join((*HOSTILE, ESCAPES))
    books = Pipeline("books", store=url, resources={"model": {"budget_per_day": "20.00"}})

    @books.stage(resource="model")
    def extract(item: Item, ctx: Context) -> dict[str, str]:
        ctx.cost("0.10", facts={"model": text, "tokens_in": 1, "why": text})
        ctx.once(text, lambda: text)
        ctx.event("user.hostile", why=text, long=LONG[:10_000])
        ctx.progress(1, 2, text)
        if item.key.startswith("bad"):
            raise Permanent(f"{text} {LONG}")
        return {"text": text, "long": LONG}

    books.add([{"key": key, "text": text, "long": LONG} for key in (*HOSTILE, ESCAPES, f"bad {text}")])
    books.run()
    books.add(["late"])
    with Holdfast(url, create=False) as app:
        app.cancel(key="late", reason=text, by=text)
        app.pause("books", reason=text, by=text)
    return url


@pytest.fixture
def long_cells() -> Iterator[None]:
    """As long as our texts are; the reader has a limit of its own."""
    before = csv.field_size_limit(10 * len(LONG))
    yield
    csv.field_size_limit(before)


@pytest.mark.usefixtures("long_cells")
def test_no_page_and_no_export_lets_a_text_out_of_its_place(hostile: str, serve: Callable[..., Web]):
    web = serve(hostile)
    with Holdfast(hostile, create=False) as app:
        keys = [one.key for one in app.items()]
    places = [page.address({"number": 1}) for page in pages()]
    places += [f"item?{urlencode({'key': key})}" for key in keys]
    places += [f"value?{urlencode({'key': keys[0], 'part': part, 'stage': 'extract'})}" for part in ("data", "result")]
    places += [
        "items?state=failed",
        "act/retry?state=failed",
        "act/delete?state=cancelled",
        "change/resume?name=books&kind=pipeline",
    ]
    for place in places:
        found = web.get(f"/{place}")
        assert found.status_code == 200, (place, found.text)
        assert [one for one in NEVER if one in found.text] == [], place
        assert len(found.content) < (1_500_000 if place.startswith("value") else 100_000), place
        if not place.startswith(("act", "change")):
            path, _, query = place.partition("?")
            answered = web.get(f"/{path}.json?{query}")
            assert answered.headers["content-type"].startswith("application/json")
            json.loads(answered.text)
            table = web.get(f"/{path}.csv?{query}").text
            assert [one for one in NEVER_IN_FILES if one in answered.text or one in table] == [], place
            for line in csv.reader(io.StringIO(table)):
                assert [cell[:20] for cell in line if cell.startswith(("=", "+", "@", "\t", "\r"))] == [], place
