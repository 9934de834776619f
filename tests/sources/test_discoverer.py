"""The discoverer: every due source is looked at once, whatever the others do."""

from __future__ import annotations

import os

import pytest

from holdfast.engine import poll_sources
from holdfast.model.redact import forget_secrets, remember_secret
from tests.sources import finding
from tests.sources.finder import Finder, events, function
from tests.support.harness import App, connected

pytestmark = pytest.mark.req("J20")


@pytest.fixture
def app(store, clock):
    app = App(store, clock)
    app.pipeline({"a": []})
    return app


@pytest.fixture
def find(app, tmp_path):
    return Finder(app, tmp_path)


# A pass ---------------------------------------------------------------------------------------------------------------


def test_every_source_that_is_due_is_looked_at_and_what_it_found_is_in_the_pipeline(app, find, tmp_path):
    (tmp_path / "books.csv").write_text("isbn,n\n1,1\n2,1\n")
    sources = {"names": {"list": ["x", "y"]}, "books": {"csv": "books.csv", "key": "isbn", "every": "1h"}}
    assert find(**sources) == 2
    assert sorted(events(app)) == [("books", {"found": 2, "new": 2}), ("names", {"found": 2, "new": 2})]
    assert app.states("1") == app.states("x") == {"a": "pending"}
    assert find.discoverer.one_pass() == 0
    (tmp_path / "books.csv").write_text("isbn,n\n1,1\n2,9\n3,1\n")
    assert find.again() == 1
    assert events(app)[-1] == ("books", {"found": 3, "new": 1, "changed": 1, "unchanged": 1})
    assert app.data("2") == {"isbn": "2", "n": "9"}


def test_an_address_is_one_item_whichever_source_found_it_and_however_that_wrote_it(app, find, tmp_path):
    (tmp_path / "urls.txt").write_text("# two\nhttps://EXAMPLE.org/a\n\nhttps://example.org:443/b\n")
    (tmp_path / "urls.csv").write_text("url\nhttps://example.org/%61\n")
    (tmp_path / "urls.jsonl").write_text('"https://example.org/./a"\n{"key": "https://example.org/b#end"}\n')
    find(
        lines={"lines": "urls.txt"},
        csv={"csv": "urls.csv", "key": "url"},
        jsonl={"jsonl": "urls.jsonl"},
        list={"list": ["HTTPS://example.org/a", {"key": "https://example.org/b", "n": 1}]},
    )
    assert {key for (key,) in app.query("SELECT key FROM holdfast_items")} == {
        "https://example.org/a",
        "https://example.org/b",
        "https://example.org/b#end",
    }


@pytest.mark.req("V13")
def test_an_item_that_is_there_under_its_address_as_a_source_writes_it_keeps_that_key(app, find):
    app.add(["https://example.org"])
    find(s={"list": ["https://example.org", "https://example.com"], "every": "1h"})
    find.again()
    keys = {key for (key,) in app.query("SELECT key FROM holdfast_items")}
    assert keys == {"https://example.org", "https://example.com/"}
    assert [one[1] for one in events(app)] == [{"found": 2, "new": 1, "unchanged": 1}, {"found": 2, "unchanged": 2}]


@pytest.mark.parametrize("status", [200, 403])
def test_what_is_posted_and_the_headers_stand_nowhere_in_the_store(app, find, site, status):
    page = '{"items": [{"id": 1}], "next": "/b"}'
    url = site.put("/a", page, status=status)
    site.put("/b", "nonsense")
    given = {"headers": {"Authorization": "Bearer t0ken"}, "body": {"apiKey": "k3y", "q": "ferry"}}
    find(s={"http_json": url, "items": "items", "next": "next", "allow_private": True, **given})
    assert app.events("discovery_failed")
    assert [one["authorization"] for one in site.headers] == ["Bearer t0ken"] * len(site.asked)
    for table in ("sources", "found", "items", "events"):
        stored = str(app.query(f"SELECT * FROM holdfast_{table}"))
        assert "t0ken" not in stored and "k3y" not in stored


