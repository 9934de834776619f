"""Previews: five of what is meant, and what it may cost, for every act; bounded, however much there is."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from holdfast import Context, Holdfast, Item, Permanent, Pipeline
from holdfast.engine import actions, item_pages
from holdfast.web.act_preview import SAMPLES
from tests.web.conftest import HOSTILE, Web

pytestmark = pytest.mark.req("P17", "J7")


def shop(url: str, version: str = "1") -> Pipeline:
    """A scan costs 0.10 and a price, which is a recorded answer, 0.40; keys that begin with `bad` fail after that."""
    shop = Pipeline("shop", store=url)

    @shop.stage(version=version)
    def scan(item: Item, ctx: Context) -> str:
        ctx.cost("0.10")
        if item.key.startswith("torn"):
            raise Permanent(f"{item.key} is torn")
        return item.key

    @shop.stage(after=scan)
    def price(item: Item, ctx: Context) -> int:
        found: int = ctx.once(f"price {HOSTILE[0]}", lambda: 7, cost="0.40")
        if item.key.startswith("bad"):
            raise Permanent("no such price")
        return found

    @shop.stage(after=price)
    def shelve(item: Item, ctx: Context) -> None: ...

    return shop


@pytest.fixture
def paid(url: str) -> str:
    """Seven with a recorded answer that failed, two that failed before, one that is done."""
    pipeline = shop(url)
    pipeline.add([*(f"bad-{n}" for n in range(7)), "torn-1", "torn-2", "fine"])
    pipeline.run()
    return url


@pytest.fixture
def web(paid: str, serve: Callable[..., Web]) -> Iterator[Web]:
    """It has the code, of a newer version of the first stage."""
    with Holdfast(paid, [shop(paid, version="2").spec], create=False) as app:
        yield serve(app)


def samples(page: str) -> int:
    """How many rows the table of samples has."""
    return page.split('id="samples"')[1].split("</table>")[0].count('<th scope="row">')


def test_forget_shows_five_answers_and_what_they_have_cost(web: Web):
    page = web.get("/act/forget?key=bad-*").text
    assert "<strong>7</strong> recorded answers of paid calls" in page
    assert "Expected cost: <strong>about 2.80, which is what these answers have cost</strong>" in page
    assert samples(page) == SAMPLES
    assert '<th scope="col">Call</th>' in page and '<td class="n">0.40</td>' in page
    assert "bad-4" in page and "bad-5" not in page and HOSTILE[0] not in page


def test_a_retry_adds_up_what_attempts_of_each_stage_have_cost(web: Web):
    page = web.get("/act/retry?state=failed").text
    # Of ten scans, two are made again, at 0.10 each; of eight prices seven, at 0.40 each.
    assert "Expected cost: <strong>about 3.00, by what attempts of each stage have cost on average</strong>" in page
    page = web.get("/act/retry?state=failed&pipeline=shop&stage=scan").text
    assert "<strong>about 0.20, by what attempts of this stage have cost on average</strong>" in page
    assert samples(page) == 2


def test_a_retry_of_what_has_never_cost_anything_says_nothing_of_money(web: Web):
    assert "Expected cost" not in web.get("/act/retry?state=done&stage=shelve").text
    assert "Expected cost" not in web.get("/act/cancel").text


def test_a_preview_that_has_not_counted_everything_says_that_it_costs_more(web: Web, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(actions, "PREVIEWED", 2)
    page = web.get("/act/retry?state=failed&stage=price").text
    assert "<strong>2+</strong>" in page and "<strong>more than 0.80, by what" in page


def test_a_preview_that_found_nothing_yet_does_not_know_the_cost(web: Web, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(item_pages, "SEARCHED", 1)
    page = web.get("/act/retry?state=failed&error=torn-2").text
    assert "Expected cost: <strong>not known: choose a stage</strong>" in page


def test_a_reprocess_shows_five_of_its_plan_with_why_and_their_cost(web: Web):
    page = web.get("/act/reprocess?pipeline=shop").text
    assert samples(page) == SAMPLES
    assert '<th scope="col">Why</th>' in page and "version" in page and '<td class="n">0.10</td>' in page


def test_a_delete_shows_five_items(web: Web):
    page = web.get("/act/delete?key=bad-*").text
    assert samples(page) == SAMPLES and "Expected cost" not in page
