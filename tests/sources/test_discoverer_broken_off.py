"""A look that breaks off: nothing of it is lost, nothing counts twice, and somebody goes on with it."""

from __future__ import annotations

import json
import os
import signal

import pytest

from holdfast.engine import poll_sources
from holdfast.errors import StoreUnavailable
from holdfast.model.found_items import Found
from holdfast.sources.python_ import Python
from holdfast.store import open_store
from tests.sources import finding
from tests.sources.finder import Finder, events, function
from tests.support.harness import App, connected
from tests.support.killed_main import killed
from tests.support.together import at_once

pytestmark = pytest.mark.req("J20")


@pytest.fixture
def app(store, clock):
    app = App(store, clock)
    app.pipeline({"a": []})
    return app


@pytest.fixture
def find(app, tmp_path):
    return Finder(app, tmp_path)


def test_a_stop_is_honoured_between_items_and_somebody_else_goes_on_with_the_same_look(app, find, monkeypatch):
    def listed():
        for n in range(30):
            if n == 17:
                find.stop.set()
            yield f"k{n}"

    monkeypatch.setattr(finding, "listed", listed)
    find.more["batch"] = 5
    assert find(s=function("listed")) == 1
    assert app.events("discovered") == app.events("discovery_failed") == []
    assert app.counts() == {"a": {"pending": 17}}
    other = Finder(app, find.folder, "other")
    assert other(s=function("listed")) == 1
    assert events(app) == [("s", {"found": 30, "new": 30})]


def test_a_database_that_goes_away_in_the_middle_costs_nothing_but_time(app, find):
    """It is not the source's fault: no failure is counted, and the next pass of this worker goes on."""
    left = [4]

    def write(work):
        left[0] -= 1
        if left[0] == 0:
            raise StoreUnavailable("gone")
        return app.store.write(work)

    find.more["batch"] = 1
    broken = find.discoverer_of({"s": function("listed")}, write=write)
    broken.register()
    with pytest.raises(StoreUnavailable):
        broken.one_pass()
    [row] = app.store.read(poll_sources.sources)
    assert (row["looking"], row["failures"]) == (True, 0)
    assert broken.one_pass() == 1
    assert events(app) == [("s", {"found": 2, "new": 2})]


def test_a_worker_that_was_buried_over_its_look_goes_on_with_its_other_sources(app, find, monkeypatch, caplog):
    def listed():
        yield "a"
        app.kill("w")
        heir = Finder(app, find.folder, "heir")
        find.heir = heir.discoverer_of(sources)
        find.due = app.store.write(
            lambda tx: poll_sources.take_due(tx, app.worker("heir").id, find.heir._wanted(tx.now))
        )
        yield "b"

    monkeypatch.setattr(finding, "listed", listed)
    sources = {"a": function("listed"), "b": {"list": ["c"]}}
    find.discoverer = find.discoverer_of(sources)
    find.discoverer.register()
    with pytest.raises(Exception, match="was declared dead"):
        find.discoverer.one_pass()
    assert "another worker has taken over the look" in caplog.text
    assert app.counts() == {}


@pytest.mark.fault(59)
@pytest.mark.parametrize("point", ["store.save_look:2", "commit.before:3", "commit.after:4", "store.end_look:1"])
def test_a_worker_that_is_killed_in_the_middle_loses_nothing_and_counts_nothing_twice(url, tmp_path, point):
    """Whoever comes next goes on with the look."""
    store = open_store(url)
    store.upgrade()
    app = App(store, None)
    app.pipeline({"a": []})
    (tmp_path / "a.jsonl").write_text("".join(f'"k{n}"\n' for n in range(10)))
    source = {"jsonl": "a.jsonl", "every": "1h"}
    ended, errors = killed("look", url, str(tmp_path), json.dumps(source), at=point)
    assert ended == -signal.SIGKILL, errors
    app.execute("DELETE FROM holdfast_workers")
    find = Finder(app, tmp_path, "heir")
    assert find(s=source) == 1
    assert events(app) == [("s", {"found": 10, "new": 10})]
    assert app.counts() == {"a": {"pending": 10}} == app.recount()
    store.close()


def test_two_workers_share_the_sources_and_each_is_looked_at_once(app, find, tmp_path):
    sources = {f"s{n}": {"list": [f"k{n}"]} for n in range(12)}
    find.discoverer_of(sources).register()
    with connected(app) as other:
        one, two = (Finder(each, tmp_path, name).discoverer_of(sources) for each, name in ((app, "x"), (other, "y")))
        looked = at_once(one.one_pass, two.one_pass)
    assert sum(looked) == 12
    assert sorted(source for source, _ in events(app)) == sorted(sources)
    assert len(app.query("SELECT key FROM holdfast_items")) == 12


def test_a_batch_is_bounded_by_weight_as_well(app, find, monkeypatch):
    sizes = []
    real = poll_sources.record_found

    def record(tx, due, batch, **more):
        sizes.append(len(batch))
        return real(tx, due, batch, **more)

    monkeypatch.setattr(poll_sources, "record_found", record)
    monkeypatch.setattr("holdfast.sources.run_look.BATCH_BYTES", 1000)
    monkeypatch.setattr(finding, "listed", lambda: [{"key": f"k{n}", "t": "x" * 300} for n in range(10)])
    find(s=function("listed"))
    assert sizes == [4, 4, 2]


def test_a_page_that_was_written_is_remembered_and_one_that_was_not_is_not(app, find, monkeypatch):
    """What a source remembers is never ahead of what is in the store."""

    def look(self, memory):
        for n in range(3):
            yield Found(f"k{n}", {})
            memory["page"] = n
            seen.append(json.loads(app.query("SELECT memory FROM holdfast_sources")[0][0])["kept"].get("page"))

    seen = []
    monkeypatch.setattr(Python, "look", look)
    find.more["batch"] = 1
    find(s=function("listed"))
    assert seen == [None, 0, 1]
    assert json.loads(app.query("SELECT memory FROM holdfast_sources")[0][0])["kept"] == {"page": 2}


def test_a_look_that_breaks_off_while_it_counts_what_has_vanished_counts_all_of_it_in_the_end(app, find, monkeypatch):
    """What the source remembers of a document it has read counts only once the look has ended."""
    monkeypatch.setattr(poll_sources, "STRETCH", 3)
    file = find.folder / "a.jsonl"
    given = {"jsonl": "a.jsonl", "every": "1h"}
    file.write_text("".join(f'"k{n}"\n' for n in range(10)))
    find(s=given)
    file.write_text('"k5"\n')
    os.utime(file, (0, 0))
    real = poll_sources.set_vanished

    def set_vanished(tx, **more):
        find.stop.set()
        return real(tx, **more)

    monkeypatch.setattr(poll_sources, "set_vanished", set_vanished)
    find.again()
    assert events(app)[1:] == []
    monkeypatch.setattr(poll_sources, "set_vanished", real)
    assert Finder(app, find.folder, "other")(s=given) == 1
    assert events(app)[-1] == ("s", {"found": 1, "unchanged": 1, "vanished": 9})
