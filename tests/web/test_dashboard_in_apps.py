"""The dashboard inside applications: the programs of dashboard.md and web-apps.md as they are printed, with the real frameworks
and logins."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from holdfast import Holdfast
from tests.support.mother import ROOT
from tests.web.conftest import hidden_fields
from tests.web.test_web_apps import serving, write_program

pytestmark = pytest.mark.req("P17")

GUIDE = (ROOT / "docs" / "guide" / "dashboard.md").read_text(encoding="utf-8")
SERVE = ["uvicorn", "--timeout-graceful-shutdown", "3", "--port", "PORT", "--log-level", "warning"]


def retry(client: httpx.Client) -> Any:
    """Retry what has failed, as the form of the page does."""
    page = client.get("/holdfast/act/retry?state=failed")
    if page.status_code != 200:
        return page
    return client.post("/holdfast/act/retry", data=hidden_fields(page.text))


def retried_by(url: str) -> list[str | None]:
    with Holdfast(url, create=False) as app:
        return [one.by for one in app.actions()]


MAKE_USERS = """
import django_dashboard
from django.contrib.auth.models import User
from django.core.management import call_command

call_command("migrate", verbosity=0)
User.objects.create_superuser("ada", password="ada's")
User.objects.create_user("grace", password="grace's", is_staff=True)
User.objects.create_user("eve", password="eve's")
"""


def log_in_to_django(client: httpx.Client, name: str) -> Any:
    client.cookies.clear()
    page = client.get("/admin/login/?next=/holdfast/")
    [token] = set(re.findall(r'name="csrfmiddlewaretoken" value="([^"]*)"', page.text))
    form = {"csrfmiddlewaretoken": token, "username": name, "password": f"{name}'s", "next": "/holdfast/"}
    return client.post("/admin/login/?next=/holdfast/", data=form)


def test_beside_django_people_enter_with_their_login_and_rights(shelf: str, tmp_path: Path):
    write_program(tmp_path, "django_dashboard.py")
    given = {"HOLDFAST_URL": shelf, "SHOP_FILE": str(tmp_path / "shop.db"), "SECRET_KEY": "a secret of the tests"}
    (tmp_path / "make_users.py").write_text(MAKE_USERS)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **given}
    subprocess.run([sys.executable, "make_users.py"], cwd=tmp_path, env=environment, check=True)
    with serving(tmp_path, [*SERVE, "django_dashboard:application"], given, ready="/admin/login/") as client:
        stranger = client.get("/holdfast/items")
        assert (stranger.status_code, stranger.headers["location"]) == (303, "/admin/login/?next=%2Fholdfast%2F")
        client.cookies.set("sessionid", "made-up")
        assert client.get("/holdfast/").status_code == 303
        log_in_to_django(client, "eve")
        assert client.get("/holdfast/").status_code == 303, "she is no staff"
        entered = log_in_to_django(client, "grace")
        assert (entered.status_code, entered.headers["location"]) == (302, "/holdfast/")
        assert "read only" in client.get("/holdfast/").text
        assert retry(client).status_code == 403
        assert retried_by(shelf) == []
        with sqlite3.connect(tmp_path / "shop.db") as connection:
            connection.execute("UPDATE auth_user SET is_staff = 0 WHERE username = 'grace'")
        connection.close()
        assert client.get("/holdfast/").status_code == 403, "and she is none any more"
        log_in_to_django(client, "ada")
        assert "ada" in client.get("/holdfast/").text
        assert retry(client).status_code == 303
        # A tab is open when the server is stopped.
        stream = client.send(client.build_request("GET", "/holdfast/overview.live"), stream=True)
        assert stream.status_code == 200
    assert retried_by(shelf) == ["ada"]


def test_beside_flask_people_enter_with_the_signed_cookie_of_their_session(shelf: str, tmp_path: Path):
    write_program(tmp_path, "flask_dashboard.py")
    given = {"HOLDFAST_URL": shelf, "SECRET_KEY": "a secret of the tests", "ADAS_PASSWORD": "ada's"}
    with serving(tmp_path, [*SERVE, "flask_dashboard:application"], given) as client:
        for made_up in ("", "x", "eyJ1c2VyIjoiYWRhIn0.ZZZZZZ.c2lnbmF0dXJl"):
            client.cookies.set("session", made_up)
            stranger = client.get("/holdfast/")
            assert (stranger.status_code, stranger.headers["location"]) == (303, "/login")
        client.cookies.clear()
        assert client.post("/login", data={"user": "ada", "password": "x"}).status_code == 403
        client.post("/login", data={"user": "guest", "password": "guest"})
        assert "read only" in client.get("/holdfast/").text
        assert retry(client).status_code == 403
        assert client.post("/login", data={"user": "ada", "password": "ada's"}).headers["location"] == "/holdfast/"
        assert retry(client).status_code == 303
        assert client.get("/status").json() == {"open": True}
    assert retried_by(shelf) == ["ada"]


def test_inside_fastapi_it_is_mounted_under_a_prefix(shelf: str, tmp_path: Path):
    write_program(tmp_path, "fastapi_dashboard.py")
    with serving(tmp_path, [*SERVE, "fastapi_dashboard:app"], {"HOLDFAST_URL": shelf}) as client:
        assert client.get("/holdfast/").status_code == 403
        client.headers["x-user"] = "ada"
        assert retry(client).status_code == 303
        assert client.get("/holdfast/act/cancel?state=failed").status_code == 403
    assert retried_by(shelf) == ["ada"]


def test_inside_starlette_it_is_mounted_under_a_prefix(shelf: str, tmp_path: Path):
    write_program(tmp_path, "starlette_dashboard.py", GUIDE)
    program = (tmp_path / "starlette_dashboard.py").read_text().replace("sqlite:///books.db", shelf)
    found: dict[str, Any] = {}
    exec(compile(program, "starlette_dashboard.py", "exec"), found)
    with TestClient(found["app"], base_url="http://localhost", follow_redirects=False) as client:
        assert client.get("/holdfast/").headers["location"] == "/login"
        client.headers["x-user"] = "guest"
        for host, status in (("books.example", 200), ("evil.example", 421)):
            assert client.get("/holdfast/", headers={"host": host}).status_code == status
        assert "read only" in client.get("/holdfast/").text
        assert retry(client).status_code == 403
        client.headers["x-user"] = "ada"
        assert retry(client).status_code == 303
    assert retried_by(shelf) == ["ada"]
