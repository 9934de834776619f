"""Buttons: filter, preview, confirm, and an action that is done once, with its own page."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from html import unescape

import pytest

from holdfast import Holdfast
from holdfast.engine import actions, item_pages, selection
from holdfast.web import Access
from tests.support.together import at_once
from tests.support.waiting import wait_for
from tests.web.conftest import Web, books, hidden_fields

pytestmark = pytest.mark.req("P17", "J7")


def acts(url: str) -> list[tuple[str, str, str, dict[str, int]]]:
    with Holdfast(url, create=False) as app:
        return [(one.kind, one.by, one.reason, dict(one.counts)) for one in app.actions()]


def states(url: str, key: str) -> dict[str, str | None]:
    with Holdfast(url, create=False) as app:
        return {one.stage: one.state for one in app.show(key).stages}


def ticked_rows(page: str) -> list[str]:
    """What the checkboxes of a page send."""
    return [unescape(part.split('"')[0]) for part in page.split('name="select" value="')[1:]]


def test_a_preview_counts_shows_samples_and_changes_nothing(web: Web, shelf: str):
    found = web.get("/act/retry?state=failed&pipeline=books&stage=extract").text
    assert "<strong>2</strong> stages of items (2 failed) will be sent back" in found
    assert "bad-1" in found and "bad-2" in found
    assert acts(shelf) == []
    assert "Nothing matches" in web.get("/act/retry?key=walden").text


def test_a_preview_that_has_not_searched_everything_says_so_and_can_be_confirmed(
    web: Web, shelf: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(item_pages, "SEARCHED", 1)
    found = web.get("/act/retry?state=failed&error=bad-2+has").text
    assert "Nothing was found in the part of the store that was searched" in found and "Retry all that match" in found
    monkeypatch.setattr(item_pages, "PASSED_BY", 1)
    found = web.get("/act/retry?state=done").text
    assert "+</strong> stages of items will be sent back" in found
    assert web.post("/act/retry", web.form("/act/retry?state=done")).status_code == 303
    assert acts(shelf)[0][3]["done"] > 1


def test_what_cannot_be_undone_is_not_done_after_a_preview_that_found_nothing(
    web: Web, shelf: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(item_pages, "SEARCHED", 1)
    found = web.get("/act/delete?state=failed&error=bad-2+has").text
    assert "needs a preview with something in it" in found and 'class="confirm"' not in found
    form = {**web.form("/act/retry?state=failed"), "state": "failed", "error": "bad-2 has", "count": "0", "typed": "0"}
    assert web.post("/act/delete", form).status_code == 400
    assert acts(shelf) == []


def test_a_confirmed_preview_is_an_action_under_the_persons_name(web: Web, shelf: str):
    form = web.form("/act/retry?state=failed")
    moved = web.post("/act/retry", {**form, "reason": "pages were found"})
    assert (moved.status_code, moved.headers["location"]) == (303, "../actions/1")
    assert acts(shelf) == [("retry", "ada", "pages were found", {"failed": 2})]
    assert states(shelf, "bad-1")["extract"] == "pending"
    page = web.get("/actions/1").text
    assert "2 of 2" in page and "bad-1" in page and "pages were found" in page
    assert "retry 1" in web.get("/actions").text


def test_an_action_says_how_much_of_its_preview_had_changed_before_it_was_confirmed(web: Web, shelf: str):
    form = web.form("/act/retry?state=failed")
    with Holdfast(shelf, create=False) as app:
        app.delete(key="bad-1")
    web.post("/act/retry", form)
    [one] = [one for one in web.get("/actions.json").json() if one["kind"] == "retry"]
    assert (one["preview"]["previewed"], one["changed"]) == (2, 1)
    page = web.get(f"/actions/{one['id']}").text
    assert "1 of 1" in page and "previewed 2, 1 had changed meanwhile" in page


def test_each_ticked_row_that_was_not_acted_on_is_shown_with_its_outcome(web: Web, shelf: str):
    page = web.get("/items?state=failed").text
    rows = ticked_rows(page)
    ticked = {**web.form("/items?state=failed"), "select": rows}
    form = hidden_fields(web.post("/act/retry", ticked).text)  # type: ignore[arg-type]
    with Holdfast(shelf, create=False) as app:
        app.delete(key="bad-1")
    place = web.post("/act/retry", {**form, "select": rows}).headers["location"]  # type: ignore[dict-item]
    number = place.split("/")[-1]
    told = web.get(f"/actions/{number}.json").json()
    assert told["left_alone"] == [{"key": "bad-1", "pipeline": None, "states": {}}]
    page = web.get(f"/actions/{number}").text
    assert "Not acted on" in page and "changed meanwhile: <bdi>deleted, or never there</bdi>" in page


def test_a_preview_that_has_not_counted_everything_is_not_compared_with_what_was_done(
    web: Web, shelf: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(actions, "PREVIEWED", 1)
    web.post("/act/retry", web.form("/act/retry?state=failed"))
    assert web.get("/actions/1.json").json()["preview"]["previewed"] is None


def test_an_action_that_has_done_more_than_was_counted_says_how_much(
    web: Web, shelf: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(actions, "PREVIEWED", 2)
    monkeypatch.setattr(selection, "CHUNK", 1)
    with Holdfast(shelf, create=False) as app:
        app.retry(states=["done"], stage="extract")
    assert "8 of 8 (" in web.get("/actions/1").text


def test_the_same_form_sent_twice_acts_once(web: Web, shelf: str):
    form = web.form("/act/cancel?key=late")
    first = web.post("/act/cancel", form)
    with Holdfast(shelf, create=False) as app:
        app.retry(key="late", states=["cancelled"])
    again = web.post("/act/cancel", form)
    assert first.headers["location"] == again.headers["location"] == "../actions/1"
    assert states(shelf, "late")["extract"] == "pending", "the second one did nothing"


def test_the_same_form_from_several_tabs_at_once_acts_once(web: Web, shelf: str):
    form = web.form("/act/cancel?key=late")
    found = at_once(*(lambda: web.post("/act/cancel", form).headers["location"] for _ in range(3)))
    # One that lost the race may have used up a number on PostgreSQL.
    [place] = set(found)
    assert place.startswith("../actions/")
    assert len(acts(shelf)) == 1


def test_of_two_people_who_act_on_the_same_items_at_once_each_item_hears_one(shelf: str, serve: Callable[..., Web]):
    webs = [serve(shelf, access=lambda request, name=name: Access(name)) for name in ("ada", "ben")]
    forms = [web.form("/act/retry?state=failed") for web in webs]
    at_once(*(partial(web.post, "/act/retry", form) for web, form in zip(webs, forms, strict=True)))
    # Who comes too late finds nothing left, and no action is kept of that.
    assert sum(n for *_, counts in acts(shelf) for n in counts.values()) == 2
    assert [states(shelf, key)["extract"] for key in ("bad-1", "bad-2")] == ["pending", "pending"]


def test_selected_rows_become_a_filter_by_their_keys(web: Web, shelf: str):
    page = web.get("/items?state=failed").text
    row = unescape(page.split('name="select" value="')[1].split('"')[0])
    [one] = web.get("/items.json?key=bad-1").json()
    assert json.loads(row) == [one["id"], "extract", "bad-1"]
    for path in ("/items?state=failed", "/items?state=failed&key=bad-*"):
        preview = web.post("/act/retry", {**web.form(path), "select": row})
        assert "<strong>1</strong> stages of items (1 failed)" in preview.text, path
    assert acts(shelf) == []


def test_an_item_that_was_deleted_and_added_again_is_not_the_one_that_was_ticked(web: Web, shelf: str):
    rows = ticked_rows(web.get("/items?state=pending").text)
    form = hidden_fields(web.post("/act/cancel", {**web.form("/items?state=pending"), "select": rows[0]}).text)
    with Holdfast(shelf, create=False) as app:
        app.delete(key="late")
    books(shelf).add(["late"])
    refused = web.post("/act/cancel", form)
    assert "everything has changed since the preview" in refused.text
    assert states(shelf, "late")["extract"] == "pending"
    # With another row, the act goes on without it.
    [other] = ticked_rows(web.get("/items?key=emma&state=done&stage=extract").text)
    web.post("/act/cancel", {**form, "select": [*rows, other]})  # type: ignore[dict-item]
    assert states(shelf, "late")["extract"] == "pending"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ('[999999, "extract", "gone"]', "deleted or never there (&#39;gone&#39;)"),
        ('["books", "extract", "bad-1"]', "names its item by its number"),
        ('[-1, "extract", "bad-1"]', "names its item by its number"),
        ('[9223372036854775808, "extract", "bad-1"]', "names its item by its number"),
        ("1], [2", "names its item by its number"),
        ("bad-1", "names its item by its number"),
    ],
)
def test_a_row_that_is_unknown_or_of_somebody_else_is_refused_with_a_sentence(
    web: Web, shelf: str, row: str, said: str
):
    [known, _] = ticked_rows(web.get("/items?state=failed").text)
    for rows in (row, [known, row]):
        refused = web.post("/act/retry", {**web.form("/items?state=failed"), "select": rows})  # type: ignore[dict-item]
        assert refused.status_code == 400 and said in refused.text
    assert acts(shelf) == []


def test_an_act_without_a_filter_needs_a_word(web: Web, shelf: str):
    form = web.form("/act/cancel")
    refused = web.post("/act/cancel", form)
    assert (refused.status_code, acts(shelf)) == (400, [])
    assert web.post("/act/cancel", {**form, "all": "yes"}).status_code == 303


def test_an_action_is_undone_from_its_page(web: Web, shelf: str):
    web.post("/act/cancel", web.form("/act/cancel?key=late"))
    assert states(shelf, "late")["extract"] == "cancelled"
    question = web.post("/actions/1/undo", web.form("/actions/1"))
    assert "<strong>1</strong> stages of items (1 cancelled) will be sent back" in question.text
    assert "late" in question.text and states(shelf, "late")["extract"] == "cancelled"
    form = {**hidden_fields(question.text), "reason": "too early"}
    undone = web.post("/actions/1/undo", form)
    assert undone.headers["location"] == "../2"
    assert web.post("/actions/1/undo", form).headers["location"] == "../2"
    assert states(shelf, "late")["extract"] == "pending"
    assert acts(shelf)[0] == ("retry", "ada", "too early", {"cancelled": 1})
    assert len(acts(shelf)) == 2
    assert "there is nothing to undo" in web.post("/actions/1/undo", web.form("/actions/1")).text


def test_an_undo_says_what_had_changed_since_its_preview(web: Web, shelf: str):
    web.post("/act/retry", web.form("/act/retry?state=failed"))
    form = hidden_fields(web.post("/actions/1/undo", web.form("/actions/1")).text)
    with Holdfast(shelf, create=False) as app:
        app.cancel(key="bad-1")
    place = web.post("/actions/1/undo", form).headers["location"]
    assert "previewed 2, 1 had changed meanwhile" in web.get(f"/actions/{place.split('/')[-1]}").text


def test_what_cannot_be_undone_is_refused_with_the_reason(web: Web, shelf: str):
    with Holdfast(shelf, create=False) as app:
        app.delete(key="late")
    assert "Undo" not in web.get("/actions/1").text
    refused = web.post("/actions/1/undo", web.form("/act/retry?state=failed"))
    assert refused.status_code == 400 and "what was deleted is gone" in refused.text


def test_an_action_that_is_larger_than_a_chunk_is_finished_behind_the_page(
    web: Web, shelf: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(selection, "CHUNK", 2)
    books(shelf).add([f"later-{n}" for n in range(6)])
    assert web.post("/act/cancel", web.form("/act/cancel?state=pending")).status_code == 303
    wait_for(lambda: web.get("/actions.json").json()[0]["state"] == "done")
    assert acts(shelf) == [("cancel", "ada", "", {"pending": 7})]
    assert "7 of 7" in web.get("/actions/1").text


def test_who_may_only_read_has_no_buttons_and_no_way_around(shelf: str, serve: Callable[..., Web]):
    for web in (serve(shelf, read_only=True), serve(shelf, access=lambda request: Access("eve", verbs=()))):
        page = web.get("/items?state=failed").text
        assert "data-verb" not in page and 'name="select"' not in page
        assert web.get("/act/retry?state=failed").status_code == 403
        form = {**web.form("/items?state=failed"), "step": "confirm", "request": "0" * 32}
        assert web.post("/act/retry", form).status_code == 403
    assert acts(shelf) == []


def test_who_has_some_verbs_sees_and_uses_only_those(shelf: str, serve: Callable[..., Web]):
    web = serve(shelf, access=lambda request: Access("eve", verbs={"retry"}))
    page = web.get("/items?state=failed").text
    assert 'data-verb="retry"' in page and 'data-verb="cancel"' not in page
    assert web.get("/act/cancel?key=late").status_code == 403
    with Holdfast(shelf, create=False) as app:
        app.cancel(key="late")
    assert "Undo" not in web.get("/actions/1").text
    form = web.form("/items?state=failed")
    assert web.post("/actions/1/undo", {**form, "request": "0" * 32}).status_code == 403