def test_a_pass_with_nothing_due_writes_nothing(app, find):
    find(s=function("listed"))
    writes = []
    idle = find.discoverer_of({"s": function("listed")}, write=writes.append)
    idle.register()
    assert (idle.one_pass(), writes) == (0, [])
    assert find.discoverer_of({}, read=writes.append).one_pass() == 0


def test_a_document_that_has_not_changed_counts_as_found_and_nothing_in_it_has_vanished(app, find, tmp_path):
    (tmp_path / "a.jsonl").write_text('"a"\n"b"\n"c"\n')
    os.utime(tmp_path / "a.jsonl", (0, 0))
    find(s={"jsonl": "a.jsonl", "every": "1h"})
    assert "file" in app.query("SELECT memory FROM holdfast_sources")[0][0]
    find.again()
    (tmp_path / "a.jsonl").write_text('"a"\n')
    find.again()
    find.again()
    assert [counts for _, counts in events(app)] == [
        {"found": 3, "new": 3},
        {"found": 3, "unchanged": 3},
        {"found": 1, "unchanged": 1, "vanished": 2},
        {"found": 1, "unchanged": 1},
    ]


def test_a_source_that_tells_only_what_is_new_lets_nothing_vanish(app, find):
    find(s=function("counting"))
    find.again()
    assert [counts for _, counts in events(app)] == [{"found": 1, "new": 1}] * 2
    find(s=function("counting", args={"step": 2}, whole=True))
    assert events(app)[-1] == ("s", {"found": 1, "unchanged": 1, "vanished": 1})
    find(s=function("listed", whole=False))
    assert events(app)[-1] == ("s", {"found": 2, "new": 2})


@pytest.mark.req("J12")
def test_what_a_source_says_of_its_items_is_united_with_what_others_said(app, find, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"key": "x", "n": 1}\n{"key": "y", "sources": ["itself"]}\n')
    by = "holdfast.merge_provenance"
    shelf = {"jsonl": "a.jsonl", "key": "key", "merge": by, "data": {"sources": ["shelf"]}}
    find(shelf=shelf, names={"list": ["x"], "merge": by, "data": {"sources": ["names"], "topics": ["sea"]}})
    assert (sorted(app.data("x")["sources"]), app.data("x")["topics"], app.data("x")["n"]) == (
        ["names", "shelf"],
        ["sea"],
        1,
    )
    assert app.data("y")["sources"] == ["itself"]
    find(shelf={**shelf, "data": {"sources": ["attic"]}})
    assert sorted(app.data("x")["sources"]) == ["attic", "names", "shelf"]


def test_a_file_that_was_only_touched_is_unchanged_where_its_content_counts(app, find, tmp_path):
    (tmp_path / "a.txt").write_text("x")
    find(s={"files": "*.txt", "content": True, "every": "1h"})
    before = app.data("a.txt")
    os.utime(tmp_path / "a.txt", (0, 0))
    find.again()
    assert events(app)[-1] == ("s", {"found": 1, "unchanged": 1})
    assert app.data("a.txt") == before
    (tmp_path / "a.txt").write_text("y")
    find.again()
    assert events(app)[-1] == ("s", {"found": 1, "changed": 1})


def test_the_pages_of_an_index_that_was_partly_read_have_not_vanished(app, find, site):
    from tests.sources.test_xml_sources import index, sitemap, urlset

    site.put("/1.xml", urlset("https://example.org/1", "https://example.org/2"), etag=True)
    site.put("/2.xml", urlset("https://example.org/3", "https://example.org/4"))
    find(s=sitemap(site.put("/s.xml", index("/1.xml", "/2.xml")), every="1h"))
    site.put("/2.xml", urlset("https://example.org/4"))
    find.again()
    assert events(app)[-1] == ("s", {"found": 3, "unchanged": 3, "vanished": 1})


