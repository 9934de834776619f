"""Every kind of source keeps the one contract, also those of other packages."""

from __future__ import annotations

import json
import sqlite3
import sys

import pytest

from holdfast.errors import UsageError, ValueRefused
from holdfast.sources import KINDS, SourceFailed, read_source
from holdfast.testing import SourceContract
from tests.sources.finder import Finder, events
from tests.support.harness import App

pytestmark = pytest.mark.req("J20")


class OfFiles(SourceContract):
    """Kinds that read a file."""

    def given(self, folder):
        (folder / "file").write_text(self.text)
        return {self.kind: "file"}

    def broken(self, folder):
        return {self.kind: "gone"}


class TestCsv(OfFiles):
    kind, text = "csv", "key,n\na,1\nb,2\n"


class TestJsonl(OfFiles):
    kind, text = "jsonl", '{"key": "a", "n": 1}\n"b"\n'


class TestLines(OfFiles):
    kind, text = "lines", "a\n# not\nhttps://example.org/b\n"


class TestFiles(SourceContract):
    kind = "files"

    def given(self, folder):
        for name in "ab":
            (folder / f"{name}.epub").write_text(name)
        return {"files": "*.epub"}

    def broken(self, folder):
        return {"files": "gone/*.epub", "root": "gone"}


class TestList(SourceContract):
    kind = "list"

    def given(self, folder):
        return {"list": ["a", {"key": "b", "n": 1}]}


class TestPython(SourceContract):
    kind = "python"

    def given(self, folder):
        return {"python": "tests.sources.finding.keys"}

    def broken(self, folder):
        return {"python": "tests.sources.finding.raising"}


class TestSql(SourceContract):
    kind = "sql"

    def given(self, folder):
        with sqlite3.connect(folder / "books.db") as database:
            database.execute(
                "CREATE TABLE IF NOT EXISTS books AS SELECT 1 AS key, 'Emma' AS title UNION SELECT 2, 'Walden'"
            )
        database.close()
        return {"sql": "SELECT * FROM books", "url": "sqlite:///books.db"}

    def broken(self, folder):
        return {"sql": "SELECT 1 AS key", "url": "sqlite:///gone.db"}


class TestMedia(SourceContract):
    kind = "media"

    def given(self, folder):
        program = folder / "program"
        program.write_text("#!/bin/sh\n" + "".join(f"echo '{json.dumps({'id': name})}'\n" for name in "ab"))
        program.chmod(0o755)
        return {"media": "ytsearch2:tides", "program": str(program)}

    def broken(self, folder):
        return {"media": "ytsearch2:tides", "program": str(folder / "gone")}


class OfTheNetwork(SourceContract):
    """Kinds that fetch a page."""

    more: dict = {}  # noqa: RUF012

    @pytest.fixture(autouse=True)
    def _served(self, site):
        self.site = site

    def given(self, folder):
        return {self.kind: self.site.put("/page", self.page, etag=True), "allow_private": True, **self.more}

    def broken(self, folder):
        return {self.kind: f"{self.site.url}/gone", "allow_private": True, **self.more}


class TestFeed(OfTheNetwork):
    kind, page = "feed", "<rss><item><guid>a</guid></item><item><guid>b</guid><category>c</category></item></rss>"


class TestHtml(OfTheNetwork):
    kind, page = "html", '<a href="/a">A</a><a href="/b">B</a>'


class TestSitemap(OfTheNetwork):
    kind, page = "sitemap", "<urlset><url><loc>/a</loc></url><url><loc>/b</loc></url></urlset>"


class TestHttpJson(OfTheNetwork):
    kind, page = "http_json", '[{"id": 1}, {"id": 2}]'


class TestHttpJsonByPostInPages(OfTheNetwork):
    kind, more = "http_json", {"items": "items", "body": {"q": "x"}, "cursor": {"param": "after", "at": "after"}}

    def given(self, folder):
        def page(request):
            after = json.loads(request.body).get("after", 0)
            body = {"items": [{"id": after}], "after": after + 1 if after < 3 else None}
            request.answer(200, json.dumps(body).encode())

        return {"http_json": self.site.serve("/page", page), "allow_private": True, **self.more}


def test_every_kind_is_put_to_the_contract():
    put = {one.kind for one in globals().values() if isinstance(one, type) and hasattr(one, "kind")}
    assert put >= set(KINDS)


# Kinds of other packages ----------------------------------------------------------------------------------------------

SHELF = """
from holdfast.sources import Found, Source, SourceFailed

class Shelf(Source):
    kind = "shelf"
    options = {"shelf": lambda value, what: str(value), "upper": lambda value, what: bool(value)}
    templates = ("shelf",)

    def look(self, memory):
        path = self.folder / self.settings["shelf"]
        if not path.exists():
            raise SourceFailed(f"{path} is not there")
        for line in path.read_text().split():
            self.check()
            yield Found(line.upper() if self.settings.get("upper") else line, {"shelf": path.name})

class Misnamed(Shelf):
    kind = "other"

class Greedy(Shelf):
    kind = "greedy"
    options = {"greedy": str, "merge": str}

def nothing():
    pass
"""


def package(folder, monkeypatch, module, **kinds):
    """A package on the path, as pip would leave it, whose kinds are in its entry points."""
    (folder / f"{module}.py").write_text(SHELF)
    facts = folder / f"{module}-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    lines = [f"{name} = {where}" for name, where in kinds.items()]
    (facts / "entry_points.txt").write_text("\n".join(["[holdfast.sources]", *lines, ""]))
    monkeypatch.syspath_prepend(str(folder))


