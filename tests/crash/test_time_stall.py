"""Everyone stands still for a while, as on a laptop that sleeps; and goes on as if nothing had been."""

from __future__ import annotations

import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast.engine.workers import Identity
from holdfast.runtime.services import ServiceThread
from holdfast.store import Store, open_store
from holdfast.store.store import new_identity
from holdfast.testing import ManualClock
from holdfast.worker.background.heartbeat import Heartbeat, Listening
from holdfast.worker.background.throughput import MinuteCounts
from holdfast.worker.background.upkeep import Reaper
from tests.support.cluster import Cluster
from tests.support.harness import App
from tests.support.own_tables import OwnTables
from tests.support.processes import Crew, WorkerProcess, crew_on, wait_for
from tests.support.together import listening
from tests.support.unharmed import assert_unharmed, begin, pages

LEASE = 1.0
#: PostgreSQL lets a session be idle inside a transaction for this long. An effect that waits for the test must not be.
EFFECT_LEASE = 2.0


@pytest.mark.fault(53)
@pytest.mark.req("V2", "V5", "V6")
def test_workers_that_slept_together_for_five_leases_go_on_where_they_were(crew: Crew, tmp_path: Path):
    """To each of them every other was silent for five leases; and so was itself. One wakes a little before the others."""
    for number in range(3):
        crew.start(f"w{number}", lease=LEASE, far=number > 0)
    gate = tmp_path / "gate"
    begin(crew, gate, pages(150, 0.03))
    for worker in crew.workers:
        worker.send(signal.SIGSTOP)
    time.sleep(5 * LEASE)
    first, *others = crew.workers
    first.send(signal.SIGCONT)
    time.sleep(0.3 * LEASE)
    for worker in others:
        worker.send(signal.SIGCONT)
    gate.touch()
    crew.wait_until_done()
    assert_unharmed(crew)


@pytest.fixture
def stalling(
    request: pytest.FixtureRequest, database: str, tmp_path: Path
) -> Iterator[tuple[Crew, WorkerProcess, OwnTables]]:
    """A worker in the middle of an effect that waits for the gate. If the process or the server stands still for so long, the
    server ends the session."""
    cluster = getattr(request, "param", None) and request.getfixturevalue("cluster")
    url = cluster.database("stalling") if cluster else request.getfixturevalue("url")
    with crew_on(url, tmp_path, "tests.support.odd_books:stalling") as crew:
        own = OwnTables(url)
        crew.add([{"key": "page-1", "table": f"{own.note.fullname}", "gate": str(crew.gate())}])
        worker = crew.start(lease=EFFECT_LEASE)
        wait_for(lambda: crew.ledger.lines("effect"))
        yield crew, worker, own
        own.close()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


@pytest.mark.fault(35, 41, 53)
@pytest.mark.req("P6", "V6")
def test_a_worker_that_is_frozen_inside_an_effect_writes_again_and_charges_nobody(
    stalling: tuple[Crew, WorkerProcess, OwnTables],
):
    """PostgreSQL ends the session meanwhile; but the effect was never slow, and the handler is not called again."""
    crew, worker, own = stalling
    worker.send(signal.SIGSTOP)
    wait_for(lambda: worker.is_frozen)
    time.sleep(2 * EFFECT_LEASE)
    crew.gate().touch()
    worker.send(signal.SIGCONT)
    crew.wait_until_done()
    _assert_written_once_by_one_call(crew, own)


@pytest.mark.fault(28)
@pytest.mark.req("P6", "V6")
@pytest.mark.parametrize("database", ["postgres"])
@pytest.mark.parametrize("stalling", ["a server of its own"], indirect=True)
def test_a_server_that_is_frozen_under_an_effect_is_written_to_again_and_nobody_is_charged(
    stalling: tuple[Crew, WorkerProcess, OwnTables], cluster: Cluster
):
    """When it wakes up, it finds that the session was idle for too long, and ends it."""
    crew, _, own = stalling
    with cluster.frozen():
        crew.gate().touch()
        time.sleep(2 * EFFECT_LEASE)
    crew.wait_until_done()
    assert cluster.said("idle-in-transaction timeout") == 1
    _assert_written_once_by_one_call(crew, own)


