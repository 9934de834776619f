"""Claiming: whoever deletes the waiting row has the item, and nobody else does."""

from __future__ import annotations

import pytest

from holdfast.engine.claim import claim
from tests.support.harness import connected
from tests.support.together import at_once, held_at


@pytest.mark.req("J1")
def test_an_item_is_claimed_once_and_the_loser_gets_nothing(app):
    app.pipeline({"a": []})
    app.add(["x"])
    [won] = app.claim("first")
    assert app.claim("second") == []
    assert won.key == "x"
    assert app.states("x") == {"a": "in_progress"}
    assert app.counts() == {"a": {"in_progress": 1}}


@pytest.mark.req("J1")
def test_claims_of_several_connections_at_once_are_disjoint_and_leave_nothing(app):
    app.pipeline({"a": []})
    app.add(f"k{n}" for n in range(300))
    with connected(app) as two, connected(app) as three:
        hands = at_once(*(lambda one=one: _claim_all(one) for one in (app, two, three)))
    tokens = [lease.id for hand in hands for lease in hand]
    items = [lease.item for hand in hands for lease in hand]
    assert len(items) == len(set(items)) == len(set(tokens)) == 300
    assert app.counts() == {"a": {"in_progress": 300}} == app.recount()


def _claim_all(app):
    taken = []
    while leases := app.claim("w", "a", most=7):
        taken += leases
    return taken


@pytest.mark.req("J1")
@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_on_postgresql_a_claim_that_is_not_committed_yet_makes_nobody_wait(app):
    """Locked rows are skipped: the second worker has its items before the first one's claim commits."""
    app.pipeline({"a": []})
    app.add(f"k{n}" for n in range(10))
    first, stage = app.join("first").id, app.stage("a").id
    second_has_claimed = []
    with connected(app) as other:
        other.join("second")
        with held_at("commit.before", until=lambda: second_has_claimed) as first_holds_its_rows:

            def second():
                first_holds_its_rows.wait()
                second_has_claimed.append(other.claim("second", "a", most=10))

            first_hand, _ = at_once(lambda: app.store.write(lambda tx: claim(tx, first, stage, 4)), second)
    assert [lease.key for lease in first_hand] == ["k0", "k1", "k2", "k3"]
    assert [lease.key for lease in second_has_claimed[0]] == [f"k{n}" for n in range(4, 10)]


@pytest.mark.req("J1", "J16")
def test_what_waits_for_its_next_attempt_is_claimed_only_once_it_is_due(app):
    app.pipeline({"a": []})
    app.add(["x"])
    app.fail(app.claim()[0], delay=10)
    app.clock.advance(9.999)
    app.promote()
    assert app.claim() == []
    app.clock.advance(0.001)
    app.promote()
    assert [lease.attempt for lease in app.claim()] == [2]


def test_no_more_is_claimed_than_was_asked_for_and_the_oldest_first(app):
    app.pipeline({"a": []})
    app.add(["x", "y", "z"])
    assert [lease.key for lease in app.claim(most=2)] == ["x", "y"]
    assert [lease.key for lease in app.claim(most=2)] == ["z"]


def test_a_claim_takes_items_of_its_own_stage_only(app):
    app.pipeline({"a": [], "b": []})
    app.add(["x"])
    [lease] = app.claim(stage="b")
    assert app.states("x") == {"a": "pending", "b": "in_progress"}
    assert lease.stage == app.stage("b").id


def test_tokens_only_grow_also_after_everything_is_finished(app):
    """An old token can never come to mean a new lease."""
    app.pipeline({"a": []})
    seen = []
    for n in range(5):
        app.add([f"k{n}"])
        [lease] = app.claim()
        seen.append(lease.id)
        app.complete(lease)
        assert app.query("SELECT COUNT(*) FROM holdfast_leases") == [(0,)]
    assert seen == sorted(set(seen))


def test_the_attempt_is_counted_by_the_claim_itself(app):
    """V6: a process that dies right after its claim has used an attempt."""
    app.pipeline({"a": []})
    app.add(["x"])
    [lease] = app.claim()
    assert lease.attempt == 1
    assert app.row("x", "a")["attempts"] == 1


def test_a_claim_brings_the_results_of_the_stages_before(app):
    app.pipeline({"a": [], "b": [], "c": ["a", "b"]})
    app.add(["x"])
    app.complete(app.claim(stage="a")[0], {"from": "a"})
    app.complete(app.claim(stage="b")[0], ["from b"])
    [lease] = app.claim(stage="c")
    assert lease.results == {app.stage("a").id: '{"from":"a"}', app.stage("b").id: '["from b"]'}


def test_a_result_that_is_long_is_left_in_the_database_until_somebody_asks(app):
    app.pipeline({"a": [], "b": ["a"]})
    app.add(["x", "y"])
    first, second = app.claim(stage="a", most=2)
    app.complete(first, "short")
    app.complete(second, "long " * 10_000)
    leases = {lease.key: lease.results for lease in app.claim(stage="b", most=2)}
    assert leases == {"x": {app.stage("a").id: '"short"'}, "y": {}}


def test_a_claim_hands_over_the_item_as_it_was_added(app):
    app.pipeline({"a": []})
    app.add([{"key": "x", "text": "a'b\"\\ \U0001f600", "n": [1, 2.5, None, True, 2**60]}])
    [lease] = app.claim()
    assert lease.data == '{"text":"a\'b\\"\\\\ \U0001f600","n":[1,2.5,null,true,1152921504606846976]}'