class TestAKindOfAnotherPackage(SourceContract):
    @pytest.fixture(autouse=True)
    def _installed(self, tmp_path_factory, monkeypatch):
        package(tmp_path_factory.mktemp("site"), monkeypatch, "shelves", shelf="shelves:Shelf")

    def given(self, folder):
        (folder / "oak").write_text("emma walden")
        return {"shelf": "oak", "upper": True}

    def broken(self, folder):
        return {"shelf": "gone"}

    def test_its_items_come_into_a_pipeline_with_every_option_that_all_sources_have(self, tmp_path, store, clock):
        app = App(store, clock)
        app.pipeline({"a": []})
        for name, keys in {"oak": "emma https://EXAMPLE.org", "ash": "walden"}.items():
            (tmp_path / name).write_text(keys)
        each = {"shelf": "{value}", "for_each": {"list": ["oak", "ash", "elm"]}, "data": {"wood": "{value}"}}
        Finder(app, tmp_path)(s=each)
        assert events(app) == [("s", {"found": 3, "new": 3, "bad": 1})]
        assert app.data("https://example.org/") == {"shelf": "oak", "wood": "oak"}


BREAKERS = """
import itertools
from holdfast.sources import Found, Source, SourceFailed

class Bad(Source):
    options = {"hasty": str, "restless": str, "deaf": str, "hoarding": str, "forgetful": str}

    def look(self, memory):
        if memory.get("done"):
            return
        yield from self.items(memory)
        memory["set"] = self.hoard

    hoard = None

    def items(self, memory):
        return (Found(key, {}) for key in "ab")

def kind(name, **more):
    return type(name, (Bad,), {"kind": name, "options": {name: lambda value, what: str(value)}, **more})

counter = itertools.count()

def hasty(self, memory):
    memory["done"] = True
    yield from (Found(key, {}) for key in "ab")

def restless(self, memory):
    yield from (Found(key, {}, mark=str(next(counter))) for key in "ab")

def deaf(self, memory):
    try:
        self.check()
    except Exception as error:
        raise SourceFailed(str(error))
    yield from (Found(key, {}) for key in "ab")

def forgetful(self, memory):
    yield from (Found(key, {}) for key in ("ab" if not memory else "a"))

hasty, restless, deaf = kind("hasty", items=hasty), kind("restless", items=restless), kind("deaf", items=deaf)
forgetful, hoarding = kind("forgetful", items=forgetful), kind("hoarding", hoard={1, 2})
"""


@pytest.mark.parametrize(
    ("kind", "test"),
    [
        ("hasty", "test_a_look_that_breaks_off_loses_nothing"),
        ("restless", "test_two_looks_find_the_same"),
        ("deaf", "test_a_look_that_has_to_end_ends"),
        ("hoarding", "test_what_it_remembers_is_json_and_lets_nothing_come_that_was_not_there"),
        ("forgetful", "test_what_it_remembers_is_json_and_lets_nothing_come_that_was_not_there"),
    ],
)
def test_the_contract_catches_a_kind_that_breaks_it(tmp_path, monkeypatch, kind, test):
    package(tmp_path, monkeypatch, f"breaks_{kind}", **{kind: f"breaks_{kind}:{kind}"})
    (tmp_path / f"breaks_{kind}.py").write_text(BREAKERS)

    class Broken(SourceContract):
        def given(self, folder):
            return {kind: "x"}

    Broken().test_items_have_keys_and_data_that_can_be_stored(tmp_path)
    with pytest.raises((AssertionError, ValueRefused, SourceFailed)):
        getattr(Broken(), test)(tmp_path)


def refused(given):
    with pytest.raises(UsageError, match=r"^jobs.yaml: source 's': ") as raised:
        read_source("s", given, where="jobs.yaml", folder=".")
    return str(raised.value).removeprefix("jobs.yaml: source 's': ")


def test_an_unknown_kind_is_answered_with_those_there_are_and_the_nearest(tmp_path, monkeypatch):
    package(tmp_path, monkeypatch, "cupboards", cupboard="cupboards:Shelf")
    assert refused({"cupbord": "x", "every": "1h"}) == (
        f"no kind is named; write exactly one of: {', '.join(KINDS)}, cupboard (did you mean 'cupboard'?)"
    )
    assert refused({"rss_feed": "x"}).endswith("cupboard (did you mean 'feed'?)")


def test_a_kind_that_cannot_be_used_is_said_with_where_it_comes_from(tmp_path, monkeypatch):
    package(
        tmp_path,
        monkeypatch,
        "bad_shelves",
        gone="no_such_module:X",
        misnamed="bad_shelves:Misnamed",
        function="bad_shelves:nothing",
        greedy="bad_shelves:Greedy",
        csv="bad_shelves:Shelf",
    )
    assert refused({"gone": 1}).startswith(
        "gone: importing no_such_module:X raised ModuleNotFoundError: No module named"
    )
    assert refused({"misnamed": 1}) == "misnamed: bad_shelves:Misnamed is not a class of Source with kind = 'misnamed'"
    assert refused({"function": 1}) == "function: bad_shelves:nothing is not a class of Source with kind = 'function'"
    assert "bad_shelves:Greedy has an option 'merge', which means something else" in refused({"greedy": 1})
    assert read_source("s", {"csv": "a"}, where="", folder=tmp_path).open().__module__ == "holdfast.sources.csv_"
    assert "no_such_module" not in sys.modules


def test_two_packages_with_one_kind_are_told_apart_by_nobody(tmp_path, monkeypatch):
    for module in ("left", "right"):
        (tmp_path / module).mkdir()
        package(tmp_path / module, monkeypatch, module, twin=f"{module}:Shelf")
    assert refused({"twin": 1}) == "'twin' is a kind of source of two packages: right:Shelf and left:Shelf"