def _assert_written_once_by_one_call(crew: Crew, own: OwnTables) -> None:
    stage = crew.stage("page-1", "write")
    assert (stage.state, stage.attempts, stage.error) == ("done", 1, None), crew.all_said()
    assert len(crew.ledger.starts()) == 1
    assert own.notes() == [("page-1", "first"), ("page-1", "second")]
    assert crew.events("attempt_failed") == crew.events("exhausted") == crew.events("lease_expired") == ()


# The worst moment for a stall -----------------------------------------------------------------------------------------

SHORT_LEASE = 0.5

Stall = Callable[[], None]


@pytest.fixture
def stall_sqlite(tmp_path: Path) -> tuple[str, Stall]:
    path = tmp_path / "store.db"

    def stall() -> None:
        """Another program takes the write lock, now, and keeps it for three leases."""
        held = threading.Event()

        def hold() -> None:
            conn = sqlite3.connect(path, isolation_level=None, timeout=10)
            conn.execute("BEGIN IMMEDIATE")
            held.set()
            time.sleep(3 * SHORT_LEASE)
            conn.execute("COMMIT")
            conn.close()

        threading.Thread(target=hold).start()
        assert held.wait(10)

    return f"sqlite:///{path}", stall


@pytest.fixture
def stall_postgres() -> Iterator[tuple[str, Stall]]:
    with Cluster() as cluster:

        def stall() -> None:
            """The server freezes, now, for three leases."""
            cluster.freeze()
            threading.Timer(3 * SHORT_LEASE, cluster.thaw).start()

        yield cluster.url(), stall


@pytest.mark.fault(28, 40)
@pytest.mark.req("V5")
def test_permission_to_judge_does_not_outlive_a_stall(database: str, request: pytest.FixtureRequest):
    """The reaper looked whether it may judge; before it could, everything stood still. It finds all silent, and may not."""
    url, stall = request.getfixturevalue(f"stall_{database}")
    with ExitStack() as stack:
        store = open_store(url)
        store.upgrade()
        lost: list[str] = []
        pulses = [stack.enter_context(_beating(store, name, lost)) for name in ("judge", "other")]
        reaper = Reaper(store.another(), pulses[0], MinuteCounts())
        wait_for(lambda: pulses[0].may_judge)

        looked_around = threading.Event()
        stalled = threading.Event()

        def at(point: str) -> None:
            # Only the reaper runs in this thread. It asks itself after it has looked for processes that are gone.
            if threading.current_thread() is threading.main_thread():
                if point == "store.neighbours":
                    looked_around.set()
                elif point == "commit.after" and looked_around.is_set() and not stalled.is_set():
                    stalled.set()
                    stall()

        with listening(at):
            reaper.one_pass()
        assert stalled.is_set()
        assert store.read(lambda tx: len(tx.run("read_workers"))) == 2
        wait_for(lambda: all(pulse.trusted for pulse in pulses))
        assert lost == []
        stack.callback(store.close)


@pytest.mark.fault(37)
def test_a_worker_that_wants_no_news_takes_it_in_with_every_beat(store: Store, clock: ManualClock):
    """A busy worker does not listen, and what it was told meanwhile would pile up with every item that somebody adds."""
    app = App(store, clock)
    app.pipeline({"a": []})
    heard: list[Collection[int]] = []
    with _beating(app.store, "busy", [], heard.append):
        wait_for(lambda: heard)  # it begins to listen, and does not know what was said before
        heard.clear()
        app.add(["x"])
        wait_for(lambda: heard)
    assert set(heard[0]) <= {app.stage("a").id}


class _beating:
    """A worker's heart without the worker."""

    def __init__(
        self, store: Store, name: str, lost: list[str], on_news: Callable[[Collection[int]], None] = lambda stages: None
    ) -> None:
        self._store = store.another()
        self._heartbeat = Heartbeat(
            self._store,
            lambda: Identity(new_identity(), name, name, "1 1", round(SHORT_LEASE * 1e6)),
            {},
            dict,
            lambda: lost.append(name),
        )
        listening = Listening(self._store, self._heartbeat, lambda: False, on_news)
        self._thread = ServiceThread([self._heartbeat, listening])

    def __enter__(self) -> Heartbeat:
        self._heartbeat.join()
        self._thread.start()
        return self._heartbeat

    def __exit__(self, *_: object) -> None:
        self._thread.finish(last_pass=False)
        self._thread.join()
