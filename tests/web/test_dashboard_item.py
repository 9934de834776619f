"""The page of an item: why it does not run, its stages, values and paid calls, and what can be done to it from there."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from holdfast import Context, Holdfast, Item, Pipeline
from holdfast.answers.json_of import json_of
from holdfast.model.key_pattern import exactly
from holdfast.program_file import load
from holdfast.web import Access
from holdfast.worker import Settings
from tests.support.mother import ROOT
from tests.support.waiting import wait_for
from tests.web.conftest import HOSTILE, Web, hidden_fields
from tests.web.test_dashboard_pages import lines

pytestmark = pytest.mark.req("P17")

#: The process dies in the first paid call, after another one was recorded and content was kept.
SHOP = """
import os, pathlib
from holdfast import Pipeline

shop = Pipeline("shop")
calls = pathlib.Path(__file__).with_name("calls")


@shop.stage()
def scan(item, ctx):
    page = ctx.keep(b"<script>alert(1)</script>", name="page.html")
    return {"page": page, "text": "A" * 40_000, "said": item.data["said"]}


@shop.stage(after=scan)
def charge(item, ctx):
    price = ctx.once("price", lambda: 40, cost="0.001")
    return ctx.once("pay it", pay, price, cost="0.40", on_doubt="hold")


def pay(price):
    with calls.open("a") as out:
        out.write("call\\n")
    if calls.stat().st_size <= 5:
        os.kill(os.getpid(), 9)
    return {"paid": price}
