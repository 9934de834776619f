"""Between a worker and its PostgreSQL: replies get lost, connections end or fall silent, nobody answers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.engine import add
from holdfast.errors import StoreUnavailable
from tests.support.books import books
from tests.support.cluster import Cluster
from tests.support.effort import effort
from tests.support.processes import Crew, crew_on, wait_for
from tests.support.proxy import Connection, Proxy
from tests.support.slowness import slowness
from tests.support.unharmed import assert_unharmed, pages

#: COMMITs whose reply is lost, one after another: the k-th from the moment there is work.
LOST = range(1, 41, effort(3, 1))
POLL = 1.0
#: A part of each statement that claims, and of the one that completes.
CLAIMS, COMPLETES = "leases (item, stage, worker", "outcomes (stage, version, type"


#: One server for all of them: it takes longer to make one than to share it.
pytestmark = pytest.mark.together("postgres-line")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def proxy(cluster: Cluster) -> Iterator[Proxy]:
    with Proxy(cluster.socket) as proxy:
        yield proxy


@pytest.fixture
def crew(cluster: Cluster, proxy: Proxy, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Crew]:
    """A crew whose workers go through the proxy; the test itself does not."""
    database = request.node.name[:60]
    with crew_on(cluster.database(database), tmp_path) as crew:
        crew.url = proxy.url(database)
        crew.app.register()
        yield crew


def _start_of(crew: Crew, key: str) -> float:
    """Wait until an item's first stage has started; return how long that took."""
    since = time.monotonic()
    wait_for(lambda: crew.ledger.starts(key), every=0.002)
    return time.monotonic() - since


# The reply to COMMIT is lost ------------------------------------------------------------------------------------------


