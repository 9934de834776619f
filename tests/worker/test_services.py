"""Every service of a worker, driven as a worker drives it: its passes, a database in trouble, a last pass, an end."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast.discovery import Discovery
from holdfast.engine.workers import Identity
from holdfast.errors import StoreUnavailable
from holdfast.jobs import JobFileFollower, load_job
from holdfast.model.alert import AlertRule
from holdfast.runtime.services import Scheduler, Service, ServiceContext, ServiceThread
from holdfast.sources import read_source
from holdfast.store import Store
from holdfast.store.store import new_identity
from holdfast.testing import ManualClock
from holdfast.worker.background import upkeep
from holdfast.worker.background.alerts import Alerts
from holdfast.worker.background.guards import GuardWatch
from holdfast.worker.background.heartbeat import Heartbeat, Listening
from holdfast.worker.background.throughput import MinuteCounts, MinuteWriter
from holdfast.worker.commit.committer import Committer
from holdfast.worker.commit.finished_queue import FinishedQueue
from holdfast.worker.commit.prefetch import InHand
from tests.support.harness import App
from tests.support.together import listening
from tests.support.waiting import wait_for

LEASE_SECONDS = 30.0
JOB = """
store: sqlite:///unused.db
pipelines:
  books:
    stages:
      read: {handler: os.path.join}
"""


@dataclass
class Bench:
    """What a worker gives to its services."""

    app: App
    folder: Path

    def __post_init__(self) -> None:
        self.store: Store = self.app.store.another()
        self.heartbeat = Heartbeat(self.app.store.another(), self._identity, {}, lambda: {"done": {}})
        self.heartbeat.join()

    def _identity(self) -> Identity:
        return Identity(new_identity(), "w", "host", "1 1", round(LEASE_SECONDS * 1e6))

    def minutes(self) -> MinuteCounts:
        """As if one attempt had ended."""
        counts = MinuteCounts()
        counts.add(self.app.clock.now(), [(1, "done", [])])
        return counts

    @property
    def context(self) -> ServiceContext:
        return ServiceContext(self.store, lambda: self.heartbeat.identity.id, threading.Event())

    def job_file(self) -> Service:
        path = self.folder / "job.yaml"
        path.write_text(JOB)
        return JobFileFollower(self.context, load_job(path))

    def sources(self) -> Service:
        source = read_source("shelf", {"list": ["a"], "every": "1h"}, where="test", folder=self.folder)
        return Discovery(self.context, {"p": [source]}, {}, {})

    def alerts(self) -> Service:
        rule = AlertRule.read("deaths", {"event": "worker_died", "log": True})
        return Alerts(self.store, [rule], lambda: self.heartbeat.identity.id)

    def close(self) -> None:
        self.store.close()
        self.heartbeat.end()


#: By name. Those of the committer's thread do not own their store.
SERVICES: dict[str, Callable[[Bench], Service]] = {
    "reaper": lambda bench: upkeep.Reaper(bench.store, bench.heartbeat, MinuteCounts()),
    "promoter": lambda bench: upkeep.Promoter(bench.store, 1.0),
    "backfiller": lambda bench: upkeep.Backfiller(bench.store, 1.0),
    "pause ender": lambda bench: upkeep.PauseEnder(bench.store, 1.0),
    "action finisher": lambda bench: upkeep.ActionFinisher(bench.store, 1.0, LEASE_SECONDS),
    "auditor": lambda bench: upkeep.Auditor(bench.store, bench.heartbeat, InHand(1), []),
    "count folder": lambda bench: upkeep.CountFolder(bench.store),
    "rechecker": lambda bench: upkeep.Rechecker(bench.store),
    "pruner": lambda bench: upkeep.Pruner(bench.store, 90),
    "heartbeat": lambda bench: bench.heartbeat,
    "minutes": lambda bench: MinuteWriter(bench.store, bench.minutes()),
    "notifications": lambda bench: Listening(bench.store, bench.heartbeat, lambda: True, lambda stages: None),
    "guards": lambda bench: GuardWatch(dict, lambda: None),
    "alerts": Bench.alerts,
    "sources": Bench.sources,
    "job file": Bench.job_file,
}
#: These look at something else than the database.
WITHOUT_STORE = ("guards", "job file")


@pytest.fixture
def bench(store: Store, clock: ManualClock, tmp_path: Path) -> Iterator[Bench]:
    app = App(store, clock)
    app.pipeline({"a": []})
    made = Bench(app, tmp_path)
    yield made
    made.close()


@contextmanager
def unavailable() -> Iterator[list[str]]:
    """The database does not answer."""
    asked: list[str] = []

    def at(point: str) -> None:
        if point.startswith("store.") or point == "commit.before":
            asked.append(point)
            raise StoreUnavailable("it does not answer")

    with listening(at):
        yield asked


@pytest.mark.parametrize("name", SERVICES)
def test_a_pass_that_has_been_made_is_due_again_later_and_says_whether_there_is_work(bench: Bench, name: str):
    service = SERVICES[name](bench)
    service.due = 0.0
    found = service.one_pass()
    assert isinstance(found, bool)
    # The first pass may have found work to go on with at once.
    for _ in range(20):
        if service.due > time.monotonic() or name == "notifications":
            break
        service.one_pass()
    assert service.due > (time.monotonic() if name != "notifications" else 0.0)


@pytest.mark.parametrize("name", [name for name in SERVICES if name not in WITHOUT_STORE])
def test_a_pass_without_a_database_is_made_again_once_it_is_back(bench: Bench, name: str):
    service = SERVICES[name](bench)
    service.retry_seconds = 0.0
    service.due = 0.0
    scheduler = Scheduler([service])
    made: list[bool] = []
    one_pass = service.one_pass

    def noted() -> bool:
        found = one_pass()
        made.append(found)
        return found

    service.one_pass = noted  # type: ignore[method-assign]
    with unavailable() as asked:
        try:
            scheduler.run(lambda: True)
        except StoreUnavailable:
            pass
        assert made == [] or asked == [], "a pass that met trouble counts as made"
    if not made:
        assert service.due <= time.monotonic()
        scheduler.run(lambda: True)
    assert len(made) == 1


@pytest.mark.parametrize("name", SERVICES)
def test_in_a_thread_of_its_own_it_makes_passes_and_ends(bench: Bench, name: str):
    service = SERVICES[name](bench)
    service.due = 0.0
    thread = ServiceThread([service])
    thread.start()
    wait_for(lambda: service.due > 0.0)
    thread.finish()
    thread.join()
    assert not thread._thread.is_alive()


def test_a_worker_runs_every_service_there_is():
    """Whoever adds one adds it to these tests."""

    def below(kind: type[Service]) -> set[type[Service]]:
        return {kind, *(one for each in kind.__subclasses__() for one in below(each))}

    known = {one for one in below(Service) if one.__module__.startswith("holdfast.")} - {Service, upkeep.Upkeep}
    assert len(known) == len(SERVICES), sorted(one.__name__ for one in known)


def test_news_calls_the_committer_away_from_its_services():
    committer = Committer.__new__(Committer)
    committer._finished, committer._reported, committer._news, committer.idle = FinishedQueue(), deque(), False, True
    assert not committer._is_called()
    committer.news()
    assert committer._is_called() and committer._finished._wake_up.is_set()
