"""Limits, workers, sources, events, alerts and audit in a real browser: narrow, light and dark, and with the keyboard alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import Holdfast
from tests.web.browser import browsing, chromium, served
from tests.web.test_dashboard_operations import PAGES, busy

pytestmark = pytest.mark.req("P17")

__all__ = ["busy"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_screen_scrolls_tables_and_not_the_page(busy: str, tmp_path: Path, scheme: str):
    chromium()
    with (
        served(busy, tmp_path) as address,
        browsing(address, viewport={"width": 360, "height": 640}, color_scheme=scheme) as tab,
    ):
        for path in (*PAGES, "events/1", "change/pause?name=shop&kind=pipeline", "change/tune?name=api&kind=resource"):
            tab.go(f"/{path}")
            assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
            tab.assert_well()


def test_how_long_a_pause_goes_on_is_said_in_a_sentence(busy: str, tmp_path: Path):
    chromium()
    with Holdfast(busy, create=False) as app:
        app.pause("api", resource=True, until="20h", reason="lunch", by="ada")
    for scripts, said in ((True, "paused: lunch for another 19 h"), (False, "paused: lunch until 20")):
        with served(busy, tmp_path) as address, browsing(address, java_script_enabled=scripts) as tab:
            tab.go("/limits")
            assert said in tab.page.get_by_role("row", name="api").inner_text()


def test_a_pipeline_is_paused_with_the_keyboard_alone(busy: str, tmp_path: Path):
    chromium()
    with served(busy, tmp_path) as address, browsing(address) as tab:
        tab.go("/limits")
        tab.page.get_by_role("link", name="Pause shop", exact=True).focus()
        tab.page.keyboard.press("Enter")
        tab.page.get_by_label("Reason, for the audit").focus()
        tab.page.keyboard.type("lunch")
        tab.page.keyboard.press("Enter")
        tab.page.get_by_role("link", name="Resume shop", exact=True).wait_for()
        assert tab.problems == []
    with Holdfast(busy, create=False) as app:
        assert (app.status().pipeline("shop").paused, app.audit().entries[0].reason) == (True, "lunch")
