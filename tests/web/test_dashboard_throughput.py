"""The page of throughput, and the charts that it is drawn with."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable

import pytest

from holdfast import Holdfast
from holdfast.engine import throughput_by_minute
from holdfast.engine.layout import layout
from holdfast.model.attempt_counts import MINUTE_US, AttemptCounts
from holdfast.store import Transaction
from holdfast.web import charts
from holdfast.web.pages.throughput import MOST_CHARTS, OUTCOMES
from tests.web.conftest import Web, books
from tests.web.test_dashboard_page_bytes import pages_of

pytestmark = pytest.mark.req("P17")


def test_the_page_has_the_numbers_of_the_app_in_every_form(web: Web, shelf: str):
    with Holdfast(shelf, create=False) as app:
        found = app.throughput(last="6h")
    answered = web.get("/throughput.json?last=6h").json()
    assert [(one["stage"], one["attempts"], one["outcomes"]) for one in answered] == [
        (one.stage, one.attempts, dict(one.outcomes)) for one in found
    ]
    assert {one["span_seconds"] for one in answered} == {900.0}
    lines = list(csv.DictReader(io.StringIO(web.get("/throughput.csv?last=6h").text)))
    assert sum(int(one["failed"]) for one in lines) == 2
    page = web.get("/throughput?last=6h").text
    assert "8 done, 2 failed" in page
    assert 'href="./throughput?last=6h&amp;pipeline=books&amp;stage=extract"' in page
    assert re.search(r'last=6h"[^>]* aria-current="true"', page)


def test_charts_are_drawn_without_style_or_script_and_with_a_table(web: Web):
    page = web.get("/throughput?stage=extract").text
    assert page.count('<svg class="chart"') == 2
    assert 'fill="url(#fill-done)"' in page and 'fill="url(#fill-failed)"' in page
    for name in re.findall(r"url\(#([^)]*)\)", page):
        assert f'<pattern id="{name}"' in page
    assert "style=" not in page and page.count("<script") == 1
    table = page[page.index('<details id="numbers-1">') :].partition("</details>")[0]
    rows = re.findall(r'<tr><th scope="row">.*?(?=<tr>|</tbody>)', table)
    counts = [list(map(int, re.findall(r'<td class="n">([^<]*)', row)[:3])) for row in rows]
    assert [sum(column) for column in zip(*counts, strict=True)] == [10, 8, 2]


def test_the_time_is_chosen_among_those_there_are(web: Web):
    for last in ("1h", "24h", "7d", "14d"):
        assert web.get(f"/throughput?last={last}").status_code == 200
    wrong = web.get("/throughput?last=1y")
    assert (wrong.status_code, "14d" in wrong.text) == (400, True)
    assert web.get("/throughput?pipeline=none").status_code == 400


def test_a_pipeline_of_many_stages_stays_below_a_hundred_kilobytes(url: str, serve: Callable[..., Web]):
    pipeline = books(url)
    for n in range(8):
        pipeline.stage(name=f"more_{n}")(lambda item, ctx: 1)
    pipeline.add(["walden"])
    pipeline.run()
    page = serve(url).get("/throughput?last=14d")
    assert page.text.count('<svg class="chart"') == 2 * MOST_CHARTS
    assert "7 more had attempts" in page.text
    assert len(page.content) < 100_000


def test_stages_that_were_busy_for_two_weeks_stay_below_a_hundred_kilobytes(shelf: str, serve: Callable[..., Web]):
    counted = AttemptCounts(
        {name: 1000 + n for n, name in enumerate(OUTCOMES)}, {40: 1000, 60: 100}, {30: 1000, 50: 100}
    )

    def fill(tx: Transaction) -> None:
        first = tx.now // MINUTE_US // 15 - 14 * 96
        stages = sorted(layout(tx).stages)
        throughput_by_minute.write(
            tx, 0, {((first + n) * 15, stage): counted for n in range(1, 14 * 96) for stage in stages}
        )

    with Holdfast(shelf, create=False) as app:
        app.store.write(fill)
    for last in ("24h", "7d", "14d"):
        pages = list(pages_of(serve(shelf), f"throughput?last={last}"))
        assert "".join(pages).count('<svg class="chart"') == 4, last


def test_a_full_chart_is_small():
    places = [f"{n:02}:00" for n in range(120)]
    layers = [charts.Layer(name, [1000 + n for n in range(120)]) for name in ("done", "failed", "retried")]
    lines = [charts.Line(name, [0.001 * 1.1**n for n in range(120)]) for name in "abcd"]
    assert len(charts.bar_chart("x", places, layers, str)) < 15_000
    assert len(charts.line_chart("x", places, lines, str, 0.001)) < 10_000


def test_a_chart_escapes_what_it_is_given_and_leaves_gaps():
    drawn = charts.bar_chart("<b>", ["<i>"], [charts.Layer("done", [0])], str, {"<u>": 3.0})
    assert "<b>" not in drawn and "<i>" not in drawn and "<u>" not in drawn
    assert 'fill="url(#fill-done)"' not in drawn, "a bar of nothing is not drawn"
    drawn = charts.line_chart("x", ["a", "b", "c", "d"], [charts.Line("p", [1.0, None, 2.0, 3.0])], str, 0.001)
    assert [one.count("M") for one in re.findall(r' d="(M[^"]*L[^"]*)"', drawn)] == [1]
    # What no line leads to is a point that can be seen.
    assert re.findall(r'stroke-width="(\d)" stroke-dasharray="none" d="M[^"L]*h0"', drawn) == ["7"]
    assert "<b>" not in charts.numbers("n", "<b>", ["<b>"], [["<b>", "<b>"]])


@pytest.mark.parametrize(("most", "top"), [(0, 1), (0.3, 0.5), (7, 10), (10, 10), (101, 200), (4999, 5000)])
def test_a_scale_ends_at_a_round_number(most: float, top: float):
    assert charts.nice(most) == pytest.approx(top)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.005, 0.2, [0.001, 0.01, 0.1, 1.0]),
        (1.0, 1.0, [1.0, 10.0]),
        (30.0, 4000.0, [10.0, 60.0, 600.0, 3600.0, 36_000.0]),
        (1e-9, 1e-8, [1e-6, 1e-5]),
        (1e9, 1e10, [864_000.0, 8_640_000.0]),
    ],
)
def test_times_have_a_scale_of_round_lengths(low: float, high: float, ticks: list[float]):
    assert charts.times_around(low, high) == ticks


@pytest.mark.parametrize(
    ("counts", "begin"),
    [([0] * 55 + [3, 0, 1, 0, 0], 48), ([0] * 20 + [1] * 40, 20), ([1] + [0] * 59, 0), ([0] * 60, 48), ([0, 1], 0)],
)
def test_a_chart_begins_where_something_happened_and_has_enough_places(counts: list[int], begin: int):
    assert charts.first_shown(counts, 12) == begin


def test_a_strip_shows_what_there_is_at_all_and_fills_its_place():
    drawn = charts.strip("<b>", [("done", 1_000_000), ("failed", 1), ("retry_later", 0), ("pending", 500_000)])
    assert "<b>" not in drawn and "retry_later" not in drawn
    widths = {name: float(width) for name, width in re.findall(r'class="(\w+)" x="[^"]*" width="([^"]*)"', drawn)}
    assert sum(widths.values()) == pytest.approx(100, abs=0.2)
    assert widths["failed"] > 2 and widths["done"] == pytest.approx(2 * widths["pending"], rel=0.02)
    assert "<rect" not in charts.strip("nothing yet", [("done", 0)])
