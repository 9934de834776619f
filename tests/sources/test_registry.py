"""What a person wrote becomes a source, or an error that names the source and the key."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import UsageError
from holdfast.model.schedule import NEVER
from holdfast.model.urls import as_key, normalise, shown, url_key
from holdfast.sources import KINDS, read_source

pytestmark = pytest.mark.req("J20")

EXAMPLES = [
    {"files": "inbox/**/*.epub", "root": "inbox", "every": "10m"},
    {"list": ["a", {"key": "b", "n": 1}]},
    {"csv": "books.csv", "key": "isbn", "every": "1h"},
    {"jsonl": "books.jsonl", "key": "id"},
    {"lines": "urls.txt", "every": "1h"},
    {"sql": "SELECT id, title FROM books", "url": "sqlite:///books.db", "key": "id"},
    {"sitemap": "https://example.org/sitemap.xml", "cron": "0 6 * * *", "zone": "Europe/Berlin"},
    {"feed": "https://example.org/feed", "merge": "my_package.merge"},
    {"html": "https://example.org/news", "links": "article h2 a", "every": "1h"},
    {"http_json": "https://example.org/api", "items": "data.items", "key": "id", "next": "paging.next", "pages": 1000},
    {"media": "https://youtube.com/@channel", "timeout": "1h", "most": 50},
    {"python": "my_package.find", "args": {"n": 1}},
]


def read(given, name="books", folder=Path("/srv")):
    return read_source(name, given, where="jobs.yaml", folder=folder)


@pytest.mark.parametrize("given", EXAMPLES, ids=lambda given: next(iter(given)))
def test_every_kind_is_read_and_what_is_written_equally_is_equal(given):
    spec = read(given)
    assert spec == read(dict(reversed(given.items())), folder=Path("/elsewhere"))
    assert spec != read(given, name="other")
    assert spec.open().kind == spec.kind
    assert {next(iter(one)) for one in EXAMPLES} == set(KINDS)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "no kind is named; write exactly one of: list, files"),
        ({"every": "1h"}, "no kind is named"),
        ({"csv": "a", "jsonl": "b"}, "'csv' and 'jsonl' are two kinds"),
        ({"csv": None, "list": None}, "no kind is named"),
        ("books.csv", "'books.csv' is not a mapping"),
        (["csv"], r"\['csv'\] is not a mapping"),
        ({"csv": "a", "kye": "id"}, "'kye' is unknown to csv; there are: csv, key, mark, delimiter, encoding, merge"),
        ({"csv": 5}, "csv: 5 is not a text"),
        ({"csv": "a", "delimiter": ";;"}, "delimiter: ';;'"),
        ({"csv": "a", "encoding": "rot13"}, "encoding: 'rot13'"),
        ({"csv": "a", "encoding": "klingon"}, "encoding: 'klingon'"),
        ({"csv": "a", 5: 6}, "5 is unknown to csv"),
        ({"feed": "example.org/feed"}, "feed: 'example.org/feed': only http"),
        ({"feed": 5}, "feed: 5 is not a text"),
        ({"feed": "file:///etc/passwd"}, "feed: .*only http"),
        ({"list": ["a"], "every": "never"}, "every: 'never'"),
        ({"list": ["a"], "cron": "0 0 30 2 *"}, "cron: '0 0 30 2 .*never due"),
        ({"list": ["a"], "zone": "UTC"}, "write either 'every'"),
        ({"list": ["a"], "merge": "x"}, "merge: 'x' is no full name"),
        ({"list": ["a"], "timeout": "0s"}, "timeout: '0s'"),
        ({"list": ["a"], "most": 0}, "most: 0"),
        ({"list": ["a"], "most": True}, "most: True"),
        ({"list": ["a"], "whole": 1}, "whole: 1"),
        ({"python": "a.b", "args": [1]}, "args: .*not a mapping"),
        ({"python": "a.b", "args": {"d": {1}}}, "args: a value of type set"),
    ],
)
def test_an_error_names_the_source_and_the_key(given, said):
    with pytest.raises(UsageError, match=f"^jobs.yaml: source 'books': {said}"):
        read(given)


@pytest.mark.parametrize("name", ["", " ", "a\nb", "x" * 201, 5, None])
def test_a_source_has_a_name(name):
    with pytest.raises(UsageError, match=r"^jobs.yaml: .* cannot be the name of a source"):
        read({"list": ["a"]}, name=name)


def test_secrets_are_neither_in_errors_nor_in_what_a_source_shows_of_itself():
    spec = read({"feed": "https://me:pass@example.org/feed?token=t0k", "headers": {"Authorization": "Bearer abc"}})
    assert not any(secret in repr(spec) for secret in ("pass", "t0k", "abc"))
    with pytest.raises(UsageError) as raised:
        read({"feed": "ftp://me:pass@example.org/feed?token=t0k"})
    assert not any(secret in str(raised.value) for secret in ("pass", "t0k"))
    with pytest.raises(UsageError) as raised:
        read({"feed": "https://example.org/", "headers": {"Authorization": "Bearer\nabc"}})
    assert "abc" not in str(raised.value)


def test_a_definition_changes_with_what_is_looked_at_and_not_with_when_or_where_from():
    one = read({"csv": "a.csv", "every": "1h"})
    assert (
        one.definition == read({"csv": "a.csv", "cron": "0 6 * * *", "most": 5}, folder=Path("/elsewhere")).definition
    )
    assert one.definition != read({"csv": "b.csv", "every": "1h"}).definition
    assert one.definition != read({"jsonl": "a.csv", "every": "1h"}).definition


def test_an_interval_begins_at_once_a_cron_schedule_with_its_first_tick_and_the_rest_is_looked_at_once():
    now = 1_800_000_000_000_001
    hour = 3_600_000_000
    assert read({"list": [], "every": "1h"}).wanted(now)[1:] == (now, (now // hour + 1) * hour)
    assert read({"list": [], "cron": "0 * * * *"}).wanted(now)[1:] == ((now // hour + 1) * hour,) * 2
    assert read({"list": []}).wanted(now)[1:] == (now, NEVER)


def test_reading_a_source_imports_neither_a_database_nor_xml():
    heavy = ("sqlalchemy", "pyexpat", "cronsim", "selectolax")
    code = f"import sys, holdfast.sources; print(*[name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_every_example_of_the_guide_can_be_read_and_there_is_one_for_each_kind():
    page = (Path(__file__).resolve().parents[2] / "docs" / "guide" / "sources.md").read_text(encoding="utf-8")
    read_kinds = set()
    for block in re.findall(r"^```yaml\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
        for name, written in yaml.safe_load(block).items():
            read_kinds.add(read(written, name=name).kind)
    assert read_kinds == set(KINDS)


def test_every_strategy_of_the_guide_is_a_source_that_can_be_read():
    page = (Path(__file__).resolve().parents[2] / "docs" / "guide" / "sources.md").read_text(encoding="utf-8")
    table = page.partition("## Which kind for what")[2].partition("\n## ")[0]
    written = re.findall(r"^\|.*\| `(\{.*?\})`", table, re.MULTILINE)
    specs = [read(yaml.safe_load(one), name=f"s{number}") for number, one in enumerate(written)]
    assert len(specs) == 17
    assert {spec.kind for spec in specs} == set(KINDS)


# URLs -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("HTTP://Example.ORG", "http://example.org/"),
        ("https://example.org:443/a", "https://example.org/a"),
        ("http://example.org:8080/", "http://example.org:8080/"),
        ("http://me:pw@example.org/", "http://example.org/"),
        ("http://example.org/%7Efoo/%e2%82%ac?q=%7e#x", "http://example.org/~foo/%E2%82%AC?q=~"),
        ("http://example.org/a/./b/../c/", "http://example.org/a/c/"),
        ("http://example.org/ü?x=ü y", "http://example.org/%C3%BC?x=%C3%BC%20y"),
        ("http://bücher.example/", "http://xn--bcher-kva.example/"),
        ("http://example.org/?b=1&a=2", "http://example.org/?b=1&a=2"),
        ("http://[::1]:80/", "http://[::1]/"),
        ("http://example.org./", "http://example.org/"),
        ("http://example.org/a%2Fb", "http://example.org/a%2Fb"),
        ("http://example.org/../../etc", "http://example.org/etc"),
        ("http://example.org/a//b/./c", "http://example.org/a//b/c"),
        ("http://example.org/a/b/..//c/.", "http://example.org/a//c/"),
        ("http://ex%61mple.org/", "http://example.org/"),
        ("http://%C3%A9.example/", "http://xn--9ca.example/"),
        ("http://[0:0:0:0:0:0:0:1]:80/", "http://[::1]/"),
        ("http://example.org/100%", "http://example.org/100%25"),
        ("http://example.org/a%zz?b=%", "http://example.org/a%25zz?b=%25"),
    ],
)
def test_one_text_for_all_ways_to_write_a_url(given, expected):
    assert normalise(given) == expected
    assert normalise(expected) == expected


@pytest.mark.parametrize(
    "given", ["", "x", "ftp://a/", "http://", "http:///path", "http://a:b/", "http://a b/", "http://[", "mailto:a@b"]
)
def test_what_is_no_http_address_is_no_key(given):
    with pytest.raises(ValueError, match=r"."):
        url_key(given)


@pytest.mark.parametrize("given", ["http:", "https://", "httpd", "http://a b/", "9780141439587", "", " x "])
def test_a_key_that_is_no_address_stays_as_it_is(given):
    assert as_key(given) == given


@given(st.text(max_size=40), st.text(max_size=40))
def test_normalising_twice_is_normalising_once_and_a_key_is_never_too_long(path, query):
    try:
        once = normalise(f"http://example.org/{path}?{query}")
    except ValueError:
        return
    assert normalise(once) == once
    assert once.isascii()
    assert len(url_key(f"http://example.org/{'x' * 2000}{path}")) <= 1024


@given(st.text(max_size=60))
def test_what_is_shown_of_an_address_is_one_line_without_a_password(text):
    assert shown(f"https://me:pw-secret@example.org/{text}").isprintable()
    assert "pw-secret" not in shown(f"https://me:pw-secret@example.org/{text}")
