"""Costs by what one chooses, budgets, the plan of a reprocess with its price, and the reprocess itself."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator

import pytest

from holdfast import Holdfast
from holdfast.answers.json_of import json_of
from holdfast.engine import item_pages
from holdfast.web import Access, reprocessing
from tests.web.conftest import HOSTILE, Web
from tests.web.paid_shelf import paid_books

pytestmark = pytest.mark.req("P17", "J7")


@pytest.fixture
def paid(url: str) -> str:
    """Two summaries at 0.40."""
    pipeline = paid_books(url)
    pipeline.add(["emma", "walden"])
    pipeline.run()
    return url


@pytest.fixture
def newer(paid: str, serve: Callable[..., Web]) -> Iterator[Web]:
    """A dashboard that has the code, of a newer version, which no worker has registered yet."""
    with Holdfast(paid, [paid_books(paid, version="2").spec], create=False) as app:
        yield serve(app)


@pytest.mark.parametrize("by", [("model",), ("resource", "day"), ("pipeline", "stage")])
def test_sums_are_those_of_the_app_in_every_form(paid: str, serve: Callable[..., Web], by: tuple[str, ...]):
    web = serve(paid)
    with Holdfast(paid, create=False) as app:
        found, limits = app.costs(by), app.limits()
    query = "&".join(f"by={name}" for name in by)
    answered = web.get(f"/costs.json?{query}").json()
    assert answered["costs"] == found.json()
    assert answered["limits"] == json_of(limits)
    lines = list(csv.DictReader(io.StringIO(web.get(f"/costs.csv?{query}").text)))
    columns = ("costs", "tokens_in", "tokens_out", "tokens_cached", "tokens_reasoning")
    assert [tuple(one[name] for name in columns) for one in lines] == [("0.8", "2000", "100", "1200", "40")]
    page = web.get(f"/costs?{query}").text
    assert "0.80 in 2 payments" in page and "2,000 in (1,200 cached), 100 out (40 reasoning)" in page
    assert "Tokens cached</th>" in page and '<td class="n">1,200</td><td class="n">40</td></tr>' in page
    assert "<script>alert" not in page


def test_dimensions_are_chips_that_are_switched_on_and_off(paid: str, serve: Callable[..., Web]):
    web = serve(paid)
    assert web.get("/costs.json").json()["costs"]["by"] == ["pipeline", "stage"]
    page = web.get("/costs").text
    assert 'href="./costs?by=pipeline&amp;by=stage&amp;by=model"' in page
    assert 'href="./costs?by=stage" aria-current="true">pipeline</a>' in page
    wrong = web.get("/costs?by=colour")
    assert (wrong.status_code, "resource" in wrong.text) == (400, True)
    page = web.get("/costs?by=model").text
    assert '<input type="hidden" name="by" value="model">' in page, "the filter form keeps them"
    assert "Nothing was spent." in web.get("/costs?pipeline=none").text


def test_a_budget_is_a_line_in_the_chart_by_day(paid: str, serve: Callable[..., Web]):
    web = serve(paid)
    page = web.get("/costs").text
    assert page.count('<svg class="chart"') == 2, "all that was spent is from this budget: by day, and in all"
    assert ">daily budget 20</text>" in page
    curve = web.get("/costs.json").json()["curves"][0]
    assert (curve["name"], curve["budget_per_day"], curve["days"][-1]["costs"]) == ("gemini", "20", "0.8")
    assert len(curve["days"]) == 30
    assert '<td class="n">500.00</td>' in page


def test_without_the_code_a_plan_says_why_there_is_none(paid: str, serve: Callable[..., Web]):
    web = serve(paid)
    assert "holdfast ui FILE" in web.get("/costs").text
    assert "holdfast ui FILE" in web.get("/plan?pipeline=paid").text
    assert web.get("/act/reprocess?pipeline=paid").status_code == 400
    assert web.get("/plan.json").json()["plan"] == []


def test_a_plan_is_that_of_the_app_and_changes_nothing(newer: Web, paid: str):
    assert 'href="./plan?pipeline=paid"' in newer.get("/costs").text
    with Holdfast(paid, [paid_books(paid, version="2").spec], create=False) as app:
        plan = app.plan("paid")
    assert newer.get("/plan.json?pipeline=paid").json()["plan"] == plan.json()
    assert plan.total.sure == 2
    page = newer.get("/plan?pipeline=paid").text
    assert "<strong>2</strong> stages of items would run again" in page and "0.80" in page
    [line] = csv.DictReader(io.StringIO(newer.get("/plan.csv?pipeline=paid").text))
    assert (line["stage"], line["cost"]) == ("summarise", "0.8")
    assert "Nothing is stale" in newer.get("/plan?pipeline=paid&stage=extract").text
    newer.get("/act/reprocess?pipeline=paid")
    with Holdfast(paid, create=False) as app:
        assert [one.version for one in app.status().pipeline("paid").stages] == ["1", "1"], "nothing was registered"
        assert app.actions() == ()


def test_a_reprocess_is_confirmed_with_its_price_and_begun_once(newer: Web, paid: str):
    form = newer.form("/plan?pipeline=paid")
    question = newer.post("/act/reprocess", form)
    assert "Expected cost: <strong>0.80" in question.text
    assert "<strong>2</strong> stages of items (2 summarise)" in question.text
    form = newer.form("/act/reprocess?pipeline=paid")
    first = newer.post("/act/reprocess", {**form, "reason": "a better prompt"})
    again = newer.post("/act/reprocess", form)
    assert (first.status_code, first.headers["location"]) == (303, "../actions/1")
    assert again.headers["location"] == "../actions/1"
    with Holdfast(paid, create=False) as app:
        [action] = app.actions()
        assert (action.kind, action.by, action.reason) == ("reprocess", "ada", "a better prompt")
        assert dict(action.counts) == {"summarise": 2}
        assert {one.stage: one.state for one in app.show("emma").stages}["summarise"] == "pending"


def test_a_budget_limits_what_is_sent_back(newer: Web, paid: str):
    form = newer.form("/act/reprocess?pipeline=paid&budget=0.50")
    assert newer.post("/act/reprocess", form).status_code == 303
    with Holdfast(paid, create=False) as app:
        assert [dict(one.counts) for one in app.actions()] == [{"summarise": 1}]
    assert newer.get("/plan?pipeline=paid&budget=much").status_code == 400


def compared(web: Web, form: dict[str, str]) -> tuple[int | None, int | None, str]:
    """What was previewed and what had changed, of the action that a form begins, in numbers and in words."""
    number = web.post("/act/reprocess", form).headers["location"].split("/")[-1]
    action = web.get(f"/actions/{number}.json").json()
    words = web.get(f"/actions/{number}").text.partition("<dt>Preview</dt><dd>")[2].partition("</dd>")[0]
    return action["preview"]["previewed"], action["changed"], words


def test_a_reprocess_says_how_much_of_its_preview_had_changed_before_it_began(newer: Web, paid: str):
    form = newer.form("/act/reprocess?pipeline=paid")
    with Holdfast(paid, create=False) as app:
        app.delete(key="emma")
    assert compared(newer, form) == (2, 1, "previewed 2, 1 had changed meanwhile")


def test_a_reprocess_is_compared_with_where_items_begin_and_not_with_all_that_runs_again(
    paid: str, serve: Callable[..., Web]
):
    with Holdfast(paid, [paid_books(paid, version="2").spec], create=False) as app:
        web = serve(app)
        form = web.form("/act/reprocess?pipeline=paid&results=all")
        question = web.get("/act/reprocess?pipeline=paid&results=all").text
        assert "<strong>4</strong> stages of items" in question
        assert "The action itself sends back <strong>2</strong> of them" in question
        assert compared(web, form) == (2, 0, "previewed 2")


def test_a_reprocess_within_a_budget_is_compared_with_what_fits_it(newer: Web, paid: str):
    form = newer.form("/act/reprocess?pipeline=paid&budget=0.50")
    question = newer.get("/act/reprocess?pipeline=paid&budget=0.50").text
    assert "The action itself sends back <strong>1</strong> of them" in question
    assert compared(newer, form) == (1, 0, "previewed 1")


def test_who_may_not_reprocess_reads_the_plan_only(paid: str, serve: Callable[..., Web]):
    with Holdfast(paid, [paid_books(paid, version="2").spec], create=False) as app:
        for web in (serve(app, read_only=True), serve(app, access=lambda request: Access("eve", verbs={"retry"}))):
            page = web.get("/plan?pipeline=paid").text
            assert "would run again" in page and "act/reprocess" not in page
            assert web.get("/act/reprocess?pipeline=paid").status_code == 403


def test_a_walk_that_takes_too_long_is_given_up_with_advice(newer: Web, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(item_pages, "FEW", 1)
    monkeypatch.setattr(reprocessing, "WALK_SECONDS", -1.0)
    page = newer.get("/plan?pipeline=paid")
    assert page.status_code == 200
    assert "every item has to be looked at" in page.text and "holdfast plan FILE" in page.text
    assert newer.get("/act/reprocess?pipeline=paid").status_code == 503


def test_hostile_names_stay_texts(paid: str, serve: Callable[..., Web]):
    page = serve(paid).get("/costs?by=model&by=day").text
    assert HOSTILE[0] not in page
    assert "&lt;script&gt;alert" in page


def test_a_budget_in_all_is_a_line_above_what_had_been_spent_by_each_day(paid: str, serve: Callable[..., Web]):
    web = serve(paid)
    page = web.get("/costs").text
    assert "<bdi>gemini</bdi> in all, up to each day</h2>" in page
    assert "budget 500</text>" in page and "daily budget 20</text>" in page
    curves = {one["budget"]: one for one in web.get("/costs.json").json()["curves"]}
    days = [one["costs"] for one in curves["500"]["days"]]
    assert (days[0], days[-2], days[-1]) == ("0", "0", "0.8")
    assert [one["day"] for one in curves["500"]["days"]] == [one["day"] for one in curves[None]["days"]]
