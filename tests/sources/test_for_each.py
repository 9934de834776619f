"""For each item of one pipeline, or of one source, something is looked up for another."""

from __future__ import annotations

import json
from itertools import count
from urllib.parse import unquote

import pytest

from holdfast.errors import UsageError
from holdfast.sources import for_each, read_source
from tests.sources import finding
from tests.sources.finder import Finder, events
from tests.support.harness import App

pytestmark = pytest.mark.req("J20")


@pytest.fixture
def app(store, clock):
    app = App(store, clock)
    app.pipeline({"profile": []}, name="authors")
    app.pipeline({"read": []}, name="papers")
    return app


@pytest.fixture
def find(app, tmp_path):
    return Finder(app, tmp_path)


@pytest.fixture
def library(site):
    """An API with the papers of authors: two of each, unless it is told to break."""
    site.broken = {}

    def page(request):
        _, _, author, _ = request.path.split("/")
        if author in site.broken:
            request.answer(site.broken[author], b"", Retry_After=site.retry_after)
        else:
            rows = [{"id": f"{unquote(author)}/{n}"} for n in (1, 2)]
            request.answer(200, json.dumps(rows).encode())

    class Pages(dict):
        def get(self, path, default=None):
            return page if path.startswith("/authors/") else default

    site.retry_after = None
    site.pages = Pages()
    return site


def profiled(app, **results):
    """Authors whose profile is done, with these results."""
    app.name = "authors"
    app.add(list(results))
    while leases := app.claim(most=100):
        for lease in leases:
            app.complete(lease, results[lease.key])
    app.name = "papers"


def papers(site, each=None, **more):
    return {
        "http_json": f"{site.url}/authors/{{value}}/papers",
        "allow_private": True,
        "every": "1h",
        "for_each": each or {"pipeline": "authors", "stage": "profile", "value": "id"},
        **more,
    }


def keys(app, pipeline="papers"):
    asked = "SELECT i.key FROM holdfast_items i JOIN holdfast_pipelines p ON p.id = i.pipeline WHERE p.name = :name"
    return sorted(key for (key,) in app.query(asked, name=pipeline))


# For whom -------------------------------------------------------------------------------------------------------------


def test_each_result_of_a_stage_is_looked_up_once_and_new_ones_as_they_come(app, find, library):
    profiled(app, ann={"id": 7}, bob={"id": "b b/c"})
    find(s=papers(library, data={"author": "{value}"}))
    assert keys(app) == ["7/1", "7/2", "b b/c/1", "b b/c/2"]
    assert app.data("7/1") == {"id": "7/1", "author": 7}
    assert library.asked == ["/authors/7/papers", "/authors/b%20b%2Fc/papers"]
    find.again()
    profiled(app, cat={"id": 9})
    find.again()
    find.again()
    assert library.asked[2:] == ["/authors/9/papers"]
    assert [one[1] for one in events(app)] == [{"found": 4, "new": 4}, {}, {"found": 2, "new": 2}, {}]


def test_an_item_whose_stage_is_done_later_or_anew_is_looked_up_then(app, find, library):
    app.name = "authors"
    app.add(["late", "ann"])
    [late] = app.claim()
    app.run_through({"id": 1})
    app.name = "papers"
    find(s=papers(library))
    assert library.asked == ["/authors/1/papers"]
    app.complete(late, {"id": 2})
    find.again()
    app.name = "authors"
    app.retry(states=["done"], key="ann")
    app.run_through({"id": 3})
    app.name = "papers"
    find.again()
    assert library.asked[1:] == ["/authors/2/papers", "/authors/3/papers"]


def test_without_a_stage_it_is_the_items_themselves_and_without_a_value_their_keys(app, find, library):
    app.name = "authors"
    app.add(["ann", {"key": "bob", "n": 1}])
    app.name = "papers"
    find(s=papers(library, {"pipeline": "authors"}))
    assert library.asked == ["/authors/ann/papers", "/authors/bob/papers"]
    app.clock.advance(1)
    app.name = "authors"
    app.add([{"key": "bob", "n": 2}])
    app.name = "papers"
    find.again()
    assert library.asked[2:] == ["/authors/bob/papers"]


def test_it_may_be_what_another_source_finds(app, find, library, tmp_path):
    (tmp_path / "companies.csv").write_text("ein,name\n1,one\n2,two\n")
    each = {"csv": "companies.csv", "key": "ein", "value": "name"}
    find(s=papers(library, each))
    find.again()
    (tmp_path / "companies.csv").write_text("ein,name\n1,one\n2,other\n3,three\n")
    find.again()
    assert library.asked == [f"/authors/{name}/papers" for name in ("one", "two", "other", "three")]


def test_each_is_looked_up_again_after_a_while_if_that_is_wanted(app, find, library):
    profiled(app, ann={"id": 1}, bob={"id": 2})
    each = {"pipeline": "authors", "stage": "profile", "value": "id", "again": "3h"}
    find(s=papers(library, each), listed=papers(library, {"list": ["x"], "again": "3h"}))
    find.again()
    assert len(library.asked) == 3
    find.again(2 * 3600)
    assert sorted(library.asked[3:]) == sorted(library.asked[:3])


