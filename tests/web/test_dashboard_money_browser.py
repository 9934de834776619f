"""Pages about errors and money in a real browser, with something to show: charts, narrow and dark, and keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast
from tests.web.browser import browsing, chromium, served
from tests.web.paid_shelf import paid_books

pytestmark = pytest.mark.req("P17")


@pytest.fixture
def address(url: str, tmp_path: Path) -> Iterator[str]:
    """A dashboard that has the code, of a newer version."""
    chromium()
    pipeline = paid_books(url)
    pipeline.add(["emma", "bad-1", "bad-2"])
    pipeline.run()
    program = f"from tests.web.paid_shelf import paid_books\n\npaid = paid_books({url!r}, version='2')\n"
    (tmp_path / "books.py").write_text(program)
    with served(url, tmp_path, "books.py") as address:
        yield address


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_charts_and_tables_fit_a_narrow_screen_and_have_names(address: str, scheme: str):
    with browsing(address, viewport={"width": 360, "height": 640}, color_scheme=scheme) as tab:
        for path in ("/", "/errors", "/costs?by=model&by=day", "/throughput?stage=summarise", "/plan?pipeline=paid"):
            tab.go(path)
            assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
            for one in tab.page.locator("summary").all():
                one.press("Enter")
            tab.assert_well()


def test_a_chart_that_is_wider_than_the_screen_begins_at_its_last_day(address: str):
    with browsing(address, viewport={"width": 360, "height": 640}) as tab:
        for path in ("/costs", "/throughput?stage=summarise"):
            tab.go(path)
            (left, right), (begin, end) = tab.page.evaluate(
                """() => { const box = document.querySelector(".box:has(.chart)"), bars = box.querySelector("path[fill^=url]");
                    return [bars, box].map((one) => one.getBoundingClientRect()).map((one) => [one.left, one.right]); }"""
            )
            assert begin <= left < right <= end, path


def test_a_group_is_retried_and_a_plan_is_carried_out_with_the_keyboard_alone(address: str, url: str):
    with browsing(address) as tab:
        tab.go("/errors")
        tab.page.get_by_role("button", name="Retry all of group").press("Enter")
        tab.page.get_by_role("button", name="Retry 2").press("Enter")
        tab.page.get_by_role("heading", name="Retry 1").wait_for()
        tab.go("/costs")
        tab.page.get_by_role("link", name="Plan of paid").press("Enter")
        tab.page.get_by_role("button", name="Reprocess…").press("Enter")
        tab.page.get_by_text("Expected cost").wait_for()
        tab.page.get_by_role("button", name="Reprocess 1").press("Enter")
        tab.page.get_by_role("heading", name="Reprocess 2").wait_for()
        assert tab.problems == []
    with Holdfast(url, create=False) as app:
        assert [(one.kind, dict(one.counts)) for one in app.actions()] == [
            ("reprocess", {"summarise": 1}),
            ("retry", {"failed": 2}),
        ]
