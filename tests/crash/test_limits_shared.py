"""Limits that many processes share, judged by the provider's own log: under load, under kills, and when the provider is down.

HOLDFAST_LIMIT_SECONDS sets how long each look at the pace takes. With 60, on a machine that nobody else uses, 95 % of the pace
must be used; in a short look at a busy one some of it is lost to starts and stalls.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from holdfast.answers import ResourceLimit
from tests.support.counting_server import CountingServer, Request
from tests.support.effort import effort
from tests.support.limited_books import ESTIMATE, PRICE, LimitedHerd, app_for
from tests.support.limits import over
from tests.support.processes import POLL_SECONDS, Crew, crew_on, wait_for
from tests.support.slowness import slowness

pytestmark = pytest.mark.req("V11")

SECONDS = float(os.environ.get("HOLDFAST_LIMIT_SECONDS", "4"))
PROCESSES, SLOTS, RATE, BURST = 4, 8, 20, 5
#: Far more than are under way at a time.
CALLS, ASKED = effort(150, 300), effort(220, 400)


def limit(app: Any, name: str = "api") -> ResourceLimit:
    return next(one for one in app.limits() if one.name == name)


def told(calls: list[Request]) -> str:
    """The thickest place of a log, for whoever has to find out."""
    worst = max(range(len(calls)), key=lambda n: over([one.sent for one in calls[: n + 1]], RATE, BURST))
    around = calls[max(0, worst - 12) : worst + 2]
    return "\n".join(
        f"{one.sent - calls[0].sent:9.4f} {one.at - calls[0].at:9.4f} {one.pid} {one.key}" for one in around
    )


@pytest.mark.req("J14")
@pytest.mark.fault(64)
@pytest.mark.parametrize("killed", [False, True], ids=["in peace", "under kills"])
def test_all_processes_together_keep_the_pace_and_use_it(url: str, tmp_path: Path, killed: bool):
    """In no window more than rate × window + burst, and most of what is allowed; one of them is killed every second."""
    rng = random.Random(64)
    with (
        CountingServer(tmp_path) as server,
        LimitedHerd(url, tmp_path, "called", server.environment) as herd,
        app_for(url, "called", rate=f"{RATE}/s", burst=BURST) as app,
    ):
        app.add("called", [f"k{n}" for n in range(round(RATE * SECONDS * 2) + 100)])
        for _ in range(PROCESSES):
            herd.start(concurrency=SLOTS)
        wait_for(server.calls)
        begun = server.calls()[0].sent
        deaths = 0
        while (left := begun + SECONDS - time.monotonic()) > 0:
            time.sleep(min(1.0, left))
            if killed and left > 1:
                herd.kill(rng.choice(herd.alive()))
                herd.start(concurrency=SLOTS)
                deaths += 1
        calls = [one for one in server.calls() if one.sent <= begun + SECONDS]
    assert deaths >= (SECONDS - 2 if killed else 0)
    assert over([one.sent for one in calls], RATE, BURST) <= 0, told(calls)
    # What came late was held up on the way; what came together was sent apart.
    used = 0.95 if SECONDS >= 60 else 0.2 / slowness()
    assert len(calls) >= used * (RATE * SECONDS + BURST), f"{len(calls)} of {RATE * SECONDS + BURST:.0f}"


@pytest.mark.req("J19")
@pytest.mark.fault(62)
def test_a_provider_that_is_down_is_not_stormed_and_when_it_is_back_the_pace_holds(url: str, tmp_path: Path):
    with (
        CountingServer(tmp_path) as server,
        LimitedHerd(url, tmp_path, "called", server.environment) as herd,
        app_for(url, "called", rate="100/s", burst=20, breaker={"failures": 5, "probe_after": "0.5s"}) as app,
    ):
        server.say(503)
        app.add("called", [f"k{n}" for n in range(CALLS)])
        for _ in range(PROCESSES):
            herd.start(concurrency=SLOTS)
        wait_for(lambda: len(app.events(event="breaker_opened", most=100)) >= 4)
        server.say(200)
        down = [one for one in server.calls() if one.status == 503]
        # What was begun before it opened, and one probe each time.
        assert len(down) <= 5 + PROCESSES * SLOTS + len(app.events(event="breaker_opened", most=100))
        wait_for(lambda: _done(app) == CALLS)
        assert limit(app).breaker == "closed"
        calls = server.calls()
        assert max(stage.attempts for n in range(CALLS) for stage in app.show(f"k{n}").stages) < 20
    assert over([one.sent for one in calls], 100, 20) <= 0


def _done(app: Any) -> int:
    return sum(stage.states.get("done", 0) for pipeline in app.status().pipelines for stage in pipeline.stages)


@pytest.mark.fault(63)
def test_when_a_provider_asks_one_for_a_pause_no_process_calls_before_it_is_over(url: str, tmp_path: Path):
    with (
        CountingServer(tmp_path) as server,
        LimitedHerd(url, tmp_path, "called", server.environment) as herd,
        app_for(url, "called", rate="50/s", burst=10, breaker={"failures": 1, "probe_after": "1h"}) as app,
    ):
        app.add("called", [f"k{n}" for n in range(ASKED)])
        for _ in range(PROCESSES):
            herd.start(concurrency=SLOTS)
        wait_for(lambda: len(server.calls()) > 30)
        server.say(429, Retry_After="2")
        wait_for(lambda: [one for one in server.calls() if one.status == 429])
        wait_for(lambda: limit(app).cool_until)
        server.say(200)
        asked = [one for one in server.calls() if one.status == 429]
        wait_for(lambda: _done(app) == ASKED)
        calls = server.calls()
        assert limit(app).breaker == "closed"
        assert app.events(event="attempt_failed", most=10) == ()
    last = max(one.at for one in asked)
    early = [one.at - last for one in calls if last + 0.2 * slowness() < one.at < last + 2]
    assert early == []
    assert sum(one.at >= last + 2 for one in calls) > 100


@pytest.mark.req("J10")
@pytest.mark.fault(66)
@pytest.mark.parametrize("killed", [False, True], ids=["in peace", "under kills"])
def test_fifty_who_buy_at_once_never_spend_more_than_the_budget(url: str, tmp_path: Path, killed: bool):
    """10.00 in all, 0.40 expected and 0.38 paid each: 26 fit, and after them the next does not."""
    rng = random.Random(66)
    with (
        CountingServer(tmp_path) as server,
        LimitedHerd(url, tmp_path, "bought", server.environment) as herd,
        app_for(url, "bought", budget="10.00") as app,
    ):
        app.add("bought", [f"k{n}" for n in range(200)])
        for _ in range(5):
            herd.start(concurrency=10)
        if killed:
            wait_for(server.calls)
            for _ in range(6):
                time.sleep(rng.uniform(0, 0.1))
                herd.kill(rng.choice(herd.alive()))
                herd.start(concurrency=10)
        # What a killed worker had set aside comes back with its leases: then there is room for more.
        wait_for(lambda: _stands_still(app) and 10.00 - float(limit(app).spent) < ESTIMATE)
        spent, made = float(limit(app).spent), len(server.calls())
        time.sleep(0.5)
        assert len(server.calls()) == made, "somebody went on buying"
        reason = app.why("k199")
    assert made * PRICE <= spent + 1e-9, "a call was paid and not counted"
    assert spent <= 10.00
    assert reason.reason == "budget" and "0.40 more would not fit" in reason.text
    if not killed:
        assert made == 26


def _stands_still(app: Any) -> bool:
    """Nobody has money set aside, nobody holds work, and the resource is stopped."""
    now = limit(app)
    return bool(now.paused and not now.set_aside and not now.in_use)


# A worker that dies with all it holds ------------------------------------------------------------------------------------

LEASE = 1.5
#: Two leases, a poll, and what a busy machine takes to begin a call.
FREE_AGAIN = 2 * LEASE + POLL_SECONDS


@pytest.fixture(params=[True, False][: effort(1, 2)], ids=["of another machine", "of this machine"][: effort(1, 2)])
def far(request: pytest.FixtureRequest) -> bool:
    """Whether only its silence can tell that a worker is dead."""
    return bool(request.param)


@pytest.fixture
def crew(url: str, tmp_path: Path) -> Iterator[Crew]:
    with crew_on(url, tmp_path, "tests.support.limited_books:held") as crew:
        yield crew


def starts(crew: Crew) -> int:
    """How often work that waits has begun. Work that a dead worker had begins in a process of its own, of whatever number."""
    return len([line for line in crew.ledger.starts() if line.key.startswith("k")])


@pytest.mark.fault(69)
def test_slots_and_reservations_of_a_killed_worker_are_free_within_two_leases(crew: Crew, url: str, far: bool):
    with app_for(url, "held", concurrency=2, budget="0.80") as app:
        gate = crew.gate()
        app.register()
        crew.add([{"key": f"k{n}", "until": str(gate)} for n in range(6)])
        first = crew.start("first", lease=LEASE, far=far)
        wait_for(lambda: starts(crew) == 2)
        assert limit(app).in_use == 2 and limit(app).set_aside == Decimal("0.8")
        crew.start("second", lease=LEASE, far=far)
        assert starts(crew) == 2
        first.kill()
        died = time.monotonic()
        wait_for(lambda: starts(crew) == 4)
        assert time.monotonic() - died < FREE_AGAIN + slowness()
        # The other worker has both slots and all the money now.
        assert limit(app).in_use == 2 and limit(app).set_aside == Decimal("0.8")
        gate.touch()
        crew.wait_until_done()
        assert (limit(app).in_use, limit(app).set_aside, limit(app).spent) == (0, 0, 0)


@pytest.mark.req("J19")
@pytest.mark.fault(65)
@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_a_probe_whose_worker_is_gone_is_replaced_within_two_leases(crew: Crew, url: str, far: bool, how: str):
    with app_for(url, "held", breaker={"failures": 1, "probe_after": "0.5s"}) as app:
        gate = crew.gate()
        app.register()
        crew.add([{"key": "bad", "fail": True}])
        first = crew.start("first", lease=LEASE, far=far)
        wait_for(lambda: limit(app).breaker != "closed")
        wait_for(lambda: app.cancel(key="bad"))
        crew.add([{"key": f"k{n}", "until": str(gate)} for n in range(4)])
        wait_for(lambda: starts(crew) == 1)
        assert limit(app).breaker == "probing"
        crew.start("second", lease=LEASE, far=far)
        time.sleep(0.3)
        assert starts(crew) == 1, "two probes at once"
        first.kill() if how == "killed" else first.freeze()
        died = time.monotonic()
        wait_for(lambda: starts(crew) == 2)
        assert time.monotonic() - died < FREE_AGAIN + slowness()
        time.sleep(0.3)
        assert starts(crew) == 2, "two probes at once"
        gate.touch()
        wait_for(lambda: limit(app).breaker == "closed")
        first.thaw()
        crew.wait_until_done()
        assert limit(app).breaker == "closed"
