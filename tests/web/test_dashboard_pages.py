"""Pages of the dashboard: each is a question of the app, as HTML, JSON and CSV, at an address that is the query."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

import holdfast.web
from holdfast import Context, Holdfast, Item, Pipeline
from holdfast.answers.alert import AlertDelivery, AlertRuleStatus, AlertStatus
from holdfast.answers.event import EventPage, LoggedEvent
from holdfast.answers.json_of import json_of
from holdfast.answers.text_tables import iso
from holdfast.answers.worker import Workers
from holdfast.model.log_lines import printable
from holdfast.web import Access, dashboard, live
from holdfast.web.filters import read_query
from holdfast.web.json_and_csv import as_csv, readable
from holdfast.web.pages import actions, alerts, pages, workers
from holdfast.web.rendering import shown, told
from tests.support.together import at_once
from tests.web.conftest import HOSTILE, Web, books

pytestmark = pytest.mark.req("P17")

STATIC = Path(holdfast.web.__file__).parent / "static"


def lines(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_every_page_renders_and_names_itself_in_the_navigation(web: Web):
    for page in pages():
        if "{" not in page.path:
            found = web.get(f"/{page.path}")
            assert found.status_code == 200, page.name
            assert f"<title>{page.title} · holdfast</title>" in found.text
            assert found.text.count('aria-current="page"') == 1


def test_the_json_of_a_page_is_the_answer_of_the_app(web: Web, shelf: str):
    with Holdfast(shelf, create=False) as app:
        failed, limits, status = app.items(state="failed"), app.limits(), app.status()
        acts = app.actions()
    assert web.get("/items.json?state=failed").json() == failed.json()
    found = web.get("/overview.json").json()
    assert found["limits"] == json_of(limits)
    assert found["status"] == status.json()
    assert web.get("/actions.json").json() == acts.json() == []


def test_the_csv_of_a_page_has_the_same_rows_and_no_formula(web: Web, shelf: str):
    with Holdfast(shelf, create=False) as app:
        every = app.items()
    found = lines(web.get("/items.csv").text)
    assert [one["key"].removeprefix("'") for one in found] == [printable(one.key) for one in every]
    assert "'=1+1" in {one["key"] for one in found}
    counted = {one["stage"]: one for one in lines(web.get("/overview.csv").text)}
    assert (counted["extract"]["failed"], counted["extract"]["pending"]) == ("2", "1")


def test_filters_narrow_and_are_shown_as_chips_that_can_be_removed(web: Web):
    found = web.get("/items?state=failed&key=bad-*").text
    assert "bad-1" in found and "walden" not in found
    assert 'href="./items?key=bad-%2A" aria-label="Remove the filter State"' in found
    assert 'href="./items?state=failed" aria-label="Remove the filter Key"' in found
    assert "No item matches." in web.get("/items?state=failed&key=walden").text


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("state=faild", "failed"),
        ("colour=red", "there is no filter"),
        ("after=x", "after"),
        ("pipeline=a&pipeline=b", "once"),
        ("key=%00", "such a character"),
        ("key=" + "a" * 5000, "longer than"),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_allowed(web: Web, query: str, said: str):
    found = web.get(f"/items?{query}")
    assert found.status_code == 400
    assert said in found.text
    as_json = web.get(f"/items.json?{query}")
    assert (as_json.status_code, said in as_json.json()["error"]) == (400, True)


def test_the_csv_of_a_page_that_has_no_lines_has_its_names(url: str, serve: Callable[..., Web]):
    Holdfast(url).close()
    web = serve(url)
    for page in pages():
        assert page.columns, page.name
        if "{" not in page.path and page.walk is None:
            assert web.get(f"/{page.path}.csv").text.splitlines() == [",".join(page.columns)], page.name


def test_the_csv_of_a_page_has_every_name_of_its_lines(web: Web, shelf: str):
    with Holdfast(shelf, create=False) as app:
        app.cancel(key="late", by="ada")
        for page in pages():
            if page.ask is None:
                continue
            number = app.actions()[0].id if page.name == "action" else app.newest_events().events[0].id
            key = {"item": "key=bad-1", "value": "key=bad-1"}.get(page.name, "")
            query = read_query(page.name, page.filters, parse_qsl(key), {"number": number})
            for row in page.rows(page.ask(app, query)):
                assert set(json_of(row)) <= set(page.columns), page.name


def test_the_csv_of_limits_has_what_is_paused(web: Web, shelf: str):
    with Holdfast(shelf, create=False) as app:
        app.pause("books/extract", reason="too many", by="ada")
    found = {(one["kind"], one["name"]): one for one in lines(web.get("/limits.csv").text)}
    assert [*found] == [("pipeline", "books"), ("stage", "books/extract"), ("stage", "books/chunk")]
    stage = found["stage", "books/extract"]
    assert (stage["paused"], stage["reason"], bool(stage["paused_at"])) == ("true", "too many", True)
    assert found["pipeline", "books"]["paused"] == "false"


def test_the_csv_of_workers_has_those_that_died_and_that_of_alerts_its_rules():
    at = datetime(2026, 2, 1, tzinfo=UTC)
    died = LoggedEvent(
        7, at, "worker_died", None, None, None, None, None, {"worker": "w-1", "name": "ada", "why": "silent"}
    )
    [dead] = lines(as_csv(workers.page.columns, workers.rows(workers.WorkersPage(Workers(), EventPage((died,), None)))))
    assert (dead["id"], dead["name"], dead["alive"], dead["why"]) == ("w-1", "ada", "false", "silent")
    assert dead["died_at"] == iso(at)
    rule = AlertRuleStatus("failures", "1 × failed, by log", True, "books", at, None, 2)
    sent = AlertDelivery("failures", "log", "delivered", at, None, 1, 3, "3 failed", None)
    first, second = lines(as_csv(alerts.page.columns, alerts.rows(AlertStatus((rule,), (sent,)))))
    assert (first["kind"], first["alert"], first["queued"], first["looked_at"]) == ("rule", "failures", "2", iso(at))
    assert (second["kind"], second["state"], second["text"]) == ("notification", "delivered", "3 failed")


class Fields(HTMLParser):
    """What the form of filters would send, if nobody changed it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.sent: list[tuple[str, str]] = []
        self._select = ""
        self.feed(page[page.index('<form class="filters"') :].partition("</form>")[0])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "select":
            self._select = given["name"] or ""
        elif tag == "option" and "selected" in given:
            self.sent.append((self._select, given["value"] or ""))
        elif tag == "input" and given["value"]:
            self.sent.append((given["name"] or "", given["value"]))


