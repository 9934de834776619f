"""The programs of docs/guide/web-apps.md, as they are printed, with the real frameworks."""

from __future__ import annotations

import os
import re
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from holdfast import Holdfast
from holdfast.store.postgres_address import read_url
from holdfast.store.sqlite_files import file_of
from tests.support.mother import ROOT
from tests.support.own_tables import engine_of
from tests.support.waiting import wait_for

PAGE = (ROOT / "docs" / "guide" / "web-apps.md").read_text(encoding="utf-8")
STUCK_SECONDS = 90.0


def write_program(folder: Path, name: str, page: str = PAGE) -> None:
    """The block that begins with this name, unchanged."""
    [block] = re.findall(rf"^```python\n(# {re.escape(name)}\n.*?)^```$", page, re.DOTALL | re.MULTILINE)
    (folder / name).write_text(block, encoding="utf-8")


@contextmanager
def serving(
    folder: Path, command: list[str], environment: dict[str, str], ready: str = "/status"
) -> Iterator[httpx.Client]:
    """A server on the loopback device, ended as an operator ends it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = folder / "server.log"
    with log.open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", *(word.replace("PORT", str(port)) for word in command)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{folder}", **environment},
            stdout=said,
            stderr=said,
        )
    # A connection for each request: a server may close one after an error.
    limits = httpx.Limits(max_keepalive_connections=0)
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=STUCK_SECONDS, limits=limits)

    def answers() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            return client.get(ready).status_code < 400
        except httpx.ConnectError:
            return False

    try:
        wait_for(answers, STUCK_SECONDS)
        yield client
        process.terminate()
        process.wait(STUCK_SECONDS)
    finally:
        client.close()
        process.kill()


def keys(url: str) -> list[str]:
    with Holdfast(url) as app:
        assert app.check() == []
        return [one.key for one in app.items()]


def result(url: str, key: str) -> Any:
    with Holdfast(url) as app:
        return app.show(key).stage("summarise").result


def order_elsewhere(url: str, title: str) -> None:
    """An order of which the application knows nothing: its own for the same title fails."""
    engine, schema = engine_of(url)
    with engine.begin() as connection:
        connection.execute(sa.table("orders", sa.column("title"), schema=schema).insert().values(title=title))


@pytest.mark.req("P16", "V2")
def test_the_fastapi_program_adds_in_the_requests_session_and_works_beside(url: str, tmp_path: Path):
    write_program(tmp_path, "fastapi_app.py")
    if url.startswith("sqlite:"):
        shop = f"sqlite+aiosqlite:///{file_of(url)}"
    else:
        # As SQLAlchemy writes it; the tables of the shop go where the store is.
        conninfo, schema, _ = read_url(url)
        separator = "&" if "?" in conninfo else "?"
        shop = (
            conninfo.replace("postgresql://", "postgresql+psycopg://") + f"{separator}options=-csearch_path%3D{schema}"
        )
    command = ["uvicorn", "fastapi_app:app", "--port", "PORT", "--log-level", "warning"]
    with serving(tmp_path, command, {"HOLDFAST_URL": url, "SHOP_URL": shop}) as client:
        assert client.post("/orders/walden").json() == {"ordered": "walden"}
        wait_for(lambda: client.get("/orders/walden").json()["stages"][0]["result"] == "WALDEN", STUCK_SECONDS)
        assert client.post("/orders/walden").status_code == 500
        order_elsewhere(url, "emma")
        assert client.post("/orders/emma").status_code == 500
        assert client.get("/status").json()["pipelines"][0]["stages"][0]["states"] == {"done": 1}
        assert len(client.get("/status").json()["workers"]) == 1
    with Holdfast(url) as app:
        assert not app.workers(), "it was stopped in order"
    assert keys(url) == ["walden"], "what was rolled back is not there"


@pytest.mark.req("P16", "V2")
def test_the_django_program_adds_in_the_atomic_block(tmp_path: Path):
    """On SQLite, as it is printed; the next test has both databases."""
    write_program(tmp_path, "django_app.py")
    file = tmp_path / "shop.db"
    url = f"sqlite:///{file}"
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE orders (title TEXT PRIMARY KEY CHECK (title <> 'bad'))")
    connection.close()
    command = ["uvicorn", "--interface", "wsgi", "serve:application", "--port", "PORT", "--log-level", "error"]
    (tmp_path / "serve.py").write_text(
        "import django_app\nfrom django.core.wsgi import get_wsgi_application\napplication = get_wsgi_application()\n"
    )
    with serving(tmp_path, command, {"SHOP_FILE": str(file)}) as client:
        assert client.get("/orders/walden").json() == {"ordered": "walden"}
        assert client.get("/orders/bad").status_code == 500
        assert keys(url) == ["walden"], "what was rolled back is not there"
        assert client.get("/elsewhere/emma").json() == {"ordered": "emma"}
        assert client.get("/elsewhere/bad").status_code == 500
    assert keys(url) == ["walden", "emma"]
    run = subprocess.run(
        [sys.executable, "-m", "holdfast", "run", "django_app.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "SHOP_FILE": str(file)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert result(url, "emma") == "EMMA"


DJANGO = """
import sys
import django
from django.conf import settings
from django.db import connection, transaction
from holdfast import Pipeline

url, host, name, schema = sys.argv[1:]
options = {"options": f"-c search_path={schema}"}
database = {"ENGINE": "django.db.backends.postgresql", "NAME": name, "USER": "postgres", "HOST": host, "OPTIONS": options}
if url.startswith("sqlite:"):
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": name}
settings.configure(DATABASES={"default": database})
django.setup()
books = Pipeline("books", store=url)
books.stage(name="summarise")(lambda item, ctx: None)
books.register()
with connection.cursor() as cursor:
    cursor.execute("CREATE TABLE orders (title TEXT PRIMARY KEY)")
for end in ("committed", "rolled back"):
    try:
        with transaction.atomic():
            books.add([f"{end}-{n:02}" for n in range(20)], connection=connection)
            with connection.cursor() as cursor:
                cursor.execute("INSERT INTO orders VALUES (%s)", [end])
            if end == "rolled back":
                raise LookupError
    except LookupError:
        pass
with connection.cursor() as cursor:
    cursor.execute("SELECT title FROM orders")
    print(cursor.fetchall())
"""


@pytest.mark.req("P16", "V2")
@pytest.mark.direct("Django connects by host and name")
def test_djangos_connection_is_joined_on_both_databases(url: str, tmp_path: Path):
    if url.startswith("sqlite:"):
        words = ["", str(file_of(url)), ""]
    else:
        conninfo, schema, _ = read_url(url)
        parts = httpx.URL(conninfo)
        words = [parts.params.get("host") or parts.host, parts.path.strip("/"), schema]
    (tmp_path / "program.py").write_text(DJANGO)
    ran = subprocess.run(
        [sys.executable, "program.py", url, *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "[('committed',)]\n"
    assert keys(url) == [f"committed-{n:02}" for n in range(20)]
