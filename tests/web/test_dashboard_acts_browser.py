"""Every act in a real browser, and what people do with several tabs, on a phone, at twice the size, with keys alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.engine import actions, selection
from holdfast.engine.retry_and_cancel import CancelStages
from holdfast.engine.selection import Who
from holdfast.model.item_filter import Which
from holdfast.model.states import State
from holdfast.store import open_store
from tests.web.browser import Tab, browsing, chromium, served
from tests.web.conftest import books
from tests.web.test_dashboard_item import KEY, Shop, quoted, shop
from tests.web.test_dashboard_operations import busy

pytestmark = pytest.mark.req("P17")

__all__ = ["busy", "shop"]


@pytest.fixture
def tab(shelf: str, tmp_path: Path) -> Iterator[Tab]:
    chromium()
    with served(shelf, tmp_path) as address, browsing(address) as tab:
        yield tab


def confirm(tab: Tab, button: str, reason: str = "") -> None:
    tab.page.get_by_label("Reason, for the audit").fill(reason)
    tab.page.get_by_role("button", name=button).click()


def acts(url: str) -> list[tuple[str, str | None, dict[str, int]]]:
    with Holdfast(url, create=False) as app:
        return [(one.kind, one.reason, dict(one.counts)) for one in reversed(app.actions())]


@pytest.mark.req("J7")
def test_items_are_cancelled_brought_back_and_deleted(tab: Tab, shelf: str):
    tab.go("/items?key=late")
    tab.page.get_by_role("button", name="Cancel…").click()
    confirm(tab, "Cancel 1", "not now")
    tab.page.get_by_role("heading", name="Cancel 1").wait_for()
    tab.page.get_by_role("button", name="Undo…").click()
    confirm(tab, "Undo 1", "after all")
    tab.page.get_by_role("heading", name="Retry 2").wait_for()
    tab.page.get_by_text("1 of 1").wait_for()
    tab.go("/item?key=bad-1")
    tab.page.get_by_role("link", name="Delete…").click()
    tab.page.get_by_label("Type 1 to confirm").fill("2")
    tab.page.get_by_role("button", name="Delete 1").click()
    tab.page.get_by_text("type the number that the preview shows").wait_for()
    tab.page.go_back()
    tab.page.get_by_label("Type 1 to confirm").fill("1")
    confirm(tab, "Delete 1", "a duplicate")
    tab.page.get_by_role("heading", name="Delete").wait_for()
    # A refusal is a status that the console has, too.
    assert [one for one in tab.problems if "400" not in one] == [] and tab.outside == []
    assert [one[:2] for one in acts(shelf)] == [
        ("cancel", "not now"),
        ("retry", "after all"),
        ("delete", "a duplicate"),
    ]
    with Holdfast(shelf, create=False) as app:
        left = {one.key for one in app.items()}
    assert "late" in left and "bad-1" not in left and "bad-2" in left


@pytest.mark.req("J7")
def test_an_act_is_on_the_item_of_its_preview_whatever_ends_a_line_in_its_key(tab: Tab, shelf: str):
    """In the fields of a form a browser writes each end of a line as a carriage return and a line feed."""
    keys = ["a\r\nb", "a\nb", "a\rb"]
    with Holdfast(shelf, create=False) as app:
        app.add("books", keys)
    for n, key in enumerate(keys[1:], 1):
        tab.go(f"/item?key={quoted(key)}")
        tab.page.get_by_role("link", name="Delete…").click()
        tab.page.get_by_label("Type 1 to confirm").fill("1")
        confirm(tab, "Delete 1")
        tab.page.get_by_role("heading", name=f"Delete {n}").wait_for()
    with Holdfast(shelf, create=False) as app:
        assert [one.key for one in app.items() if one.key in keys] == ["a\r\nb"]
    # Those of a list are meant by the filter of the list.
    tab.go(f"/items?key={quoted(keys[0])}")
    tab.page.get_by_role("button", name="Cancel…").click()
    confirm(tab, "Cancel 1")
    tab.page.get_by_role("heading", name="Cancel 3").wait_for()
    tab.assert_well()


@pytest.fixture
def left_open(shelf: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Begins to cancel what is pending, and leaves after the first two: as a process that was killed."""
    monkeypatch.setattr(selection, "CHUNK", 2)
    books(shelf).add([f"more-{n}" for n in range(6)])

    def begin() -> int:
        which = Which("books", states=frozenset({State.PENDING}))
        store = open_store(shelf)
        begun = store.write(lambda tx: actions.begin(tx, CancelStages(which), Who("ada", "by hand")))
        store.close()
        assert begun is not None and begun.is_open
        return begun.id

    return begin


