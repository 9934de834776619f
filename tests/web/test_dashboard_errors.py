"""The page of errors: groups with their money, and acts on a whole group."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from html import unescape

import pytest

from holdfast import Holdfast
from holdfast.web import Access
from tests.web.conftest import HOSTILE, Web
from tests.web.paid_shelf import paid_books

pytestmark = pytest.mark.req("P17", "J7")


@pytest.fixture
def failing(url: str) -> str:
    """Three books that failed for one cause, after they were paid for."""
    pipeline = paid_books(url)
    pipeline.add(["emma", "bad-1", "bad-2", "bad-3"])
    pipeline.run()
    return url


def form_of(page: str) -> dict[str, str]:
    """The hidden fields of the first group's form."""
    form = page[page.index('<form method="post"') :].partition("</form>")[0]
    return {name: unescape(value) for name, value in re.findall(r'name="([^"]*)" value="([^"]*)"', form)}


def test_groups_are_those_of_the_app_in_every_form(failing: str, serve: Callable[..., Web]):
    web = serve(failing)
    with Holdfast(failing, create=False) as app:
        groups = app.errors()
        assert app.errors(stage="extract") == ()
    [group] = groups
    assert web.get("/errors.json").json() == groups.json()
    [line] = csv.DictReader(io.StringIO(web.get("/errors.csv").text))
    assert (line["group"], line["count"], line["spent"]) == (group.group, "3", "1.2")
    page = web.get("/errors").text
    assert f'id="g{group.group}"' in page and "1.20" in page and "paid/summarise" in page
    assert f'href="./items?group={group.group}&amp;pipeline=paid&amp;stage=summarise"' in page
    assert f'href="./item?pipeline=paid&amp;key={group.key}"' in page
    assert "the oldest first: 0, 0, " in page and "3</td>" in page
    assert sum(group.by_hour) == 3
    assert "No attempt has failed that matches." in web.get("/errors?stage=extract").text


def test_hostile_messages_stay_texts(failing: str, serve: Callable[..., Web]):
    page = serve(failing).get("/errors").text
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page


def test_a_group_is_narrowed_by_when_it_was_seen(failing: str, serve: Callable[..., Web]):
    web = serve(failing)
    assert len(web.get("/errors.json?within=1h&pipeline=paid").json()) == 1
    wrong = web.get("/errors?within=soon")
    assert (wrong.status_code, "90m" in wrong.text) == (400, True)
    assert web.get("/errors?pipeline=none").status_code == 400


def test_a_whole_group_is_retried_through_a_preview_with_its_price(failing: str, serve: Callable[..., Web]):
    web = serve(failing)
    preview = web.post("/act/retry", form_of(web.get("/errors").text))
    assert "<strong>3</strong> stages of items (3 failed)" in preview.text
    assert "about 1.20" in preview.text
    with Holdfast(failing, create=False) as app:
        assert app.actions() == ()
    assert web.post("/act/retry", form_of(preview.text)).status_code == 303
    with Holdfast(failing, create=False) as app:
        [action] = app.actions()
        assert (action.kind, action.by, dict(action.counts)) == ("retry", "ada", {"failed": 3})
        assert {one.state for one in app.show("bad-1").stages} == {"done", "pending"}


def test_who_may_not_act_sees_groups_without_buttons(failing: str, serve: Callable[..., Web]):
    page = serve(failing, read_only=True).get("/errors").text
    assert "<button formaction" not in page and "act/retry" not in page
    page = serve(failing, access=lambda request: Access("eve", verbs={"cancel"})).get("/errors").text
    assert "act/cancel" in page and 'formaction="./act/retry"' not in page


def test_a_group_whose_sample_was_deleted_says_so(failing: str, serve: Callable[..., Web]):
    with Holdfast(failing, create=False) as app:
        app.delete(key="bad-*")
    page = serve(failing).get("/errors").text
    assert "deleted since" in page
    assert HOSTILE[0] not in page