def test_a_list_is_looked_up_one_by_one_and_what_is_no_value_is_counted(app, find, library):
    profiled(app, ann={"id": ["a", "b"]}, bob={"id": None}, cat={"no": "id"}, dan={"id": {"x": 1}})
    find(s=papers(library))
    find.again()
    assert library.asked == ["/authors/a/papers", "/authors/b/papers"]
    assert [one[1] for one in events(app)] == [{"found": 4, "new": 4, "bad": 1}, {}]
    assert app.events("discovered")[0]["first_bad"] == "'dan': its value is neither a text nor a number"


def test_a_value_goes_into_a_body_an_argument_and_a_search(app, find, library, tmp_path, monkeypatch):
    monkeypatch.setattr(finding, "listed", lambda name, n: [f"{name} {n}"])
    profiled(app, ann={"id": 7})
    each = {"pipeline": "authors", "stage": "profile", "value": "id"}
    program = tmp_path / "yt"
    program.write_text(f'#!/bin/sh\nfor last; do :; done; echo "$last" > {tmp_path}/said\n')
    program.chmod(0o755)
    library.pages.clear()
    asked = library.put("/search", "[]")
    type(library.pages).get = dict.get
    find(
        posted={
            "http_json": asked,
            "allow_private": True,
            "body": {"q": "by {value}", "id": "{value}"},
            "for_each": each,
        },
        function={"python": "tests.sources.finding.listed", "args": {"name": "{value}", "n": 1}, "for_each": each},
        search={"media": "ytsearch5:{value} talks", "program": str(program), "for_each": each},
    )
    assert [json.loads(body) for body in library.bodies] == [{"q": "by 7", "id": 7}]
    assert keys(app) == ["7 1"]
    assert (tmp_path / "said").read_text() == "ytsearch5:7 talks\n"


# What goes wrong ------------------------------------------------------------------------------------------------------


@pytest.mark.req("V7")
def test_one_that_cannot_be_looked_up_does_not_keep_the_others_and_comes_again(app, find, library):
    library.broken = {"2": 404, "3": 500}
    profiled(app, **{f"a{n}": {"id": n} for n in range(1, 6)})
    find(s=papers(library))
    assert len(keys(app)) == 6
    assert events(app) == [("s", {"found": 6, "new": 6, "bad": 2})]
    assert "answered 404" in app.events("discovered")[0]["first_bad"]
    library.broken = {}
    find.again()
    assert library.asked[5:] == ["/authors/2/papers", "/authors/3/papers"]
    assert len(keys(app)) == 10


@pytest.mark.req("V7")
def test_a_server_that_answers_nobody_is_left_alone_until_the_next_round_or_as_long_as_it_asks(app, find, library):
    profiled(app, **{f"a{n:02}": {"id": n} for n in range(12)})
    library.broken = {str(n): 503 for n in range(12)}
    find(s=papers(library))
    assert len(library.asked) == for_each.MOST_TROUBLES
    library.retry_after = 7200
    find.again()
    assert len(library.asked) == 2 * for_each.MOST_TROUBLES
    assert find.again() == 0
    [failed] = app.events("discovery_failed")
    assert "answered 503" in failed["error"]
    library.broken = {}
    find.again(3 * 3600)
    find.again()
    assert len(keys(app)) == 24


@pytest.mark.req("V7")
def test_a_round_that_takes_longer_than_a_look_may_goes_on_at_the_next_pass(app, find, library):
    ticks = count(step=40)
    find.more["clock"] = lambda: next(ticks)
    profiled(app, **{f"a{n}": {"id": n} for n in range(6)})
    find(s=papers(library))
    assert app.events("discovered") == app.events("discovery_failed") == []
    for _ in range(30):
        if app.events("discovered"):
            break
        find.discoverer.one_pass()
    find.again()
    assert len(keys(app)) == 12
    assert app.events("discovery_failed") == []


def test_what_was_looked_up_is_not_looked_up_again_after_a_stop(app, find, library):
    profiled(app, **{f"a{n:02}": {"id": n} for n in range(50)})

    def stopping(request_path):
        if len(library.asked) == 31:
            find.stop.set()

    get = type(library.pages).get
    library.pages = type("Stopping", (type(library.pages),), {"get": lambda *args: stopping(args[1]) or get(*args)})()
    find(s=papers(library))
    assert app.events("discovered") == []
    other = Finder(app, find.folder, "other")
    other(s=papers(library))
    other.again()
    assert len(keys(app)) == 100
    assert len(library.asked) <= 51