# Trouble --------------------------------------------------------------------------------------------------------------


def test_a_source_that_fails_is_written_down_and_the_others_are_looked_at_all_the_same(app, find, site, caplog):
    sources = {
        "breaks": function("breaking"),
        "raises": function("raising"),
        "leaves": function("leaving"),
        "gone": {"csv": "gone.csv"},
        "nowhere": function("nowhere"),
        "nonsense": {"feed": site.put("/x", "%"), "allow_private": True},
        "private": {"feed": "http://169.254.169.254/latest"},
        "good": function("listed"),
    }
    assert find(**sources) == 8
    failed = {one["source"]: one["error"] for one in app.events("discovery_failed")}
    assert failed == {
        "breaks": "tests.sources.finding.breaking raised ValueError: no more of that",
        "raises": "tests.sources.finding.raising raised OSError: not now",
        "leaves": "SystemExit: 3",
        "gone": f"{find.folder}/gone.csv cannot be read: No such file or directory",
        "nowhere": "python: the module tests.sources.finding has no 'nowhere'",
        "nonsense": f"{site.url}/x is not well-formed XML: unclosed token, line 1",
        "private": "169.254.169.254 is at 169.254.169.254, which is not an address of the public internet; if that is meant, "
        "set allow_private: true",
    }
    assert events(app) == [("good", {"found": 2, "unchanged": 1, "new": 1})]
    assert app.data("a") == {}
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 7
    assert find.discoverer.one_pass() == 0


@pytest.mark.req("V12")
@pytest.mark.fault(82)
def test_a_secret_in_what_a_source_says_is_not_written_down(app, find):
    forget_secrets()  # those of other tests: one of them may be a word of the folder's name
    remember_secret("open-sesame")
    try:
        find(s={"csv": "open-sesame.csv"})
    finally:
        forget_secrets()
    [(error,)] = app.query("SELECT error FROM holdfast_sources")
    assert error == f"{find.folder}/***.csv cannot be read: No such file or directory"


def test_a_source_of_which_no_row_can_be_read_has_failed_and_nothing_has_vanished(app, find, tmp_path):
    (tmp_path / "a.jsonl").write_text('"a"\n')
    find(s={"jsonl": "a.jsonl", "every": "1h"})
    (tmp_path / "a.jsonl").write_bytes(os.urandom(100_000))
    os.utime(tmp_path / "a.jsonl", (0, 0))
    find.again()
    find.again()
    first, second = app.events("discovery_failed")
    assert "rows could be read; the first: line 1: " in first["error"] == second["error"]
    assert (second["vanished"], second["failures"]) == (0, 2)


def test_what_cannot_be_an_item_is_skipped_and_counted_with_what_was_wrong(app, find, monkeypatch):
    monkeypatch.setattr(finding, "listed", lambda: ["a", "", "x\0", "y" * 2000, {"key": "b", "t": {1}}, {"key": "c"}])
    find(s=function("listed"))
    [event] = app.events("discovered")
    assert (event["found"], event["bad"]) == (2, 4)
    assert event["first_bad"].startswith("'': item key is empty")


@pytest.mark.fault(80)
def test_a_source_that_never_ends_is_cut_by_number_and_by_time_and_what_it_found_stays(app, find):
    find(s=function("endless", most=1200))
    assert app.events("discovery_failed")[0]["error"] == "more than 1,200 items; if that is right, set most"
    assert app.counts() == {"a": {"pending": 1200}}

    class Clock:
        now = 0.0

        def __call__(self):
            self.now += 0.1
            return self.now

    find.more["clock"] = Clock()
    find(t=function("endless", timeout="30s"))
    assert app.events("discovery_failed")[1]["error"] == "the look took longer than 30 s; if that is right, set timeout"


def test_a_memory_that_cannot_be_stored_is_said_so_and_the_item_is_not_lost(app, find):
    find(s=function("remembering_nonsense"))
    [failed] = app.events("discovery_failed")
    assert failed["error"] == "what it remembers cannot be stored: a value of type set at kept.set: give a list"
    assert app.query("SELECT memory FROM holdfast_sources")[0][0].endswith('"kept":{}}')