def test_an_open_action_is_stopped_and_another_one_is_continued(tab: Tab, shelf: str, left_open: Callable[[], int]):
    page = tab.page
    stopped = left_open()
    tab.go(f"/actions/{stopped}")
    assert page.get_by_role("progressbar").is_visible()
    page.get_by_role("button", name="Stop").click()
    page.locator(".facts .state", has_text="stopped").wait_for()
    page.get_by_role("button", name="Undo…").wait_for()
    assert page.get_by_role("button", name="Continue").count() == 0
    continued = left_open()
    tab.go(f"/actions/{continued}")
    page.get_by_role("button", name="Continue").click()
    page.get_by_text("5 of 5").wait_for()
    page.locator(".facts .state", has_text="done").wait_for()
    assert page.get_by_role("button", name="Stop").count() == 0
    tab.go("/audit?verb=stop")
    assert page.get_by_role("link", name="stop", exact=True).count() == 1
    tab.assert_well()
    assert acts(shelf) == [("cancel", "by hand", {"pending": 2}), ("cancel", "by hand", {"pending": 5})]


def test_an_answer_is_forgotten_and_a_call_in_doubt_is_settled(shop: Shop, tmp_path: Path):
    chromium()
    with served(shop.url, tmp_path) as address, browsing(address) as tab:
        tab.go(f"/item?key={quoted(KEY)}")
        tab.page.get_by_role("link", name="Forget the answer of price").click()
        confirm(tab, "Forget 1", "wrong price")
        tab.page.get_by_role("heading", name="Forget 1").wait_for()
        tab.go(f"/item?key={quoted(KEY)}")
        tab.page.get_by_role("link", name="Settle pay it").first.click()
        tab.assert_well()
        tab.page.get_by_label("It was charged").check()
        tab.page.get_by_label("Amount that was charged").fill("0.35")
        confirm(tab, "Settle", "seen on the bill")
        tab.page.get_by_role("heading", name="it's").wait_for()
        assert tab.problems == []
    assert shop.asked(lambda app: app.costs(["pipeline"]).total.in_doubt) == 0
    assert shop.asked(lambda app: app.audit().entries[0].reason) == "seen on the bill"


def test_limits_are_tuned_a_pause_ends_and_a_source_is_looked_at(busy: str, tmp_path: Path):
    chromium()
    with served(busy, tmp_path) as address, browsing(address) as tab:
        tab.go("/limits")
        tab.page.get_by_role("link", name="Tune api", exact=True).click()
        tab.page.get_by_label("rate", exact=True).fill("7/s")
        confirm(tab, "Change limits of api", "slower")
        tab.page.get_by_text("rate 7/s").wait_for()
        tab.page.get_by_role("link", name="Resume shop/weigh").click()
        confirm(tab, "Resume", "on again")
        tab.page.get_by_role("link", name="Pause shop/weigh").wait_for()
        tab.go("/sources")
        tab.page.get_by_role("link", name="Look now").click()
        confirm(tab, "Look now at", "news")
        tab.page.get_by_role("heading", name="Sources").wait_for()
        assert tab.problems == [] and tab.outside == []
    with Holdfast(busy, create=False) as app:
        said = [one.reason for one in app.audit().entries[:3]]
        assert {"slower", "on again"} <= set(said)
        assert not app.status().pipeline("shop").stages[0].paused