def test_what_is_not_there_is_one_clear_line(app, find, library):
    profiled(app, ann={"id": 1})
    find(
        stage=papers(library, {"pipeline": "authors", "stage": "profil"}),
        pipeline=papers(library, {"pipeline": "author"}),
        source=papers(library, {"csv": "gone.csv"}),
    )
    said = sorted(one["error"] for one in app.events("discovery_failed"))
    assert "gone.csv cannot be read" in said[0]
    assert said[1:] == [
        "there is no pipeline 'author' in this store; there are: authors, papers (did you mean 'authors'?)",
        "there is no stage 'profil' in pipeline 'authors'; there are: profile (did you mean 'profile'?)",
    ]


# What it costs --------------------------------------------------------------------------------------------------------


def test_a_round_costs_the_same_however_much_was_looked_up(app, find, library, monkeypatch):
    monkeypatch.setattr(for_each, "SWEEP", 40)
    monkeypatch.setattr(for_each, "WINDOW", 20)

    def reads():
        made = []

        def read(work):
            made.append(work)
            return app.store.read(work)

        app.clock.advance(3600)
        find.discoverer_of({"s": papers(library)}, read=read).one_pass()
        return len(made)

    def more(begin):
        profiled(app, **{f"a{n}": {"id": n} for n in range(begin, begin + 100)})

    more(0)
    find(s=papers(library))
    first = reads()
    for begin in (100, 200, 300):
        more(begin)
        find.again()
    assert reads() == first
    assert len(library.asked) == 400


def test_those_that_were_not_ready_are_found_by_going_through_all_in_stretches(app, find, library, monkeypatch):
    monkeypatch.setattr(for_each, "SWEEP", 40)
    app.name = "authors"
    app.add([f"a{n:03}" for n in range(100)])
    app.name = "papers"
    find(s=papers(library))
    assert library.asked == []
    app.name = "authors"
    app.run_through({"id": 1})
    app.name = "papers"
    for _ in range(6):
        find.again()
    assert len(library.asked) == 100


# What is refused ------------------------------------------------------------------------------------------------------

EACH = {"pipeline": "authors"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"feed": "https://example.org/", "for_each": EACH}, r"{value} stands nowhere; write it into 'feed'"),
        ({"csv": "{value}.csv", "for_each": EACH}, r"{value} cannot stand in 'csv'; not in any option of csv"),
        ({"sql": "SELECT '{value}'", "url": "sqlite:///a.db", "for_each": EACH}, r"{value} cannot stand in 'sql'"),
        ({"list": ["a"], "for_each": EACH}, r"{value} stands nowhere; list has no place for it"),
        (
            {"feed": "https://a.org/{value}", "headers": {"A": "{value}"}, "for_each": EACH},
            r"{value} cannot stand in 'headers'; it may in: feed",
        ),
        (
            {"feed": "{value}", "headers": {"A": "b"}, "for_each": EACH},
            "headers would be sent to any host that a value",
        ),
        (
            {"http_json": "https://{value}/a", "body": {"token": "b"}, "for_each": EACH},
            "body would be sent to any host that a value names",
        ),
        ({"feed": "{value}", "for_each": "authors"}, "'authors' is not a mapping"),
        ({"feed": "{value}", "for_each": {}}, "source 'for_each': no kind is named"),
        ({"feed": "{value}", "for_each": {"stage": "a"}}, "stage: say of which pipeline"),
        (
            {"feed": "{value}", "for_each": {"pipeline": "a", "stages": "b"}},
            "'stages' is unknown; there are: pipeline, stage",
        ),
        ({"feed": "{value}", "for_each": {"list": ["a"], "every": "1h"}}, "the source that says for whom has neither"),
        ({"feed": "{value}", "for_each": {**EACH, "again": "0s"}}, "again: '0s' is too short"),
    ],
)
def test_a_place_that_is_wrong_is_refused_when_it_is_read(tmp_path, given, said):
    with pytest.raises(UsageError, match=f"^jobs.yaml: source 's': for_each: {said}"):
        read_source("s", given, where="jobs.yaml", folder=tmp_path)


def test_settings_are_checked_with_an_example(tmp_path):
    with pytest.raises(UsageError, match=r"^jobs.yaml: source 's': pages: 0 is not a whole number"):
        read_source(
            "s", {"sitemap": "https://a.org/{value}", "pages": 0, "for_each": EACH}, where="jobs.yaml", folder=tmp_path
        )
    spec = read_source("s", {"feed": "{value}", "for_each": EACH}, where="jobs.yaml", folder=tmp_path)
    other = read_source("s", {"feed": "{value}", "for_each": {"list": ["a"]}}, where="jobs.yaml", folder=tmp_path)
    assert spec.definition != other.definition


@pytest.mark.fault(80)
def test_a_value_that_leads_to_a_machine_that_is_not_public_is_refused(app, find):
    find(s={"feed": "{value}", "for_each": {"list": ["http://169.254.169.254/latest", "file:///etc/passwd"]}})
    assert events(app) == [("s", {"bad": 2})]
    assert "not an address of the public internet" in app.events("discovered")[0]["first_bad"]
