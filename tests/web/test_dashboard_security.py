"""What is tried against a dashboard: other sites, other names, other people, and addresses that lead elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast import Holdfast, UsageError
from holdfast.web import dashboard
from holdfast.web.security import HEADERS
from tests.web.browser import served
from tests.web.conftest import Web

pytestmark = pytest.mark.req("P17")

TOKEN = "a-token-that-nobody-guesses"


@pytest.fixture
def locked(shelf: str, serve: Callable[..., Web]) -> Web:
    return serve(shelf, token=TOKEN, name="ada")


def enter(web: Web) -> Any:
    return web.get(f"/?token={TOKEN}")


def acted(url: str) -> bool:
    with Holdfast(url, create=False) as app:
        return bool(app.actions())


def test_a_dashboard_says_who_may_see_it_or_is_not_made(shelf: str):
    with pytest.raises(UsageError, match="access"):
        dashboard(shelf)


def test_every_answer_has_the_headers_that_keep_it_in_its_place(web: Web):
    for path in ("/", "/items.json", "/items.csv", "/nowhere", "/items?state=x", "/static/holdfast.js"):
        found = web.get(path).headers
        assert {name: found[name] for name in HEADERS} == HEADERS, path
    policy = HEADERS["content-security-policy"]
    assert "default-src 'self'" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy


def test_pages_have_no_script_or_style_of_their_own(web: Web):
    for path in ("/", "/items", "/act/retry?state=failed", "/actions"):
        text = web.get(path).text
        assert "<style" not in text and " style=" not in text and " onclick=" not in text
        assert text.count("<script") == 1 and "<script src=" in text


def test_a_token_is_exchanged_for_a_cookie_and_leaves_the_address(locked: Web):
    assert locked.get("/").status_code == 401
    first = locked.get(f"/items?state=failed&token={TOKEN}", follow_redirects=False)
    assert (first.status_code, first.headers["location"]) == (303, "./items?state=failed")
    cookie = first.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and TOKEN not in cookie
    assert locked.get("/items").status_code == 200
    assert TOKEN not in locked.get("/items").text


@pytest.mark.parametrize("token", ["", "x", TOKEN[:-1], TOKEN + "x", "ü", "\ud800"])
def test_a_wrong_token_opens_nothing(locked: Web, token: str):
    found = locked.get("/", params={"token": token.encode("utf-8", "surrogatepass").decode("latin-1")})
    assert found.status_code == 401
    assert "set-cookie" not in found.headers


@pytest.mark.parametrize("cookie", ["x", "x.y", ".", "a.b.c", "x" * 5000])
def test_a_cookie_of_ones_own_making_opens_nothing(locked: Web, cookie: str):
    enter(locked)
    [name] = locked.client.cookies.keys()
    locked.client.cookies.clear()
    assert locked.get("/", headers={"cookie": f"{name}={cookie}"}).status_code == 401


def test_the_cookie_of_an_old_token_is_stale(shelf: str, serve: Callable[..., Web]):
    old, new = serve(shelf, token=TOKEN), serve(shelf, token="the-token-of-another-start")
    enter(old)
    enter_new = new.get("/?token=the-token-of-another-start", follow_redirects=False)
    name = enter_new.headers["set-cookie"].partition("=")[0]
    [value] = old.client.cookies.values()
    new.client.cookies.clear()
    assert new.get("/", headers={"cookie": f"{name}={value}"}).status_code == 401


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 401),
        ("localhost:8421", 401),
        ("127.0.0.1:8421", 401),
        ("[::1]:8421", 401),
        ("192.0.2.7", 401),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("evil.example:80@localhost", 401),
        ("", 421),
        ("[", 421),
    ],
)
def test_only_known_names_reach_a_dashboard_with_a_token(locked: Web, host: str, status: int):
    assert locked.get("/", headers={"host": host}).status_code == status


def test_a_name_can_be_allowed(shelf: str, serve: Callable[..., Web]):
    web = serve(shelf, token=TOKEN, allowed_hosts=["Board.example"])
    assert web.get("/", headers={"host": "board.example:8080"}).status_code == 401
    assert web.get("/", headers={"host": "evil.example"}).status_code == 421


def test_a_dashboard_behind_a_proxy_is_reached_under_the_names_of_its_options(shelf: str, tmp_path: Path):
    with served(shelf, tmp_path, "--allow-host", "books.example", "--allow-host", "reading.example") as address:
        with httpx.Client(base_url=address) as client:
            found = {
                name: client.get("/", headers={"host": name}).status_code
                for name in ("books.example", "reading.example", "evil.example")
            }
    assert found == {"books.example": 401, "reading.example": 401, "evil.example": 421}


@pytest.mark.fault(77)
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost.evil.example"},
        {"origin": "http://localhost:81"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "http://localhost", "sec-fetch-site": "cross-site"},
    ],
)
def test_a_form_of_another_site_changes_nothing(web: Web, shelf: str, headers: dict[str, str]):
    form = web.form("/act/retry?state=failed")
    assert web.post("/act/retry", form, headers=headers).status_code == 403
    assert not acted(shelf)
    own = {"origin": "http://localhost", "sec-fetch-site": "same-origin"}
    assert web.post("/act/retry", form, headers=own).status_code == 303


@pytest.mark.fault(77)
@pytest.mark.parametrize("origin", ["http://127.0.0.1:9999", "http://localhost:81", "http://[", "http://[::1]:81"])
def test_a_form_of_another_port_of_this_machine_changes_nothing_also_where_it_listens_there(
    shelf: str, serve: Callable[..., Web], origin: str
):
    """`holdfast ui` allows the host that it listens on; other users of the machine can listen on its other ports."""
    web = serve(shelf, allowed_hosts=["127.0.0.1", "localhost", "::1", "books.example"])
    form = web.form("/act/retry?state=failed")
    assert web.post("/act/retry", form, headers={"origin": origin}).status_code == 403
    assert not acted(shelf)
    behind_a_proxy = {"origin": "https://books.example", "sec-fetch-site": "same-origin"}
    assert web.post("/act/retry", form, headers=behind_a_proxy).status_code == 303


def test_a_form_without_the_sessions_token_changes_nothing(web: Web, shelf: str, serve: Callable[..., Web]):
    form = web.form("/act/retry?state=failed")
    other = serve(shelf).form("/act/retry?state=failed")
    for wrong in ("", "x", other["form_token"]):
        assert web.post("/act/retry", {**form, "form_token": wrong}).status_code == 403
    assert web.client.post("/act/retry", json=form).status_code == 415
    assert not acted(shelf)


def test_reading_changes_nothing_and_other_methods_are_refused(web: Web, shelf: str):
    form = web.form("/act/retry?state=failed")
    assert web.get("/act/retry", params={**form, "step": "confirm"}).status_code == 400
    assert web.client.post("/items", data=form).status_code == 405
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        assert web.client.request(method, "/act/retry").status_code == 405
    assert web.get("/actions/1/stop").status_code in (404, 405)
    assert not acted(shelf)


@pytest.mark.parametrize(
    "path",
    ["/static/../dashboard.py", "/static/%2e%2e/dashboard.py", "/static/..%2fdashboard.py", "/static//etc/passwd"],
)
def test_no_file_beside_the_static_ones_is_served(web: Web, path: str):
    found = web.get(path)
    assert found.status_code == 404
    assert "import" not in found.text


@pytest.mark.parametrize("path", ["//evil.example/", "//evil.example/%2f..", "/\\evil.example", "/http://evil.example"])
def test_no_address_leads_to_another_site(locked: Web, path: str):
    found = locked.client.get(f"http://localhost{path}?token={TOKEN}", follow_redirects=False)
    assert found.headers.get("location", "./").startswith("./")


def test_a_header_cannot_be_smuggled_in(locked: Web):
    found = locked.get(f"/x%0d%0aset-cookie:a=b?token={TOKEN}&y=%0d%0az", follow_redirects=False)
    assert "\r" not in found.headers["location"] and "\n" not in found.headers["location"]
    assert "a=b" not in found.headers.get("set-cookie", "")
