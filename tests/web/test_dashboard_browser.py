"""The dashboard in a real browser: every page, live updates, keys, no script, narrow and dark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast, Pipeline
from holdfast.engine.workers import Identity, join
from holdfast.store import open_store
from holdfast.web.pages import pages
from tests.support.waiting import wait_for
from tests.web.browser import STUCK_SECONDS, Tab, browsing, chromium, served
from tests.web.conftest import books

pytestmark = pytest.mark.req("P17")


@pytest.fixture
def address(shelf: str, tmp_path: Path) -> Iterator[str]:
    chromium()
    with served(shelf, tmp_path) as address:
        yield address


@pytest.fixture
def tab(address: str) -> Iterator[Tab]:
    with browsing(address) as tab:
        yield tab


def test_every_page_renders_without_complaint_and_without_the_world(tab: Tab, shelf: str):
    with Holdfast(shelf, create=False) as app:
        app.cancel(key="late")
    for page in pages():
        tab.go(f"/{page.address({'number': 1})}")
        assert tab.page.title() == f"{page.title} · holdfast"
        tab.assert_well()
    for path in ("act/retry?state=failed", "act/delete?key=late", "item?key=bad-1", "item?key=walden"):
        tab.go(f"/{path}")
        tab.assert_well()
    tab.go("/value?key=bad-1&part=error&stage=extract")
    tab.assert_well()


def test_enter_opens_the_row(tab: Tab):
    tab.go("/items?state=failed")
    for key in ("j", "Enter"):
        tab.page.keyboard.press(key)
    tab.page.get_by_role("heading", name="bad-1").wait_for()
    tab.page.keyboard.press("r")
    tab.page.get_by_role("button", name="Retry 1").wait_for()
    assert tab.problems == []


def test_the_keys_for_rows_work_wherever_there_are_rows(tab: Tab):
    tab.go("/errors")
    for key in "jr":
        tab.page.keyboard.press(key)
    tab.page.get_by_role("button", name="Retry 2").wait_for()
    tab.go("/")
    # The first row is what stands in the way.
    for key in ("j", "j", "j", "k", "Enter"):
        tab.page.keyboard.press(key)
    tab.page.get_by_role("heading", name="Items").wait_for()
    assert tab.page.url.endswith("items?pipeline=books&stage=extract")
    tab.go("/item?key=bad-1")
    tab.page.keyboard.press("j")
    assert tab.page.locator("tr.here th").inner_text() == "extract"
    tab.page.keyboard.press("r")
    tab.page.get_by_role("button", name="Retry 1").wait_for()
    assert "stage=extract" in tab.page.url
    # Rows that are folded up are none.
    tab.go("/throughput")
    for _ in range(9):
        tab.page.keyboard.press("j")
    assert tab.page.evaluate("document.querySelector('tr.here').checkVisibility()")
    assert tab.problems == []


def test_what_a_worker_does_appears_by_itself(tab: Tab, shelf: str):
    tab.go("/items?state=pending")
    tab.page.get_by_role("rowheader", name="late").wait_for()
    tab.page.get_by_text("live", exact=True).wait_for()
    books(shelf).run()
    tab.page.get_by_text("No item matches.").wait_for()
    assert tab.problems == []


def test_items_are_retried_with_the_keyboard_alone(tab: Tab, shelf: str):
    tab.go("/items?state=failed")
    for key in "jxjx":
        tab.page.keyboard.press(key)
    tab.page.get_by_text("2 selected:").wait_for()
    tab.page.keyboard.press("r")
    tab.page.get_by_role("button", name="Retry 2").focus()
    tab.page.keyboard.press("Enter")
    tab.page.get_by_role("heading", name="Retry 1").wait_for()
    # A page is seen before its script hears the keys.
    tab.page.wait_for_load_state()
    tab.page.keyboard.press("?")
    tab.page.get_by_role("dialog").wait_for()
    tab.page.keyboard.press("Escape")
    assert tab.problems == []
    with Holdfast(shelf, create=False) as app:
        assert [dict(one.counts) for one in app.actions()] == [{"failed": 2}]


def test_a_swap_keeps_what_is_ticked_and_where_the_focus_is(tab: Tab, shelf: str):
    tab.go("/items?state=failed")
    tab.page.get_by_text("live", exact=True).wait_for()
    for key in "jjx":
        tab.page.keyboard.press(key)
    pipeline = books(shelf)
    pipeline.add(["bad-3"])
    pipeline.run()
    tab.page.get_by_role("rowheader", name="bad-3").wait_for()
    ticked = tab.page.evaluate("[...document.querySelectorAll('input[name=select]:checked')].map(one => one.value)")
    assert [json.loads(one)[2] for one in ticked] == ["bad-2"]
    assert json.loads(tab.page.evaluate("document.activeElement.value"))[2] == "bad-2"


def test_the_matrix_tells_states_apart_without_colour(tab: Tab):
    tab.go("/matrix")
    tab.page.locator("canvas.matrix").wait_for()
    seen = tab.page.evaluate("""() => {
        for (const key of document.querySelectorAll(".key")) key.style.color = "rgb(0, 0, 0)";
        dispatchEvent(new Event("resize"));
        const canvas = document.querySelector("canvas.matrix"), pen = canvas.getContext("2d");
        const lines = [...document.getElementById("matrix-table").tBodies[0].rows], wide = canvas.width / lines.length;
        return lines.map((line, x) => {
            const counts = line.cells[2].dataset.counts.trim().split(" ").filter((one) => !one.endsWith(":0"));
            const dots = pen.getImageData(Math.ceil(x * wide) + 2, 6, 12, 12).data;
            return [counts.join(" "), dots.filter((one, n) => n % 4 === 0 && one > 128).length];
        });
    }""")
    light = {}
    for states, n in seen:
        if ":" in states and " " not in states:
            light.setdefault(states.partition(":")[0], set()).add(n)
    assert set(light) == {"done", "failed", "pending"}
    assert light["done"] == {0}
    assert 0 < max(light["pending"]) < min(light["failed"])


def test_who_wants_no_motion_sees_none(address: str):
    with browsing(address, reduced_motion="reduce") as tab:
        for path in ("/items", "/errors"):
            tab.go(path)
            moving = """[...document.querySelectorAll("*")].filter((one) => { const style = getComputedStyle(one);
                return parseFloat(style.transitionDuration) || style.animationName !== "none"; }).map((one) => one.outerHTML)"""
            assert tab.page.evaluate(moving) == []


def test_keys_from_right_to_left_leave_their_neighbours_where_they_are(tab: Tab, shelf: str):
    key = "كتاب 12 (א)"
    with Holdfast(shelf, create=False) as app:
        app.add("books", [key])
    tab.go("/items?state=pending")
    row = tab.page.get_by_role("row").filter(has_text=key)
    assert row.locator("th").inner_text() == key
    cells = row.locator("th, td").evaluate_all("cells => cells.map((one) => one.getBoundingClientRect().x)")
    assert cells == sorted(cells)
    assert (
        row.locator("th bdi").evaluate("one => [getComputedStyle(one).direction, one.matches(':dir(rtl)')]")[1] is True
    )
    row.locator("th a").click()
    tab.page.get_by_role("heading", name=key).wait_for()
    tab.assert_well()


def test_without_javascript_one_reads_and_acts(address: str, shelf: str):
    with browsing(address, java_script_enabled=False) as tab:
        tab.go("/items?state=failed")
        tab.page.get_by_role("checkbox").first.check()
        tab.page.get_by_role("button", name="Retry…").click()
        tab.page.get_by_role("button", name="Retry 1").click()
        heading = tab.page.get_by_role("heading", name="Retry 1")
        # On a busy machine a page may give up, and without a script nobody asks again.
        wait_for(lambda: heading.is_visible() or (tab.page.reload(), heading.is_visible())[1], STUCK_SECONDS)
    with Holdfast(shelf, create=False) as app:
        assert [dict(one.counts) for one in app.actions()] == [{"failed": 1}]


def at_work(url: str) -> None:
    """A worker with something to tell, and two items with keys as long as can be."""
    pipeline = books(url)
    pipeline.add(["bad-" + "x" * 900, "https://books.example" + "/a-part-of-a-long-path" * 40])
    pipeline.run()
    store = open_store(url)
    now = store.read(lambda tx: tx.now)
    stages = store.read(lambda tx: {row[0]: "2026-07-31.1" for row in tx.run("read_counts")})
    failed = {
        "at": now,
        "stage": "books/extract",
        "item": "bad-1",
        "error": "Permanent: bad-1 has no pages, not even one",
    }
    facts = {
        "in_hand": 3,
        "done": {"done": 1_245_678, "failed": 12},
        "progress": [],
        "guards": [],
        "last_error": failed,
    }
    store.write(lambda tx: join(tx, Identity(7, "reader-1", "host.example", "12345", 60), stages, facts))
    store.close()


def test_at_1280_pixels_every_column_can_be_seen_however_long_keys_are(address: str, shelf: str):
    at_work(shelf)
    with browsing(address, viewport={"width": 1280, "height": 800}) as tab:
        for path in (
            "/",
            "/errors",
            "/limits",
            "/items",
            "/items?stage=extract",
            "/workers",
            "/events",
            "/item?key=bad-1",
        ):
            tab.go(path)
            wide = "[...document.querySelectorAll('.box')].map(box => [box.scrollWidth, box.clientWidth])"
            assert [box for box in tab.page.evaluate(wide) if box[0] > box[1]] == [], path
        tab.go("/items?key=bad-x*")
        tab.page.get_by_role("rowheader").get_by_role("link").click()
        assert "x" * 900 in tab.page.get_by_role("heading", level=1).inner_text(), "the whole key"


def test_large_numbers_and_long_times_of_the_overview_do_not_run_into_each_other(address: str):
    with browsing(address, viewport={"width": 1280, "height": 800}) as tab:
        columns, texts, fits = tab.page.evaluate(
            """() => { const row = document.querySelector(".stages tbody tr"), box = row.closest(".box");
                const said = ["8,754,322", "1,000", "1,245,678", "1,245,678", "12,345", "1,245,678", "1,245,678", "10,000,000",
                    "12,345", "13 h 20 m", "1 m 30 s", "13 h 20 m", "13 h ago"];
                const cells = [...row.querySelectorAll("td.n")];
                cells.forEach((cell, n) => { (cell.querySelector("a, span, time") || cell).textContent = said[n]; });
                const places = cells.map((cell) => { const text = document.createRange(); text.selectNodeContents(cell);
                    const place = text.getBoundingClientRect(); return [place.left, place.right]; });
                return [cells.length, [row.querySelector("svg").getBoundingClientRect().right, ...places.flat()],
                    box.scrollWidth <= box.clientWidth && places.at(-1)[1] < box.getBoundingClientRect().right - 8]; }"""
        )
        assert columns == 13
        assert texts == sorted(texts)
        assert all(right + 8 <= left for right, left in zip(texts[::2], texts[1::2], strict=False))
        assert fits


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_screen_scrolls_tables_and_not_the_page(address: str, scheme: str):
    with browsing(address, viewport={"width": 360, "height": 640}, color_scheme=scheme) as tab:
        for path in ("/", "/items?state=failed", "/item?key=bad-1", "/errors", "/throughput"):
            tab.go(path)
            assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
            tab.assert_well()


def test_on_a_narrow_screen_what_a_row_is_about_stays_in_sight(address: str, shelf: str):
    with Holdfast(shelf, create=False) as app:
        app.add("books", ["a-very-long-key-" * 12])
        app.pause("books", reason="a reason that is long enough for the table to scroll on every screen " * 3, by="ada")
    with browsing(address, viewport={"width": 360, "height": 640}) as tab:
        for path, name in (
            ("/items?state=failed", "Key"),
            ("/items?state=pending", "Key"),
            ("/audit", "Who"),
            ("/events", "Event"),
        ):
            tab.go(path)
            left, head, cell, wide = tab.page.evaluate(
                """name => { const box = document.querySelector(".box"), from = box.getBoundingClientRect().x;
                    box.scrollTo(box.scrollWidth, 0);
                    const head = [...box.querySelectorAll("thead th")].find((one) => one.textContent === name);
                    const [above, cell] = [head, box.querySelector("tbody th")].map((one) => one.getBoundingClientRect());
                    return [box.scrollLeft, above.x - from, cell.x - from, cell.width]; }""",
                name,
            )
            assert left > 0, path
            assert (head, cell) == (1, 1), path
            assert wide < 200, path
        underlined = "getComputedStyle(document.querySelector('tbody th a bdi')).textDecorationLine"
        assert tab.page.evaluate(underlined) == "underline"


def test_on_a_narrow_screen_the_lines_between_rows_are_whole(address: str, shelf: str):
    """A row of a broken number of pixels has its line half a pixel away from that of the cell that stays in place."""
    at_work(shelf)
    with browsing(address, viewport={"width": 360, "height": 640}) as tab:
        for path in ("/", "/limits", "/items?stage=extract", "/workers", "/errors", "/events"):
            tab.go(path)
            heights = tab.page.evaluate(
                "[...document.querySelectorAll('main tr')].map(one => one.getBoundingClientRect().height)"
            )
            assert heights and all(abs(one - round(one)) < 0.01 for one in heights), (path, heights)


def test_a_long_name_of_a_stage_does_not_cover_how_far_it_is(url: str, tmp_path: Path):
    pipeline = Pipeline("books", store=url)
    pipeline.stage(name="a_stage_with_a_very_long_name_" * 2)(lambda item, ctx: 1)
    pipeline.add(["walden"])
    with served(url, tmp_path) as address:
        for width in (1280, 360):
            with browsing(address, viewport={"width": width, "height": 640}) as tab:
                right, left = tab.page.evaluate(
                    """() => { const [name, bar] = ["bdi", "svg"].map((one) => document.querySelector(`.stages tbody ${one}`));
                        return [name.getBoundingClientRect().right, bar.getBoundingClientRect().x]; }"""
                )
                assert right <= left, width
