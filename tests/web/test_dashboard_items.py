"""Items narrowed by attempts, version, cost and time: a slice is looked through, and the page says how far."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from html import unescape

import pytest

from holdfast import Holdfast
from holdfast.engine import item_filters
from tests.web.conftest import Web

pytestmark = pytest.mark.req("P17")


def test_the_filters_are_those_of_the_app(web: Web, shelf: str):
    with Holdfast(shelf, create=False) as app:
        failed = app.items(state="failed", attempts=1, since=datetime(2026, 1, 1, tzinfo=UTC))
        every = app.items(attempts=0)
    assert len(failed) == 2
    assert web.get("/items.json?state=failed&attempts=1&since=2026-01-01").json() == failed.json()
    assert web.get("/items.json?attempts=0&since=9999d").json() == every.json()
    assert web.get("/items.json?until=2020-01-01").json() == []
    assert web.get("/items.json?cost=0.5").json() == []
    assert web.get("/items.json?version=none-such").json() == []


@pytest.mark.parametrize("query", ["attempts=many", "attempts=-1", "cost=much", "since=soon", "until=2026-13-01"])
def test_a_wrong_value_is_refused(web: Web, query: str):
    assert web.get(f"/items?{query}").status_code == 400


def test_a_slice_says_how_far_it_looked_and_offers_to_go_on(web: Web, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(item_filters, "LOOK", 3)
    found = web.get("/items?attempts=99").text
    assert "No item matches so far" in found
    assert "3 items or stages of items were looked at" in found
    link = web.get("/items.json?attempts=99").headers["link"]
    assert link.endswith('; rel="next"')
    steps = 0
    address = "/" + link.partition("<")[2].partition(">")[0]
    while True:
        found = web.get(address)
        steps += 1
        if "link" not in found.headers:
            break
        address = "/" + found.headers["link"].partition("<")[2].partition(">")[0]
    assert steps > 3
    assert "No item matches." in web.get(address.replace("items.json", "items")).text


def test_an_act_is_not_wider_than_the_list(web: Web, shelf: str):
    form = web.form("/items?state=failed&attempts=1")
    refused = web.post("/act/retry", form)
    assert refused.status_code == 400 and "cannot be limited by attempts" in refused.text
    page = web.get("/items?state=failed&attempts=1").text
    row = unescape(page.split('name="select" value="')[1].split('"')[0])
    assert "<strong>1</strong>" in web.post("/act/retry", {**form, "select": row}).text


def test_a_row_opens_its_item(web: Web, serve: Callable[..., Web]):
    [one] = web.get("/items.json?key=bad-1").json()
    assert f'href="./item?id={one["id"]}"' in web.get("/items?key=bad-1").text
    for address in (f"id={one['id']}", "pipeline=books&key=bad-1", f"id={one['id']}&key=bad-1"):
        assert "has no pages" in web.get(f"/item?{address}").text
        value = web.get(f"/value?{address}&part=error&stage=extract")
        assert "has no pages" in value.text and "of <a href" in value.text
        assert "has no pages" in web.get(f"/download/value?{address}&part=error&stage=extract").text
    assert web.get("/item?id=99999").status_code == 400
    assert "another key" in web.get(f"/item?id={one['id']}&key=emma").text
