"""Opening a store: what is wrong with an address is said in one line, and a password never is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from urllib.parse import quote, urlsplit

import psycopg
import pytest

from holdfast import Holdfast, Pipeline, store_engine
from holdfast.errors import StoreBroken, StoreError, StoreUnavailable, UsageError
from holdfast.schema import newest
from holdfast.store import open_store
from holdfast.store.postgres_address import read_url
from holdfast.store.sqlite_files import file_of
from tests.support.schemas import address, drop, in_database

SECRET = "hunter2-s3cret"


@pytest.mark.parametrize(
    "url",
    ["", "books.db", "mysql://host/db", "sqlite", "sqlite3:///x.db", "postgres:/x", "http://host", "file:x.db"],
)
def test_an_unknown_kind_of_store_is_a_usage_error_that_shows_both_ways_to_write_one(url):
    with pytest.raises(UsageError, match=r"sqlite:///path/to/file\.db or postgresql://user@host/database"):
        open_store(url)


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///", "sqlite://host/file.db", "sqlite:///:memory:", "sqlite:///x.db?mode=ro"]
)
def test_a_sqlite_address_that_names_no_file_is_a_usage_error(url):
    with pytest.raises(UsageError, match=r"sqlite:///file\.db"):
        open_store(url)


def test_three_slashes_are_a_relative_path_and_four_an_absolute_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert file_of("sqlite:///x.db") == tmp_path / "x.db"
    assert file_of(f"sqlite:///{tmp_path}/x.db") == tmp_path / "x.db"
    assert file_of("sqlite:///a%20b%3F.db") == tmp_path / "a b?.db"


@pytest.mark.fault(50)
def test_one_file_has_one_name_whatever_links_lead_to_it(tmp_path):
    (tmp_path / "real").mkdir()
    os.symlink(tmp_path / "real", tmp_path / "link")
    assert file_of(f"sqlite:///{tmp_path}/link/x.db") == file_of(f"sqlite:///{tmp_path}/real/../real/x.db")


@pytest.mark.parametrize("name", ["a b.db", "100%.db", "a#b.db", "a;b.db", "ünï.db", "quo'te\".db"])
def test_a_file_may_have_an_odd_name(tmp_path, name):
    from urllib.parse import quote

    store = open_store(f"sqlite:///{tmp_path}/{quote(name)}")
    store.upgrade()
    store.close()
    assert (tmp_path / name).exists()


@pytest.mark.req("V12")
@pytest.mark.fault(82)
@pytest.mark.parametrize("password", ["hun@ter22", "hun#ter22", "12#ter22", "hun/ter22", "12/ter22", "hun?ter22"])
def test_an_address_whose_password_ends_too_early_is_refused_and_no_part_of_it_is_shown(password):
    with pytest.raises(UsageError, match="write these as %40, %2F, %3F and %23") as raised:
        read_url(f"postgresql://me:{password}@127.0.0.1:1/books")
    assert not any(part in str(raised.value) for part in ("hun", "ter", "12"))


@pytest.mark.parametrize(
    "address",
    ["postgresql:///db?user=me@there", "postgresql://me:a%40b@h1:1,h2:2/db?host=/tmp/a@b", "postgresql://h/db"],
)
def test_an_at_sign_that_ends_nothing_is_read_as_ever(address):
    assert read_url(address)[0] == address


def test_a_schema_name_must_fit(monkeypatch):
    for schema in ("", "x" * 64, "ü" * 32):
        with pytest.raises(UsageError, match="1 to 63"):
            read_url(f"postgresql://host/db?schema={schema}")
    assert read_url("postgresql://host/db")[1] == "holdfast"


def test_what_is_not_ours_in_a_postgresql_address_is_handed_on():
    conninfo, schema, where = read_url("postgresql://me@db.example:5433/books?sslmode=require&schema=x")
    assert (conninfo, schema) == ("postgresql://me@db.example:5433/books?sslmode=require", "x")
    assert where == "postgresql://me@db.example:5433/books"


def test_a_blank_in_a_setting_of_a_postgresql_address_stays_a_blank():
    """libpq reads %20 as a blank, and a plus sign as a plus sign."""
    conninfo, _, _ = read_url("postgresql://host/db?options=-c%20work_mem%3D1MB")
    assert "options=-c%20work_mem%3D1MB" in conninfo


@pytest.mark.parametrize(
    ("url", "libpq", "shown"),
    [
        ("postgres://me@host/db", "postgresql://me@host/db", "postgresql://me@host/db"),
        ("postgresql+psycopg://me:pw@host/db", "postgresql://me:pw@host/db", "postgresql://me@host/db"),
        ("postgresql+asyncpg://host/db?schema=x", "postgresql://host/db", "postgresql://host/db"),
        ("postgresql:///db", "postgresql:///db", "postgresql:///db"),
        ("postgresql:///db?host=/run/pg", "postgresql:///db?host=/run/pg", "postgresql:///run/pg/db"),
        (
            "postgresql:///db?password=a+b&host=%2Frun%2Fpg",
            "postgresql:///db?password=a+b&host=%2Frun%2Fpg",
            "postgresql:///run/pg/db",
        ),
        ("postgresql:///?service=books", "postgresql:///?service=books", "postgresql:///"),
    ],
)
def test_an_address_may_name_a_driver_and_need_not_name_a_server(url, libpq, shown):
    conninfo, _, where = read_url(url)
    assert (conninfo, where) == (libpq, shown)
    open_store(url).close()


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_a_server_is_found_by_the_folder_of_its_socket(url):
    parts = urlsplit(url)
    if "host=" not in parts.query:
        pytest.skip("the server of the tests is not reached by a socket")
    for kind in ("postgresql", "postgresql+psycopg", "postgres"):
        store = open_store(f"{kind}://{parts.path}?{parts.query}&user={parts.username}")
        store.upgrade()
        assert store.schema_version() == newest()
        store.close()


def test_a_missing_driver_is_named_as_the_package_to_install():
    code = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from holdfast.store import open_store\n"
        "open_store('postgresql://host/db')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "UsageError: PostgreSQL needs a driver: pip install 'psycopg[binary]'" in done.stderr


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
@pytest.mark.parametrize("schema", ["a%(x)s", "50% %s", "q\"u'o%%te"])
def test_a_schema_may_have_any_name(url, schema):
    base = url.partition("schema=")[0].rstrip("?&")
    place = address(base, quote(schema, safe=""))
    pipeline = Pipeline("p")
    pipeline.stage(name="work")(lambda item, ctx: 1)
    try:
        app = Holdfast(place, [pipeline.spec])
        app.add("p", ["a"])
        app.run()
        assert app.show("a").stages[0].state == "done"
        with store_engine(place).begin() as connection:
            assert app.add("p", ["b"], connection=connection).new == 1
        app.close()
    finally:
        with psycopg.connect(base, autocommit=True) as connection:
            drop(connection, schema)


LEAKY = [
    f"mysql://me:{SECRET}@host/db",
    f"postgres:/me:{SECRET}@host/db",
    f"host=db.example user=me password={SECRET} dbname=books",
    f"me:{SECRET}@db.example/books",
    f"postgresql://me:{SECRET}@127.0.0.1:1/books",
    f"postgresql://me:{SECRET}%zz@127.0.0.1:1/books",
    f"postgresql://127.0.0.1:1/books?user=me&password={SECRET}",
    f"postgresql://me:{SECRET}@127.0.0.1:notaport/books",
    f"postgresql://me:{SECRET}@[::1/books",
    f"postgresql://me:{SECRET}@127.0.0.1:1/books?no_such_setting=1",
    f"postgresql://me:{SECRET}@127.0.0.1:1/books?sslmode=wrong",
]


@pytest.mark.fault(82)
@pytest.mark.parametrize("url", LEAKY, ids=lambda url: url.replace(SECRET, "***"))
def test_a_password_is_in_no_message_and_every_wrong_address_is_an_error_of_ours(url):
    with pytest.raises((UsageError, StoreError)) as caught:
        open_store(url).schema_version()
    error = caught.value
    seen = []
    while error is not None:
        seen.append(str(error))
        error = error.__cause__
    assert SECRET not in "\n".join(seen)


@pytest.mark.fault(82)
@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_a_password_is_not_in_what_a_store_tells_of_itself(url):
    store = open_store(re.sub(r"://postgres:?@", f"://postgres:{SECRET}@", url))
    store.upgrade()
    assert SECRET not in store.where
    assert SECRET not in str(store.facts())
    store.close()


def test_a_server_that_is_not_there_may_come_back():
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1"):
        open_store("postgresql://me@127.0.0.1:1/books").schema_version()


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_a_database_that_does_not_exist_is_not_waited_for(url):
    with pytest.raises(StoreBroken, match="no_such_database"):
        open_store(in_database(url, "no_such_database")).schema_version()


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_a_server_that_takes_no_writes_says_so_to_those_who_ask(url):
    store = open_store(url)
    assert store.cannot_write() is None
    store.close()
    store = open_store(f"{url}&options=-c%20default_transaction_read_only%3Don")
    assert "takes no writes now (a full disk is a common reason)" in store.cannot_write()
    store.close()