def test_how_long_a_server_asks_to_wait_is_respected(app, find, site):
    find(s={"feed": site.put("/busy", "", status=429, Retry_After="7200"), "allow_private": True, "every": "1m"})
    [row] = app.store.read(poll_sources.sources)
    assert row["due_at"] - app.clock.now() >= 7200 * 10**6
    assert find.again(7000) == 0


def test_while_user_code_runs_no_transaction_is_open(app, find, monkeypatch):
    def is_open():
        driver = app.store.driver
        if driver.dialect.name == "sqlite":
            return driver.connection.in_transaction
        return driver.connection.info.transaction_status != 0

    seen = []

    def listed():
        for n in range(4):
            seen.append(is_open())
            yield {"key": f"k{n}", "n": n}

    def merge(old, new):
        seen.append(is_open())
        return new

    app.add([{"key": "k1", "n": 0}])
    monkeypatch.setattr(finding, "listed", listed)
    monkeypatch.setattr(finding, "keep_old", merge)
    find.more["batch"] = 2
    find(s=function("listed", merge="tests.sources.finding.keep_old"))
    assert seen == [False] * 5
    assert app.store.read(lambda tx: is_open())


# Merging --------------------------------------------------------------------------------------------------------------


def test_a_merge_function_decides_about_items_that_are_there(app, find, monkeypatch):
    app.add([{"key": "b", "n": 7, "mine": 1}])
    find(s=function("keys", merge="tests.sources.finding.keep_old"))
    assert app.data("b") == {"n": 7, "mine": 1}
    assert events(app) == [("s", {"found": 3, "new": 2, "unchanged": 1, "bad": 2})]


def test_a_merge_function_is_not_asked_about_items_that_look_as_before(app, find, monkeypatch):
    asked = []
    monkeypatch.setattr(finding, "keep_old", lambda old, new: asked.append(new) or new)
    monkeypatch.setattr(finding, "listed", lambda: [{"key": "a", "n": 1}, {"key": "b", "n": len(asked) + 1}])
    find(s=function("listed", merge="tests.sources.finding.keep_old"))
    find.again()
    assert asked == []
    asked.append(None)
    find.again()
    assert asked == [None, {"n": 2}]
    assert events(app)[-1] == ("s", {"found": 2, "changed": 1, "unchanged": 1})


def test_an_item_that_the_merge_function_refuses_is_counted_as_bad_and_the_others_are_merged(app, find, monkeypatch):
    monkeypatch.setattr(finding, "listed", lambda: [{"key": f"k{n}", "n": n} for n in range(4)])
    app.add([{"key": "k2", "mine": 1}, {"key": "k3", "mine": 1}])
    find(s=function("listed", merge="tests.sources.finding.picky"))
    assert events(app) == [("s", {"found": 3, "new": 2, "changed": 1, "bad": 1})]
    assert (app.data("k2"), app.data("k3")) == ({"mine": 1}, {"mine": 1, "n": 3})


def test_an_item_that_changes_while_it_is_merged_is_merged_again(app, find, monkeypatch):
    calls = []

    def merge(old, new):
        calls.append(old)
        if len(calls) == 1:
            with connected(app) as other:
                other.add([{"key": "a", "mine": 2}])
        return {**new, **old}

    monkeypatch.setattr(finding, "keep_old", merge)
    monkeypatch.setattr(finding, "listed", lambda: [{"key": "a", "n": 1}, {"key": "b", "n": 1}])
    app.add([{"key": "a", "mine": 1}])
    find(s=function("listed", merge="tests.sources.finding.keep_old"))
    assert calls == [{"mine": 1}, {"mine": 2}]
    assert app.data("a") == {"n": 1, "mine": 2}
    assert events(app) == [("s", {"found": 2, "new": 1, "changed": 1})]
