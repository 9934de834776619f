"""A breaker opens after failures, lets one attempt find out, and listens to nobody who began before its last change."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model import breaker
from holdfast.model.breaker import Breaker, BreakerSpec

pytestmark = pytest.mark.req("J19")

at_leisure = settings(deadline=None)
SECOND = 1_000_000
SPEC = BreakerSpec(failures=3, share=0.5, minimum=10, probe_after_seconds=60)


def ended(standing: Breaker, *results: bool, spec: BreakerSpec = SPEC, now: int = 0, first: int = 1) -> Breaker:
    """After attempts under leases counted from `first` ended like this."""
    for lease, worked in enumerate(results, first):
        standing = standing.after(spec, lease, worked, now, first + len(results) - 1)
    return standing


def test_the_default_is_in_one_place():
    assert BreakerSpec() == BreakerSpec(breaker.FAILURES, breaker.SHARE, breaker.MINIMUM, breaker.PROBE_AFTER_SECONDS)
    assert not ended(Breaker(), *[False] * (breaker.FAILURES - 1), spec=BreakerSpec()).is_open
    assert ended(Breaker(), *[False] * breaker.FAILURES, spec=BreakerSpec()).is_open


def test_it_opens_after_so_many_failures_in_a_row():
    assert not ended(Breaker(), False, False).is_open
    opened = ended(Breaker(), False, False, False, now=5 * SECOND)
    assert opened.open_until == 65 * SECOND


def test_a_success_in_between_begins_the_row_anew():
    assert not ended(Breaker(), False, False, True, False, False).is_open


def test_it_opens_when_a_large_share_fails_though_never_many_in_a_row():
    often = [True, False] * 5
    assert not ended(Breaker(), *often[:-1]).is_open
    assert ended(Breaker(), *often).is_open


def test_a_large_share_of_a_few_says_nothing():
    spec = BreakerSpec(failures=100, share=0.5, minimum=10)
    assert not ended(Breaker(), *[False] * 9, spec=spec).is_open
    assert ended(Breaker(), *[False] * 10, spec=spec).is_open


def test_old_results_fade():
    """A long good time does not hide for long that two of three fail now."""
    standing, n = ended(Breaker(), *[True] * 10_000), 0
    while not standing.is_open:
        standing = standing.after(SPEC, 10_001 + n, n % 3 == 0, 0, 10_001 + n)
        n += 1
        assert n < 100


def test_nothing_may_probe_before_its_time_and_one_at_a_time():
    opened = ended(Breaker(), False, False, False)
    assert not Breaker().may_probe(0, False)
    assert not opened.may_probe(60 * SECOND - 1, False)
    assert opened.may_probe(60 * SECOND, False)
    assert not opened.probed_by(9).may_probe(60 * SECOND, probe_stands=True)


@pytest.mark.fault(65)
def test_a_probe_that_was_lost_is_replaced():
    probing = ended(Breaker(), False, False, False).probed_by(9)
    assert probing.may_probe(60 * SECOND, probe_stands=False)


def test_a_probe_that_works_closes_it_and_nothing_of_before_is_remembered():
    closed = ended(Breaker(), False, False, False).probed_by(9).after(SPEC, 9, True, 61 * SECOND, 9)
    assert (closed.is_open, closed.failures, closed.sample, closed.failed, closed.probe) == (False, 0, 0, 0, None)


def test_a_probe_that_fails_opens_it_for_as_long_again():
    again = ended(Breaker(), False, False, False).probed_by(9).after(SPEC, 9, False, 70 * SECOND, 9)
    assert (again.open_until, again.probe) == (130 * SECOND, None)


@pytest.mark.parametrize("worked", [True, False])
def test_while_it_is_open_only_the_probe_votes(worked):
    probing = ended(Breaker(), False, False, False).probed_by(9)
    assert probing.after(SPEC, 2, worked, 0, 9) == probing
    assert probing.after(SPEC, 8, worked, 0, 9) == probing


def test_what_began_before_it_opened_does_not_vote_when_it_is_closed_again():
    opened = Breaker()
    for lease in (5, 6, 7):
        opened = opened.after(SPEC, lease, False, 0, newest_lease=20)
    closed = opened.probed_by(21).after(SPEC, 21, True, 0, 21)
    for late in (8, 15, 20):
        assert closed.after(SPEC, late, False, 0, 30) == closed
    assert closed.after(SPEC, 22, False, 0, 30).failures == 1


class _World:
    """Attempts that begin as a breaker lets them, and end in any order, or never."""

    def __init__(self, spec: BreakerSpec) -> None:
        self.spec = spec
        self.now = 0
        self.breaker = Breaker()
        self.change = 0
        self.lease = 0
        #: What runs: the change of the breaker after which it began.
        self.running: dict[int, int] = {}

    def begin(self) -> None:
        probing = self.breaker.probe in self.running
        if self.breaker.is_open and not self.breaker.may_probe(self.now, probing):
            return
        self.lease += 1
        if self.breaker.is_open:
            begun = [lease for lease, change in self.running.items() if change == self.change]
            assert not begun, "two probes at once"
            assert self.now >= (self.breaker.open_until or 0)
            self.breaker = self.breaker.probed_by(self.lease)
        self.running[self.lease] = self.change

    def end(self, which: int, worked: bool) -> None:
        if not self.running:
            return
        lease = sorted(self.running)[which % len(self.running)]
        newest = max(self.running)
        began_after = self.running.pop(lease)
        before = self.breaker
        self.breaker = before.after(self.spec, lease, worked, self.now, newest)
        if began_after != self.change:
            assert self.breaker == before, "a late result voted"
        if self.breaker.is_open and self.breaker.open_until != before.open_until:
            assert not worked
            self.change += 1
        elif before.is_open and not self.breaker.is_open:
            assert lease == before.probe and worked
            self.change += 1

    def lose(self, which: int) -> None:
        if self.running:
            del self.running[sorted(self.running)[which % len(self.running)]]


@at_leisure
@given(
    st.integers(1, 4),
    st.lists(
        st.one_of(
            st.tuples(st.just("begin")),
            st.tuples(st.just("end"), st.integers(0, 9), st.booleans()),
            st.tuples(st.just("end"), st.integers(0, 9), st.just(False)),
            st.tuples(st.just("lose"), st.integers(0, 9)),
            st.tuples(st.just("wait"), st.integers(1, 40)),
        ),
        max_size=120,
    ),
)
@pytest.mark.fault(65)
def test_whatever_happens_there_is_one_probe_and_no_late_vote(failures, story):
    world = _World(BreakerSpec(failures, 0.5, 8, 60))
    for act, *rest in story:
        if act == "wait":
            world.now += rest[0] * SECOND
        else:
            getattr(world, act)(*rest)
    # It never locks itself out: once whoever runs is gone and its time has come, somebody may find out.
    world.running.clear()
    world.now += 61 * SECOND
    world.begin()
    assert world.running
    world.end(0, True)
    assert not world.breaker.is_open
