"""Workers that are wrong about the time of day, and clocks that are set while work is under way."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.errors import LeaseLost
from holdfast.store import Store
from holdfast.testing import ManualClock
from tests.support.harness import App
from tests.support.processes import Crew, crew_on, wait_for
from tests.support.skew import Skew, build_shim
from tests.support.slowness import slowness
from tests.support.unharmed import assert_unharmed, pages

LEASE = 1.0
HOUR = 3600.0

MakeSkew = Callable[..., Skew]


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = build_shim(tmp_path_factory.mktemp("shim"))
    if isinstance(built, str):
        pytest.skip(f"the time of day cannot be shifted here: {built}")
    return built


@pytest.fixture
def skew(shim: Path, tmp_path: Path) -> MakeSkew:
    """Clocks that are wrong by so many hours, each for an environment of its own."""
    return lambda hours=0: Skew(shim, tmp_path / f"shift {hours}", hours=hours)


@pytest.mark.fault(51)
@pytest.mark.req("V9")
def test_workers_two_hours_ahead_and_behind_take_nothing_from_each_other(crew: Crew, skew: MakeSkew):
    """Attempts last longer than leases: whoever judged by its own time of day would take them over."""
    for hours in (2, -2, 0):
        crew.start(f"{hours} hours", lease=LEASE, far=True, environment=skew(hours).environment)
    long = [{"key": f"long-{number}", "fetch": f"sleep {2.5 * LEASE}"} for number in range(12)]
    crew.add([*long, *pages(60, 0.02)])
    crew.wait_until_done()
    assert len({line.pid for line in crew.ledger.starts()}) == 3
    assert_unharmed(crew)


@pytest.mark.fault(51)
@pytest.mark.req("V9")
@pytest.mark.parametrize("database", ["sqlite"])
def test_a_worker_whose_clock_is_behind_says_so_when_it_starts(crew: Crew, skew: MakeSkew):
    crew.start("right", lease=LEASE)
    crew.add(pages(1, 0.0))
    crew.wait_until_done()
    late = crew.start("late", lease=LEASE, environment=skew(-2).environment)
    wait_for(lambda: "the clock of this process is" in late.said)


@pytest.mark.fault(51)
@pytest.mark.req("V9")
@pytest.mark.parametrize("database", ["postgres"])
@pytest.mark.parametrize("hours", [2, -2])
def test_on_postgres_a_workers_own_clock_has_no_effect_at_all(url: str, tmp_path: Path, skew: MakeSkew, hours: float):
    """Due times too: the only worker there is waits a second for each retry; not two hours, and not none."""
    began = time.time()
    with crew_on(url, tmp_path, "tests.support.odd_books:napping") as crew:
        keys = [f"page-{number}" for number in range(5)]
        crew.add({"key": key, "nap": 1.0} for key in keys)
        crew.start("wrong", environment=skew(hours).environment)
        crew.wait_until_done()
        for key in keys:
            first, second = crew.ledger.starts(key)
            assert 1.0 <= second.at - first.at < 60.0 * slowness()
        stages = [crew.app.show(key).stages[0] for key in keys]
        times = [at for stage in stages for at in (stage.started_at, stage.ended_at)]
        times += [event.at for event in crew.app.events(most=1000)]
        times += [at for worker in crew.app.workers() for at in (worker.started_at, worker.heartbeat_at)]
        assert began - 1 < min(times).timestamp()
        assert max(times).timestamp() < time.time() + 1


@pytest.mark.fault(52)
@pytest.mark.req("V9")
def test_the_time_of_day_jumps_while_work_is_under_way(crew: Crew, skew: MakeSkew):
    clock = skew()
    for number in range(2):
        crew.start(f"w{number}", lease=LEASE, far=True, environment=clock.environment)
    long = [{"key": f"long-{number}", "fetch": f"sleep {2 * LEASE}"} for number in range(4)]
    crew.add([*long, *pages(100, 0.04)])
    for hours in (1, -1, 0, 1, 2, 3, 4, 0):
        so_far = len(crew.ledger.ends())
        wait_for(lambda: len(crew.ledger.ends()) > so_far + 30)  # noqa: B023
        clock.set(hours=hours)
    crew.wait_until_done()
    assert_unharmed(crew)


@pytest.mark.fault(52)
@pytest.mark.req("V9")
@pytest.mark.parametrize("hours", [1, -1])
def test_retries_come_when_they_should_although_the_clock_is_set(
    url: str, tmp_path: Path, skew: MakeSkew, hours: float
):
    """No storm of retries, and no lost hour."""
    clock = skew()
    with crew_on(url, tmp_path, "tests.support.odd_books:napping") as crew:
        keys = [f"page-{number}" for number in range(20)]
        crew.add({"key": key, "nap": 2.0} for key in keys)
        crew.start("w", environment=clock.environment)
        wait_for(lambda: len(crew.events("snoozed")) == len(keys))
        clock.set(hours=hours)
        crew.wait_until_done()
        for key in keys:
            first, second = crew.ledger.starts(key)
            assert 1.9 < second.at - first.at < 7.0 * slowness()
        assert crew.app.check() == []


# The engine, on a clock set by hand -----------------------------------------------------------------------------------


@pytest.fixture
def app(store: Store, clock: ManualClock) -> App:
    return App(store, clock)


@pytest.mark.fault(52)
@pytest.mark.req("V9", "V3")
@pytest.mark.parametrize("hours", [1, -1, 24 * 365])
def test_a_lease_neither_ends_nor_stretches_when_the_clock_is_set(app: App, clock: ManualClock, hours: float):
    app.pipeline({"a": []})
    app.add(["page-1", "page-2"])
    [kept] = app.claim(worker="steady", most=1)
    clock.set_wall(hours * HOUR)
    assert app.reap().released == 0

    clock.advance(29)
    clock.set_wall(-2 * hours * HOUR)
    assert app.reap().released == 0
    assert app.living() == {"steady"}
    app.complete(kept, {"n": 1})
    assert app.states("page-1") == {"a": "done"}

    app.beat("steady")
    [lost] = app.claim(worker="steady", most=1)
    clock.advance(31)
    clock.set_wall(-5 * hours * HOUR)
    assert app.reap().released == 1
    assert app.living() == set()
    assert app.states("page-2") == {"a": "pending"}
    with pytest.raises(LeaseLost):
        app.complete(lost, {"n": 2})


@pytest.mark.fault(52)
@pytest.mark.req("V9")
def test_a_clock_set_forward_and_back_leaves_every_due_time_as_it_was(app: App, clock: ManualClock):
    app.pipeline({"a": []})
    app.add(["page-1"])
    [lease] = app.claim(worker="w")
    app.snooze(lease, 60)
    clock.advance(30)
    clock.set_wall(-HOUR)
    assert app.promote().moved == 0
    clock.set_wall(HOUR)
    assert app.promote().moved == 0
    clock.advance(30)
    assert app.promote().moved == 1
    assert app.promote().moved == 0
