"""Pages of less than 100 kB whatever the texts are: lists end where the bytes do, and nothing is lost between two pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from html import unescape
from urllib.parse import urlencode

import pytest

from holdfast import Context, Holdfast, Item, Permanent, Pipeline
from holdfast.model.key_pattern import exactly
from tests.web.conftest import Web, hidden_fields
from tests.web.test_dashboard_acting import ticked_rows

pytestmark = pytest.mark.req("P17")

MOST_BYTES = 100_000
#: A key may have 1,024 bytes; each character of these is as long as can be, in an address or in HTML.
TEXT = "كتاب<&>\"'"
ADDRESS = "https://news.example/2026/11/18/" + "a-title-that-says-all-of-it-" * 4
ITEMS = 130


def long_key(n: int) -> str:
    return f"{n:04}-{TEXT * 70}".encode()[:1024].decode(errors="ignore") if n % 2 else f"{ADDRESS}{n:04}"


def shelf(url: str) -> Pipeline:
    """Every item fails with a long text; the first one also has many payments and events."""
    made = Pipeline("shelf", store=url)

    @made.stage(version="v" * 60)
    def read(item: Item, ctx: Context) -> None:
        if item.data:
            for _ in range(60):
                ctx.cost("0.01", facts={"model": TEXT * 8, "why": TEXT * 40})
            for n in range(40):
                ctx.event("user.seen", **{f"fact{m}": f"{n} {TEXT * 40}" for m in range(25)})
        raise Permanent(f"{item.key[:4]} {TEXT * 40}")

    return made


@pytest.fixture
def long(url: str) -> str:
    made = shelf(url)
    made.add([{"key": long_key(n), **({"many": 1} if n == 1 else {})} for n in range(ITEMS)])
    made.run()
    with Holdfast(url, create=False) as app:
        for n in range(40):
            app.pause("shelf", by=f"{n} {TEXT * 40}", reason=f"{n} {TEXT * 90}")
            app.resume("shelf", by=f"{n} {TEXT * 40}", reason=f"{n} {TEXT * 90}")
    return url


def pages_of(web: Web, address: str) -> Iterator[str]:
    """The page, and those behind its Next, each smaller than promised."""
    following: str | None = f"./{address}"
    while following is not None:
        found = web.get(f"/{following.lstrip('./')}")
        assert found.status_code == 200, (following, found.text)
        assert len(found.content) < MOST_BYTES, (following, len(found.content))
        yield found.text
        links = re.findall(r'<a href="([^"]*)" rel="next">', found.text)
        following = unescape(links[0]) if links else None


def rows_of(web: Web, address: str, pattern: str) -> list[str]:
    """What the pattern finds on all pages, in order."""
    return [one for page in pages_of(web, address) for one in re.findall(pattern, page)]


def test_lists_of_items_with_long_keys_end_at_a_number_of_bytes_and_lose_nothing(long: str, serve: Callable[..., Web]):
    web = serve(long)
    with Holdfast(long, create=False) as app:
        every = [str(one.id) for one in app.items(most=2 * ITEMS)]
        named = [str(one.id) for one in app.items(most=2 * ITEMS, key="*a*")]
    for query in ("", "?state=failed", "?stage=read&key=*a*", "?attempts=1"):
        shown = list(pages_of(web, f"items{query}"))
        found = [one for page in shown for one in re.findall(r'href="\./item\?id=(\d+)"', page)]
        assert found == (named if "key" in query else every), query
        assert len(shown) > 1, query


def test_rows_of_long_keys_that_are_ticked_make_small_pages_and_forms(url: str, serve: Callable[..., Web]):
    made = shelf(url)
    keys = [f"{n:04}-{'漢' * 339}" for n in range(100)]
    made.add([*keys, *(f"short-{n}" for n in range(3))])
    made.run()
    web = serve(url)
    pages = list(pages_of(web, "items?state=failed"))
    rows = ticked_rows("".join(pages))[: len(keys)]
    ticked = {**web.form("/items?state=failed"), "select": rows}
    preview = web.post("/act/retry", ticked)  # type: ignore[arg-type]
    assert preview.status_code == 200 and len(preview.content) < MOST_BYTES
    assert "<strong>100</strong> stages of items (100 failed)" in preview.text
    assert ticked_rows(preview.text) == rows
    with Holdfast(url, create=False) as app:
        app.delete(key=exactly(keys[0]))
    form = {**hidden_fields(preview.text), "select": rows}
    number = web.post("/act/retry", form).headers["location"].split("/")[-1]  # type: ignore[arg-type]
    action = web.get(f"/actions/{number}.json").json()
    assert (action["counts"], action["changed"]) == ({"failed": 99}, 1)
    [left] = action["left_alone"]
    assert left["key"].startswith("0000-漢") and left["states"] == {}
    assert "deleted, or never there" in next(pages_of(web, f"actions/{number}"))


def test_events_the_audit_and_an_item_end_at_a_number_of_bytes_and_lose_nothing(long: str, serve: Callable[..., Web]):
    web = serve(long)
    with Holdfast(long, create=False) as app:
        every = [str(one.id) for one in app.events(most=1000)][::-1]
        acts = [str(one.event) for one in app.audit(most=200).entries]
        item = app.show(long_key(1))
    assert rows_of(web, "events", r'href="\./events/(\d+)"') == every
    assert rows_of(web, "audit", r'href="\./events/(\d+)"') == acts
    assert len(acts) == 80
    for named in ({"key": item.key}, {"id": str(item.id)}):
        address = f"item?{urlencode(named)}"
        assert rows_of(web, address, r'<tr id="c-(\d+)">') == [str(one.id) for one in item.calls][::-1]
        assert len(rows_of(web, address, r"<li><time")) == len(item.history)
        assert len(rows_of(web, address, r'<tr id="s-')) == 1
    assert len(item.calls) == 60


def nothing(item: Item, ctx: Context) -> None:
    pass


def test_the_overview_and_the_limits_of_many_pipelines_end_at_a_number_of_bytes_and_lose_nothing(
    url: str, serve: Callable[..., Web]
):
    stages = [f"stage-{n:03}" for n in range(100)]
    pipelines = ["first", "second"]
    for name in pipelines:
        made = Pipeline(name, store=url, resources={f"{name}-{stage}": {} for stage in stages})
        for stage in stages:
            made.stage(name=stage, resource=f"{name}-{stage}")(nothing)
        made.add(["a"])
    web = serve(url)
    every = [f"{pipeline}/{stage}" for pipeline in pipelines for stage in stages]
    parts = {page: list(pages_of(web, page)) for page in ("overview", "limits")}
    assert all(len(one) > 1 for one in parts.values())
    overview, limits = map("".join, parts.values())
    names = re.findall(r'<th scope="row">(?:<a[^>]*>)?<bdi>([^<]*)</bdi>', overview)
    assert [one for one in names if one.startswith("stage")] == stages * 2
    # What cannot begin without a worker.
    said = re.findall(r'<bdi>([^<]*)</bdi></th><td class="wide"><bdi>no living worker', overview)
    assert sorted(said) == every
    resources = [one.replace("/", "-") for one in every]
    assert [one for one in names if one in resources] == resources
    names = re.findall(r'<th scope="row"><bdi>([^<]*)</bdi>', limits)
    assert [one for one in names if "/" in one] == every
    assert [one for one in names if one in resources] == resources


def test_a_place_that_is_no_longer_there_begins_at_the_first_page(web: Web):
    for page in ("overview", "limits", "throughput"):
        assert "extract" in web.get(f"/{page}?after=gone").text