def test_what_one_tab_does_another_one_shows(tab: Tab, shelf: str):
    tab.go("/items?state=failed")
    tab.page.get_by_text("live", exact=True).wait_for()
    other = tab.page.context.new_page()
    other.goto(f"{tab.address}/act/retry?key=bad-1")
    tab.page.bring_to_front()
    tab.page.get_by_text("live", exact=True).wait_for()
    other.get_by_role("button", name="Retry 1").click()
    other.get_by_role("heading", name="Retry 1").wait_for()
    tab.page.get_by_role("rowheader", name="bad-1").wait_for(state="detached")
    tab.page.get_by_role("rowheader", name="bad-2").wait_for()
    # Both tabs had the same form open: what the first did, the second does not do again.
    assert len(acts(shelf)) == 1
    assert tab.problems == []


def test_the_same_preview_confirmed_in_two_tabs_acts_once(tab: Tab, shelf: str):
    tab.go("/act/cancel?key=late")
    form = tab.page.locator("form.confirm")
    tab.page.evaluate("document.querySelector('form.confirm').target = '_blank'")
    for _ in range(2):
        with tab.page.context.expect_page() as opened:
            form.get_by_role("button", name="Cancel 1").click()
        opened.value.get_by_role("heading", name="Cancel 1").wait_for()
    assert [one[0] for one in acts(shelf)] == ["cancel"]


def test_every_key_does_what_the_help_says(tab: Tab):
    tab.go("/items?state=failed")
    press, active = tab.page.keyboard.press, "document.activeElement"
    press("/")
    assert tab.page.evaluate(f"{active}.closest('form').className") == "filters"
    press("j")
    assert tab.page.evaluate(f"{active}.value") == "j", "it is typed, where one types"
    press("Escape")
    for keys, row in (("j", "bad-1"), ("j", "bad-2"), ("j", "bad-2"), ("k", "bad-1"), ("k", "bad-1")):
        press(keys)
        assert row in tab.page.locator("tr.here").inner_text()
    press("x")
    assert tab.page.locator("input[name=select]:checked").count() == 1
    press("x")
    assert tab.page.locator("input[name=select]:checked").count() == 0
    press("?")
    tab.page.get_by_role("dialog").get_by_text("retry what is selected").wait_for()
    press("j")
    assert "bad-1" in tab.page.locator("tr.here").inner_text(), "the help is in front"
    press("Escape")
    press("x")
    press("r")
    tab.page.get_by_role("button", name="Retry 1").wait_for()
    assert tab.problems == []


@pytest.mark.parametrize("scripts", [True, False])
def test_on_a_phone_the_pages_are_behind_a_menu(shelf: str, tmp_path: Path, scripts: bool):
    chromium()
    phone = {"width": 375, "height": 720}
    with served(shelf, tmp_path) as address, browsing(address, viewport=phone, java_script_enabled=scripts) as tab:
        errors = tab.page.get_by_role("link", name="Errors", exact=True)
        assert not errors.is_visible()
        tab.page.locator(".menu summary").press("Enter")
        if scripts:
            tab.assert_well()
        errors.click()
        tab.page.get_by_role("heading", name="Errors").wait_for()
        assert not errors.is_visible(), "it is closed again"
        tab.page.set_viewport_size({"width": 1280, "height": 720})
        assert errors.is_visible() and not tab.page.locator(".menu").is_visible()
        box = tab.page.locator("header").bounding_box()
        assert box is not None and box["height"] < 50, "one line"


def test_at_twice_the_size_everything_fits(shelf: str, tmp_path: Path):
    """A window of 1280 pixels at 200 % has 640 of CSS."""
    chromium()
    zoomed = {"viewport": {"width": 640, "height": 400}, "device_scale_factor": 2}
    with served(shelf, tmp_path) as address, browsing(address, **zoomed) as tab:
        for path in ("/", "/items?state=failed", "/item?key=bad-1", "/matrix", "/errors", "/throughput", "/workers"):
            tab.go(path)
            assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
            tab.assert_well()


def test_the_name_of_a_row_stays_in_sight_when_its_table_scrolls(shelf: str, tmp_path: Path):
    chromium()
    with served(shelf, tmp_path) as address, browsing(address, viewport={"width": 375, "height": 720}) as tab:
        name = tab.page.get_by_role("rowheader", name="extract", exact=True)
        before = name.bounding_box()
        tab.page.locator(".box", has=name).evaluate("box => box.scrollTo(400, 0)")
        after = name.bounding_box()
        assert before is not None and after is not None and before["x"] == after["x"]