def test_the_form_of_filters_keeps_every_value_in_force(web: Web):
    given = [("state", "failed"), ("state", "exhausted"), ("key", "bad*"), ("key", "emma"), ("key", '"><x>')]
    page = web.get("/items", params=given).text
    assert sorted(Fields(page).sent) == sorted(given)
    assert "State, and 1 more" in page and "Key, and 2 more" in page
    assert Fields(web.get("/costs?by=model&by=day&pipeline=books").text).sent == [
        ("by", "model"),
        ("by", "day"),
        ("pipeline", "books"),
    ]


def test_the_bar_of_an_action_has_no_length_where_not_everything_was_counted(
    web: Web, shelf: str, monkeypatch: pytest.MonkeyPatch
):
    with Holdfast(shelf, create=False) as app:
        app.cancel(key="late", by="ada")
        done = app.action(app.actions()[0].id)
    for more, bar in ((False, '<progress max="1" value="1" '), (True, "<progress aria-label")):
        shown = replace(done, state="open", preview=replace(done.preview, more=more))
        monkeypatch.setattr(Holdfast, "action", lambda self, number, after="", shown=shown: shown)
        web.app.questions.forget()
        assert bar in web.get(f"/actions/{done.id}").text


def test_the_list_of_actions_goes_on_and_an_action_leads_to_its_items(
    web: Web, shelf: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(actions, "PAGE_SIZE", 2)
    with Holdfast(shelf, create=False) as app:
        app.add("books", ["later", "latest"])
        for key in ("late", "later", "latest"):
            app.cancel(key=key, by="ada")
        every = [one.id for one in app.actions()]
        assert len(every) == 3
        assert [one.id for one in app.actions(after=every[0], most=1)] == every[1:2]
    assert [one["id"] for one in web.get("/actions.json").json()] == every[:2]
    assert f'href="./actions?after={every[1]}" rel="next"' in web.get("/actions").text
    rest = web.get(f"/actions?after={every[1]}").text
    assert f">cancel {every[2]}</a>" in rest and 'rel="next"' not in rest and "First" in rest
    page = web.get(f"/actions/{every[2]}").text
    assert 'href="../item?pipeline=books&amp;key=late"' in page


def test_a_list_goes_on_after_its_last_entry(url: str, serve: Callable[..., Web]):
    books(url).add([f"k{n:03}" for n in range(130)])
    web = serve(url)
    first = web.get("/items.json").json()
    assert len(first) == 100
    page = web.get("/items?pipeline=books").text
    address = f"./items?pipeline=books&amp;after={first[-1]['cursor'].replace('/', '%2F')}"
    assert f'href="{address}" rel="next"' in page
    rest = web.get(address.replace("&amp;", "&").removeprefix(".").replace("items?", "items.json?")).json()
    assert [one["key"] for one in first + rest] == [f"k{n:03}" for n in range(130)]


@pytest.mark.fault(76)
def test_hostile_texts_stay_texts_in_every_page(web: Web):
    for path in ("/", "/items", "/items?state=failed", "/items?state=done", "/act/retry?state=done"):
        found = web.get(path).text
        assert "<script>alert" not in found, path
        assert "<img src=x" not in found, path
        assert "\u202e" not in found, path
        assert "62615533" not in found, path
    page = web.get("/items").text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "\\u202ereversed" in page
    assert f"<bdi>{HOSTILE[5]}</bdi>" in page


def test_json_for_people_has_letters_of_every_script_and_no_character_that_hides():
    hostile = {
        "größe": "Zürich كتاب 本 😀",
        "bidi": "a\u202eb\u2066c\u200f",
        "rest": "\x00\x1b\x7f\xa0\u2028\ud800\U000e0041 \n \\n",
    }
    for indent in (None, 2):
        text = readable(hostile, indent)
        assert "größe" in text and "Zürich كتاب 本 😀" in text
        assert "a\\u202eb\\u2066c\\u200f" in text
        assert all(one.isprintable() for one in text.split("\n"))
        assert json.loads(text) == hostile


def test_data_in_any_script_can_be_read_and_downloaded(url: str, serve: Callable[..., Web]):
    pipeline = books(url)
    pipeline.add([{"key": "zürich", "title": "Schöne Grüße \u202e 本"}])
    web = serve(url)
    for path in ("/item?key=zürich", "/value?key=zürich"):
        page = web.get(path).text
        assert "Schöne Grüße \\u202e 本" in page and "\u202e" not in page, path
    saved = web.get("/download/value?key=zürich").content.decode()
    assert "Schöne Grüße" in saved and json.loads(saved)["title"] == "Schöne Grüße \u202e 本"


def test_what_is_no_text_is_said_in_words_and_not_in_python():
    assert told({"failures": 3, "probe_after": "1m", "more": {"a_b": [1, None]}}) == (
        "failures 3, probe after 1m, more (a b 1, -)"
    )
    assert (told({}), told("{'a': 1}"), told(0.5)) == ("nothing", "{'a': 1}", "0.5")
    assert (told([]), told(True), told({"again": False})) == ("nothing", "yes", "again no")


def test_a_breaker_is_said_in_words_on_overview_and_limits(url: str, serve: Callable[..., Web]):
    pipeline = Pipeline("books", store=url, resources={"gemini": {"breaker": {"failures": 3, "probe_after": "1m"}}})

    @pipeline.stage(resource="gemini")
    def extract(item: Item, ctx: Context) -> int:
        return 1

    pipeline.add(["walden"])
    web = serve(url)
    for path in ("/", "/limits"):
        assert "failures 3" in web.get(path).text and "{" not in web.get(path).text, path
    assert "<h1>Change limits of gemini?</h1>" in web.get("/change/tune?name=gemini&kind=resource").text


def test_a_long_text_is_cut():
    assert len(shown("A" * 5_000_000)) < 500
    assert "5,000,000 characters" in shown("A" * 5_000_000)


def test_a_dashboard_works_under_any_prefix_with_relative_addresses(shelf: str):
    inner = dashboard(shelf, access=lambda request: Access("ada"))
    outer = Starlette(routes=[Mount("/deep/holdfast", inner)])
    with TestClient(outer) as client:
        first = client.get("/deep/holdfast")
        assert first.url.path == "/deep/holdfast/"
        assert "Path=/deep/holdfast/" in first.headers["set-cookie"]
        page = client.get("/deep/holdfast/act/retry?state=failed")
        assert 'href="../items"' in page.text and 'href="../static/holdfast.css"' in page.text
        assert client.get("/deep/holdfast/static/holdfast.css").status_code == 200
        for path in ("/", "/items", "/act/retry?state=failed"):
            text = client.get(f"/deep/holdfast{path}").text
            assert 'href="/' not in text and 'src="/' not in text and 'action="/' not in text
    inner.close()


def test_an_access_function_may_be_async_refuse_or_send_elsewhere(shelf: str, serve: Callable[..., Web]):
    async def later(request: object) -> Access:
        return Access("grace", verbs=())

    assert "read only" in serve(shelf, access=later).get("/").text
    assert serve(shelf, access=lambda request: None).get("/items.json").status_code == 403
    moved = serve(shelf, access=lambda request: Access(redirect="/login")).get("/", follow_redirects=False)
    assert (moved.status_code, moved.headers["location"]) == (303, "/login")


def test_many_viewers_of_one_page_ask_once(web: Web):
    web.app.questions.forget()
    before = web.app.questions.count
    held = threading.Event()
    asked = threading.Semaphore(0)
    answer = web.app.questions._answer

    def slow(question):  # type: ignore[no-untyped-def]
        asked.release()
        assert held.wait(30)
        return answer(question)

    web.app.questions._answer = slow  # type: ignore[method-assign]
    release = threading.Thread(target=lambda: (asked.acquire(timeout=30), held.set()))
    release.start()
    found = at_once(*(lambda: web.get("/items").status_code for _ in range(5)))
    release.join()
    assert found == [200] * 5
    assert web.app.questions.count - before == 1


def test_a_page_that_gets_no_answer_in_time_says_so(shelf: str, serve: Callable[..., Web]):
    web = serve(shelf, question_seconds=0.05)
    held = threading.Event()
    answer = web.app.questions._answer
    web.app.questions._answer = lambda question: held.wait(30) and answer(question)  # type: ignore[assignment,method-assign,return-value]
    try:
        found = web.get("/")
        assert found.status_code == 503
        assert "gave up" in found.text and "narrower filter" in found.text
        assert web.get("/items.json").status_code == 503
    finally:
        held.set()


def test_a_store_that_is_not_there_is_a_page_that_says_so(tmp_path: Path, serve: Callable[..., Web]):
    found = serve(f"sqlite:///{tmp_path / 'none.db'}").get("/")
    assert found.status_code == 503
    assert "none.db" in found.text
    assert not (tmp_path / "none.db").exists()


def test_a_stream_sends_the_part_of_the_page_that_has_changed(web: Web, shelf: str):
    page = web.get("/items?state=cancelled").text
    assert "No item matches." in page
    seen = page.split('data-mark="')[1].split('"')[0]
    with Holdfast(shelf, create=False) as app:
        app.cancel(key="late", by="somebody")
    web.app.questions.forget()
    name, data = asyncio.run(first_event(web, f"state=cancelled&mark={seen}"))
    assert name == "changed"
    assert "late" in data["html"] and "<main" not in data["html"]
    assert data["mark"] != seen
    assert web.app.streams.open == 0


def test_a_stream_says_of_when_the_answer_is_and_that_nothing_has_changed(web: Web):
    page = web.get("/items?state=cancelled").text
    assert re.search(r'<span class="age">as of <time datetime="\d{4}-\d\d-\d\dT', page)
    seen = page.split('data-mark="')[1].split('"')[0]
    web.app.questions.forget()
    before = datetime.now(UTC)
    name, data = asyncio.run(first_event(web, f"state=cancelled&mark={seen}"))
    assert name == "ping"
    assert before <= datetime.fromisoformat(data["at"]) <= datetime.fromisoformat(data["now"]) <= datetime.now(UTC)
    name, data = asyncio.run(first_event(web, "state=cancelled&mark=another"))
    assert name == "changed"
    assert datetime.fromisoformat(data["at"]) >= before


async def first_event(web: Web, query: str) -> tuple[str, dict[str, str]]:
    """What a tab hears first; then it is closed."""
    heard: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def receive() -> dict[str, str]:
        await heard
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        text = message.get("body", b"").decode()
        if text.startswith("event:") and not heard.done():
            heard.set_result(text)

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/items.live",
        "root_path": "",
        "scheme": "http",
        "query_string": query.encode(),
        "headers": [(b"host", b"localhost")],
    }
    await asyncio.wait_for(web.app(scope, receive, send), 60)
    first, second = heard.result().split("\n")[:2]
    return first.removeprefix("event: "), json.loads(second.removeprefix("data: "))


def test_a_reader_that_takes_nothing_is_dropped(web: Web, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(live, "SLOW_READER_SECONDS", 0.05)

    async def stalled() -> int:
        async def receive() -> Any:
            await asyncio.Event().wait()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                await asyncio.Event().wait()

        async def ask() -> Any:
            raise AssertionError("nothing is asked for a reader that takes nothing")

        stream = live.LiveStream(web.app.streams, ask, lambda answered: "", "")
        await asyncio.wait_for(stream({}, receive, send), 60)
        return web.app.streams.open

    assert asyncio.run(stalled()) == 0


def test_script_and_style_stay_small_and_load_nothing_from_outside():
    css, js = ((STATIC / name).read_text() for name in ("holdfast.css", "holdfast.js"))
    assert len(css) + len(js) < 22_500
    assert "http" not in css and "http" not in js
    assert "url(" not in css and "@import" not in css