@pytest.mark.fault(26)
@pytest.mark.req("V2", "V6")
def test_a_commit_whose_reply_is_lost_is_neither_repeated_nor_forgotten(crew: Crew, proxy: Proxy):
    """Whatever the worker was about to commit; and at last one that completes, and one that claims."""
    crew.start("w", concurrency=1, lease=2.0, poll=0.02)
    for k in LOST:
        proxy.lose_commit(k)
        crew.add(pages(1 + k // 3, 0.003, prefix=f"round-{k}"))
        wait_for(lambda: not proxy.armed and crew.is_done())
    assert len(proxy.lost) == len(LOST)
    # Which they were depends on when the worker did something else.
    for text in (COMPLETES, CLAIMS):
        proxy.lose_commit(of=text)
        crew.add(pages(3, 0.003, prefix=f"at last {text}"))
        wait_for(lambda: not proxy.armed and crew.is_done())
        assert _has(proxy.lost[-1], "INSERT INTO", text)
    assert_unharmed(crew)


@pytest.mark.fault(26)
@pytest.mark.req("V2", "V6")
def test_the_reply_to_a_heartbeat_or_a_sweep_may_be_lost_too(crew: Crew, proxy: Proxy):
    crew.add(pages(10, 0.2))
    crew.start("w", concurrency=2)
    for text in ("SET beat_at", "NOT EXISTS (SELECT 1 FROM", "alive_until <=", "due_at <=", "backfill_next"):
        proxy.lose_commit(of=text)
        wait_for(lambda: not proxy.armed)
    assert len(proxy.lost) == 5
    crew.wait_until_done()
    assert_unharmed(crew)


@pytest.mark.fault(26)
@pytest.mark.req("V2", "J1")
def test_items_added_under_a_lost_reply_are_added_once(cluster: Cluster, proxy: Proxy, monkeypatch: pytest.MonkeyPatch):
    """The first COMMIT registers the pipeline; then come the items, five at a time."""
    monkeypatch.setattr(add, "CHUNK", 5)
    for k in (1, 2, 3, 4):
        url = cluster.database(f"added {k}")
        with Holdfast(url) as app:
            app.upgrade()
        proxy.lose_commit(k)
        with Holdfast(proxy.url(f"added {k}"), [books.spec]) as app:
            assert app.add("books", [f"page-{number}" for number in range(15)], atomic=False) == (15, 0, 0)
        assert not proxy.armed
        with Holdfast(url) as app:
            assert len(app.items()) == 15
            assert app.check() == []
            [pipeline] = app.status().pipelines
            assert pipeline.stages[0].states == {"pending": 15}
            assert len(app.events(event="pipeline_registered")) == 1


@pytest.mark.fault(26)
@pytest.mark.req("V2")
def test_an_upgrade_whose_reply_is_lost_is_whole(cluster: Cluster, proxy: Proxy):
    cluster.database("upgraded")
    proxy.lose_commit()
    with Holdfast(proxy.url("upgraded")) as app:
        with pytest.raises(StoreUnavailable):
            app.upgrade()
        assert app.upgrade() == []
        assert app.check() == []


def _has(transaction: list[str], *words: str) -> bool:
    return any(all(word in text for word in words) for text in transaction)


# Connections end ------------------------------------------------------------------------------------------------------


@pytest.mark.fault(37)
@pytest.mark.req("V7")
def test_a_worker_that_cannot_hear_finds_new_work_by_looking(crew: Crew, cluster: Cluster, proxy: Proxy):
    crew.start("w", poll=POLL, lease=3.0)
    for number in range(4):
        listening = _listener(proxy)
        accepted = proxy.accepted
        cluster.terminate(listening.backend)
        crew.add([f"page-{number}"])
        assert _start_of(crew, f"page-{number}") < 1.2 * POLL + 0.8 * slowness()
        wait_for(lambda: _listener(proxy) is not listening)  # noqa: B023
        # It came back once: it does not knock again and again.
        assert proxy.accepted - accepted <= 2
    crew.wait_until_done()
    assert_unharmed(crew)


@pytest.mark.fault(37)
def test_a_worker_whose_listening_connection_was_ended_listens_again(crew: Crew, cluster: Cluster, proxy: Proxy):
    """With ten minutes between looks, only the news can have told it."""
    crew.start("w", poll=600.0, lease=3.0)
    listening = _listener(proxy)
    cluster.terminate(listening.backend)
    wait_for(lambda: _listener(proxy) is not listening)
    crew.add(["page"])
    wait_for(lambda: crew.ledger.starts("page"))


@pytest.mark.fault(37)
@pytest.mark.req("V7")
def test_a_worker_that_is_let_in_nowhere_knocks_gently_and_goes_on_when_it_is(crew: Crew, proxy: Proxy):
    crew.start("w")
    proxy.refusing = True
    proxy.cut()
    accepted = proxy.accepted
    time.sleep(2.0)
    assert proxy.accepted - accepted <= 50
    wait_for(lambda: proxy.accepted - accepted >= 2)
    crew.add(["page"])
    proxy.refusing = False
    assert _start_of(crew, "page") < 3.0 * slowness()
    crew.wait_until_done()
    assert_unharmed(crew)


@pytest.mark.fault(37)
@pytest.mark.req("V7")
def test_connections_that_fall_silent_are_given_up(crew: Crew, proxy: Proxy):
    """They stay open, their packets are acknowledged, and no answer ever comes. Without heartbeats nothing is begun."""
    crew.start("w")
    listening = _listener(proxy)
    assert proxy.silence(lambda one: True) >= 2
    wait_for(lambda: not crew.app.workers()[0].alive)
    crew.add(["page"])
    assert _start_of(crew, "page") < 10.0 * slowness()
    assert _listener(proxy) is not listening
    crew.wait_until_done()
    assert_unharmed(crew)


def _listener(proxy: Proxy) -> Connection:
    """The connection on which the worker listens."""
    return wait_for(lambda: next((one for one in list(proxy.connections) if one.listens and not one.silent), None))