"""

KEY = "it's <b> & [1] *"


@dataclass
class Shop:
    url: str
    folder: Path
    specs: Any

    def open(self) -> Holdfast:
        return Holdfast(self.url, self.specs, blobs=str(self.folder / "kept"), create=False)

    def asked(self, question: Callable[[Holdfast], Any]) -> Any:
        with self.open() as app:
            return question(app)


@pytest.fixture
def shop(url: str, tmp_path: Path) -> Shop:
    """One item that is on hold, because a call of it is in doubt."""
    (tmp_path / "shop.py").write_text(SHOP)
    kept = str(tmp_path / "kept")
    program = load(str(tmp_path / "shop.py"), url)
    with Holdfast(url, program.specs, blobs=kept) as app:
        app.add("shop", [{"key": KEY, "said": list(HOSTILE), "password": "hunter2-hunter2"}])
    command = [sys.executable, "-m", "holdfast", "run", "shop.py", "--store", url]
    environment = {"PATH": "", "PYTHONPATH": str(ROOT), "HOLDFAST_BLOBS": kept}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    made = Shop(url, tmp_path, program.specs)
    made.asked(lambda app: app.run())
    return made


@pytest.fixture
def web(shop: Shop, serve: Callable[..., Web]) -> Web:
    return serve(shop.open)


def address(path: str, **more: str) -> str:
    return path + "?" + "&".join(f"{name}={quoted(value)}" for name, value in {"key": KEY, **more}.items())


def quoted(text: str) -> str:
    return quote(text, safe="")


def links(html: str) -> list[str]:
    return [unescape(one) for one in re.findall(r'href="([^"]*)"', html)]


def test_the_answers_are_those_of_the_app(web: Web, shop: Shop):
    why, item = shop.asked(lambda app: (app.why(KEY), app.show(KEY).without_secrets()))
    assert web.get(address("/item.json")).json() == {"why": json_of(why), "item": item.json()}
    found = lines(web.get(address("/item.csv")).text)
    assert [(one["stage"], one["state"], one["cost"]) for one in found] == [
        ("scan", "done", "0"),
        ("charge", "on_hold", "0.001"),
    ]
    assert web.get(address("/value.json", part="memo", stage="charge", name="price")).json() == {"value": 40}


def test_a_page_begins_with_why_and_shows_stages_calls_and_history(web: Web):
    page = web.get(address("/item", pipeline="shop")).text
    assert page.index("is on hold") < page.index("Stages") < page.index("Paid calls") < page.index("History")
    for text in ("idempotency key", "in doubt", "price", "0.001", "answer", "added", "Settle…", "Forget…"):
        assert text in page, text
    assert len(page) < 100_000


def test_an_item_that_is_not_there_and_a_missing_key_are_said(web: Web):
    assert "Give the key of an item" in web.get("/item").text
    assert "there is no item" in web.get("/item?key=nobody").text
    assert web.get("/item?key=nobody").status_code == 400
    assert web.get(address("/value", part="result")).status_code == 400
    assert web.get(address("/value", part="result", stage="nothing")).status_code == 400
    assert web.get(address("/value", part="wrong")).status_code == 400
    assert "no such memo" in web.get(address("/value", part="memo", stage="charge", name="x")).text


@pytest.mark.fault(76)
def test_hostile_texts_and_secrets_of_an_item_stay_harmless(web: Web):
    for path in ("/item", "/value", "/download/value", "/item.json"):
        found = web.get(address(path))
        assert found.status_code == 200, path
        assert "hunter2" not in found.text, path
        if "json" not in path and "download" not in path:
            assert "<script>alert" not in found.text and "<img src=x" not in found.text, path
            assert "\u202e" not in found.text and "62615533" not in found.text, path


def test_a_large_value_is_cut_and_opened_in_parts(web: Web):
    page = web.get(address("/item")).text
    assert "A" * 400 not in page
    [opened] = [one for one in links(page) if one.startswith("./value?") and "part=result" in one]
    seen, path = "", opened.removeprefix(".")
    while path:
        found = web.get(path).text
        assert len(found) < 100_000
        seen += unescape(found.split('aria-label="Value">')[1].split("</pre>")[0])
        more = re.findall(r'href="\.(/value\?[^"]*)" rel="next"', found)
        path = unescape(more[0]) if more else ""
    assert '"text": "' + "A" * 40_000 + '"' in seen
    assert seen.startswith("{") and seen.endswith("}")


def test_a_value_is_saved_and_never_rendered(web: Web, shop: Shop):
    found = web.get(address("/download/value", part="result", stage="scan"))
    assert found.json() == shop.asked(lambda app: app.show(KEY).stage("scan").result)
    assert found.headers["content-disposition"].startswith('attachment; filename="it_s__b_____1___')
    assert found.headers["content-type"] == "application/octet-stream"
    assert found.headers["x-content-type-options"] == "nosniff"


def test_kept_content_is_downloaded_through_a_value_that_refers_to_it(web: Web):
    page = web.get(address("/item")).text
    [saved] = [one for one in links(page) if "download/blob" in one]
    assert "page.html" in page and "25 bytes" in page and "text/html" in page
    found = web.get(saved.removeprefix("."))
    assert found.content == b"<script>alert(1)</script>"
    assert found.headers["content-disposition"] == "attachment; filename=\"page.html\"; filename*=UTF-8''page.html"
    assert found.headers["content-type"] == "application/octet-stream"
    assert found.headers["x-content-type-options"] == "nosniff"
    elsewhere = saved.removeprefix(".").replace("part=result", "part=data")
    assert web.get(elsewhere).status_code == 404, "only what the value refers to"


def test_content_that_is_gone_is_said(web: Web, shop: Shop):
    [saved] = [one for one in links(web.get(address("/item")).text) if "download/blob" in one]
    for file in (shop.folder / "kept").rglob("*"):
        if file.is_file():
            file.unlink()
    assert web.get(saved.removeprefix(".")).status_code == 404


def test_who_holds_a_stage_and_how_far_it_is_stands_in_the_answer_and_on_the_page(url: str, serve: Callable[..., Web]):
    pipeline = Pipeline("slow", store=url)
    go_on = threading.Event()

    @pipeline.stage()
    def read(item: Item, ctx: Context) -> int:
        ctx.progress(3, 4, "three of four")
        assert go_on.wait(120)
        return 1

    with Holdfast(url, [pipeline.spec]) as app:
        app.add("slow", ["x"])
        worker = app.worker(Settings(name="ann", lease_seconds=12, poll_seconds=0.05))
        running = threading.Thread(target=worker.run)
        running.start()
        try:
            wait_for(lambda: (lease := app.show("x").stages[0].lease) is not None and lease.progress is not None)
            lease = app.show("x").stages[0].lease
            assert lease is not None and lease.progress is not None
            assert (lease.worker, lease.attempt, lease.progress.done) == ("ann", 1, 3)
            page = serve(url).get("/item?key=x").text
            assert "ann" in page and "three of four" in page
            assert re.search(r'max="4(\.0)?" value="3(\.0)?"', page)
        finally:
            go_on.set()
            worker.stop()
            running.join()
        assert app.show("x").stages[0].lease is None


# What can be done -----------------------------------------------------------------------------------------------------


def settle_form(web: Web) -> dict[str, str]:
    [where] = {one for one in links(web.get(address("/item")).text) if one.startswith("./settle")}
    return web.form(where.removeprefix("."))


@pytest.mark.req("V4")
def test_a_call_in_doubt_is_settled_once_under_the_persons_name(web: Web, shop: Shop):
    form = settle_form(web)
    done = web.post("/settle", {**form, "decided": "not_charged", "reason": "looked it up"})
    assert done.status_code == 303
    assert done.headers["location"].startswith("item?pipeline=shop&key=")
    assert web.get("/" + done.headers["location"]).status_code == 200
    [event] = shop.asked(lambda app: [one for one in app.history(KEY) if one.event == "resolved"])
    assert (event.data["by"], event.data["reason"], event.data["decided"]) == ("ada", "looked it up", "not charged")
    again = web.post("/settle", {**form, "decided": "charged", "amount": "1"})
    assert again.status_code in (303, 400)
    assert shop.asked(lambda app: sum(one.amount for one in app.calls(KEY) if one.name == "pay it")) == 0
    shop.asked(lambda app: app.run())
    assert shop.asked(lambda app: app.show(KEY).status) == "done"


@pytest.mark.req("V4")
def test_a_call_in_doubt_gets_its_answer_and_its_amount(web: Web, shop: Shop):
    answer = {"decided": "charged", "amount": "0.35", "answer": '{"paid": 40}'}
    assert web.post("/settle", {**settle_form(web), **answer}).status_code == 303
    shop.asked(lambda app: app.run())
    item = shop.asked(lambda app: app.show(KEY))
    assert item.stage("charge").result == {"paid": 40}
    assert str(item.stage("charge").cost) == "0.351"


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"decided": "charged"},
        {"decided": "charged", "amount": "much"},
        {"decided": "charged", "answer": "no json"},
        {"decided": "not_charged", "amount": "1"},
        {"decided": "not_charged", "request": "x"},
    ],
)
def test_half_a_decision_is_refused(web: Web, shop: Shop, given: dict[str, str]):
    assert web.post("/settle", {**settle_form(web), **given}).status_code == 400
    assert shop.asked(lambda app: app.why(KEY).reason) == "in_doubt"


def test_settling_needs_the_right_and_the_token_of_the_session(web: Web, shop: Shop, serve: Callable[..., Web]):
    form = {**settle_form(web), "decided": "not_charged"}
    assert web.post("/settle", {**form, "form_token": "x"}).status_code == 403
    reader = serve(shop.open, access=lambda request: Access("eve", verbs=()))
    page = reader.get(address("/item")).text
    assert "Settle…" not in page and "Forget…" not in page and "Retry…" not in page
    where = "/settle?" + "&".join(f"{name}={quoted(form[name])}" for name in ("pipeline", "key", "stage", "name"))
    assert reader.get(where).status_code == 403
    assert reader.post("/settle", form).status_code == 403
    assert shop.asked(lambda app: app.why(KEY).reason) == "in_doubt"


def test_one_answer_is_forgotten_from_the_page_of_its_item(web: Web, shop: Shop):
    [where] = [one for one in links(web.get(address("/item")).text) if "act/forget" in one and "memo=price" in one]
    preview = web.get(where.removeprefix(".")).text
    assert "<strong>1</strong> recorded answers of paid calls (1 shop/charge)" in preview
    assert web.post("/act/forget", {**hidden_fields(preview), "reason": "wrong"}).status_code == 303
    memos = shop.asked(lambda app: {one.name: one.state for one in app.memos(KEY)})
    assert memos == {"price": "rejected", "pay it": "intended"}


def test_back_from_a_preview_leads_to_a_list_also_where_it_cannot_be_narrowed_by_all_of_it(web: Web):
    previewed = [one for one in links(web.get(address("/item")).text) if "act/forget" in one and "memo=price" in one]
    for where in (
        previewed[0].removeprefix("."),
        "/act/forget?memo=none+of+these&older_than=2d",
        "/act/retry?key=walden",
    ):
        [back] = re.findall(r'<a href="\.\./([^"]*)">Back</a>', web.get(where).text)
        assert web.get(f"/{unescape(back)}").status_code == 200, back


def test_one_stage_is_retried_and_cancelled_from_the_page_of_its_item(web: Web, shop: Shop):
    page = web.get(address("/item")).text
    found = [one for one in links(page) if "act/" in one and "state=" in one]
    assert [one.partition("?")[0] for one in found] == ["./act/retry", "./act/retry", "./act/cancel"]
    assert all(f"key={quoted(exactly(KEY))}" in one.replace("+", "%20") for one in found)
    form = web.form(found[2].removeprefix("."))
    assert web.post("/act/cancel", form).status_code == 303
    assert shop.asked(lambda app: app.show(KEY).stage("charge").state) == "cancelled"


def test_an_item_is_deleted_only_by_typing_the_number(web: Web, shop: Shop):
    form = web.form(address("/act/delete", key=exactly(KEY)))
    assert form["count"] == "1"
    for typed in ({}, {"typed": "2"}, {"typed": ""}, {"count": "", "typed": ""}):
        assert web.post("/act/delete", {**form, **typed}).status_code == 400
    assert len(shop.asked(lambda app: app.items())) == 1
    first = web.post("/act/delete", {**form, "typed": "1", "reason": "gone"})
    again = web.post("/act/delete", {**form, "typed": "1"})
    assert first.headers["location"] == again.headers["location"] == "../actions/1"
    assert len(shop.asked(lambda app: app.items())) == 0
    assert shop.asked(lambda app: [(one.kind, one.by, one.reason) for one in app.actions()]) == [
        ("delete", "ada", "gone")
    ]


def test_a_verb_that_cannot_follow_a_filter_of_the_list_refuses_unless_rows_say_it(web: Web, shop: Shop):
    form = web.form("/items?state=on_hold")
    refused = web.post("/act/forget", form)
    assert refused.status_code == 400 and "cannot be limited by state" in refused.text
    row = unescape(web.get("/items?state=on_hold").text.split('name="select" value="')[1].split('"')[0])
    preview = web.post("/act/forget", {**form, "select": row})
    assert "<strong>1</strong> recorded answers" in preview.text
    assert hidden_fields(preview.text)["stage"] == "charge"


def test_a_rerun_is_shown_with_what_it_has_changed(url: str, serve: Callable[..., Web]):
    def books(version: str, said: str) -> Pipeline[Any]:
        pipeline = Pipeline("books", store=url)

        @pipeline.stage(version=version, keep_previous=True)
        def summarise(item: Item, ctx: Context) -> dict[str, Any]:
            return {"title": "Emma", "text": f"{'A long sentence. ' * 50}It is {said}. {'Another one. ' * 50}"}

        return pipeline

    first = books("1", "long")
    first.add(["emma"])
    first.run()
    second = books("2", "<script>short")
    with Holdfast(url, [second.spec]) as app:
        app.reprocess("books")
        app.run()
    web = serve(url)
    page = web.get("/item?pipeline=books&key=emma").text
    shown = page[page.index("<pre") : page.index("</pre>")]
    [went], [came] = (re.findall(rf'<span class="{name}">(.*?)</span>', shown) for name in ("failed", "done"))
    assert "It is long." in went and "It is &lt;script&gt;short." in came
    assert "Emma" not in went + came and "Previous result, version <bdi>1</bdi>" in page
    assert "It is long." in web.get("/value?pipeline=books&key=emma&part=previous&stage=summarise").text
    with Holdfast(url, [second.spec]) as app:
        app.reprocess("books", stale_only=False)
        app.run()
    # Another one: answers are kept for a moment.
    assert "Nothing has changed." in serve(url).get("/item?pipeline=books&key=emma").text
