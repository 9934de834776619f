"""What a person does to many items at once is an action: stored, done in chunks, continued by anybody, undone if it can be."""

from __future__ import annotations

from collections import Counter
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.engine import actions, delete, prune, selection
from holdfast.engine.delete import Delete
from holdfast.engine.forget import Forget
from holdfast.engine.memos import MemoWrite, remember
from holdfast.engine.on_hold import hold
from holdfast.engine.retry_and_cancel import CancelStages, RetryStages
from holdfast.engine.selection import Who
from holdfast.errors import UsageError
from holdfast.model.item_filter import Which
from holdfast.model.key_pattern import exactly
from holdfast.model.states import State
from holdfast.worker.background.upkeep import ActionFinisher
from tests.support.harness import connected
from tests.support.together import at_once

pytestmark = pytest.mark.req("J7")

ME = Who("me", "because")
LEASE_SECONDS = 30.0


@pytest.fixture
def ten(app, monkeypatch):
    """Ten items that wait, and chunks of three."""
    monkeypatch.setattr(selection, "CHUNK", 3)
    app.pipeline({"a": []}, max_attempts=1)
    app.add(f"k{n}" for n in range(10))
    return app


def begun(app, kind, who=ME):
    """An action of which only the first chunk is done: whoever began it is gone."""
    return app.store.write(lambda tx: actions.begin(tx, kind, who))


def told(app, number, **page):
    return app.store.read(lambda tx: actions.action(tx, number, **{"most": 100, **page}))


def listed(app, **which):
    return app.store.read(lambda tx: actions.actions(tx, most=100, **which))


def cancel(app, **which):
    return actions.act(app.store, CancelStages(Which("p", **which)), ME)


def delete_items(app, *keys):
    return actions.act(app.store, Delete(Which("p", key=keys)), ME)


def undo(app, number):
    return actions.act(app.store, app.store.read(lambda tx: actions.undoing(tx, number)), Who("you", "not so"))


def states(app):
    return dict(Counter(row[0] for row in app.query("SELECT state FROM holdfast_item_stages")))


# Stored -----------------------------------------------------------------------------------------------------------------


def test_an_action_says_what_was_asked_for_by_whom_and_why_and_what_it_did_to_which_item(ten):
    ten.clock.advance(1)
    done = cancel(ten, key=("k1", "k2"), older_than_us=500_000)
    assert done == {"pending": 2}
    one = told(ten, done.action)
    assert one["filter"] == {"pipeline": "p", "key": ["k1", "k2"], "older_than": 0.5}
    assert (one["kind"], one["state"], one["by"], one["reason"]) == ("cancel", "done", "me", "because")
    assert one["preview"] == {"counts": {"pending": 2}, "more": False, "previewed": None}
    assert one["counts"] == {"pending": 2}
    assert [(item["key"], item["stage"], item["event"], item["data"]) for item in one["items"]] == [
        (key, "a", "cancelled", {"was": "pending"}) for key in ("k1", "k2")
    ]
    assert (one["created_at"], one["ended_at"]) == (ten.clock.now(), ten.clock.now())


def test_an_act_that_finds_nothing_leaves_no_action(ten):
    assert cancel(ten, key="nobody") == {}
    assert listed(ten) == []


def test_a_refused_act_leaves_no_action(ten):
    with pytest.raises(UsageError, match="runs anyway"):
        actions.act(ten.store, RetryStages(Which("p", states=frozenset({State.PENDING}))), ME)
    assert listed(ten) == []


def test_actions_are_listed_newest_first_and_the_open_ones_alone(ten):
    first = cancel(ten, key="k0").action
    second = begun(ten, CancelStages(Which("p"))).id
    assert [one["id"] for one in listed(ten)] == [second, first]
    assert [one["id"] for one in listed(ten, only_open=True)] == [second]


def test_the_items_of_an_action_come_in_pages(ten):
    ten.clock.advance(1)
    number = cancel(ten).action
    cancel(ten)
    seen, after = [], ""
    while after is not None:
        page = told(ten, number, after=after, most=4)
        seen += [item["key"] for item in page["items"]]
        after = page["cursor"]
    assert seen == [f"k{n}" for n in range(10)]
    with pytest.raises(UsageError, match="not the cursor of a page"):
        told(ten, number, after="somewhere")


def test_a_preview_counts_up_to_a_limit_and_says_so(ten, monkeypatch):
    monkeypatch.setattr(actions, "PREVIEWED", 5)
    seen = told(ten, cancel(ten).action)["preview"]
    assert (seen["counts"], seen["more"]) == ({"pending": 5}, True)
    monkeypatch.setattr(actions, "PREVIEWED", 100)
    done = actions.act(ten.store, RetryStages(Which("p")), ME)
    seen = told(ten, done.action)["preview"]
    assert (seen["counts"], seen["more"]) == ({"cancelled": 10}, False)


# Changed meanwhile ------------------------------------------------------------------------------------------------------


def test_an_action_says_how_much_of_its_preview_had_changed_before_it_began(ten):
    previewed = sum(actions.count(ten.store, CancelStages(Which("p"))).values())
    delete_items(ten, "k1")
    done = actions.begin_once(ten.store, CancelStages(Which("p")), ME, "r1", previewed)
    assert told(ten, done.action)["changed"] is None, "it is not done"
    actions.drive(ten.store, done.action)
    one = told(ten, done.action)
    assert (one["preview"], one["changed"]) == ({"counts": {"pending": 9}, "more": False, "previewed": 10}, 1)
    assert one["left_alone"] == []


def test_what_changes_between_two_chunks_of_an_action_counts_as_changed_meanwhile(ten):
    done = actions.begin_once(ten.store, CancelStages(Which("p")), ME, "r1", 10)
    ten.run_through()
    actions.drive(ten.store, done.action)
    one = told(ten, done.action)
    assert (sum(one["counts"].values()), one["changed"]) == (3, 7)


@pytest.mark.parametrize("kind", [CancelStages, Delete])
def test_of_items_that_were_asked_for_one_by_one_each_that_was_left_alone_is_told_with_its_state(ten, kind):
    keys = ("k1", "k2", exactly("k*"), "k3")
    ten.add(["k*"])
    delete_items(ten, "k2")
    by_hand = kind is CancelStages
    if by_hand:
        ten.cancel(key=exactly("k*"))
    else:
        delete_items(ten, exactly("k*"))
    done = actions.act(ten.store, kind(Which("p", key=keys)), ME, 4)
    one = told(ten, done.action)
    gone = {"pipeline": None, "states": {}}
    assert one["left_alone"] == [
        {"key": "k2", **gone},
        {"key": "k*", **({"pipeline": "p", "states": {"a": "cancelled"}} if by_hand else gone)},
    ]
    assert one["changed"] == 2


def test_an_answer_that_was_forgotten_meanwhile_is_told_with_the_state_of_its_stage(ten):
    for lease in ten.claim(most=3):
        ten.store.write(lambda tx, lease=lease: remember(tx, [MemoWrite(lease, "call", "done", "1", "k", value="1")]))
        ten.fail(lease)
    actions.act(ten.store, Forget(Which("p", key="k1")), ME)
    done = actions.act(ten.store, Forget(Which("p", key=("k0", "k1"))), ME, 2)
    one = told(ten, done.action)
    assert one["left_alone"] == [{"key": "k1", "pipeline": "p", "states": {"a": "exhausted"}}]
    assert one["changed"] == 1


def test_items_named_one_by_one_are_followed_through_all_chunks(ten):
    keys = tuple(f"k{n}" for n in range(10))
    done = actions.begin_once(ten.store, CancelStages(Which("p", key=keys)), ME, "r1", 10)
    delete_items(ten, "k8")
    actions.drive(ten.store, done.action)
    assert [one["key"] for one in told(ten, done.action)["left_alone"]] == ["k8"]


def test_a_filter_by_a_pattern_names_no_items(ten):
    done = actions.act(ten.store, CancelStages(Which("p", key=("k1", "no*"))), ME, 1)
    assert told(ten, done.action)["left_alone"] == []


# In chunks --------------------------------------------------------------------------------------------------------------


def test_an_action_that_was_left_goes_on_where_it_stood_and_does_each_item_once(ten):
    action = begun(ten, CancelStages(Which("p")))
    assert action.is_open and states(ten) == {"cancelled": 3, "pending": 7}
    with connected(ten) as other:
        assert actions.drive(other.store, action.id) == {"pending": 10}
    assert [item["key"] for item in told(ten, action.id)["items"]] == [f"k{n}" for n in range(10)]
    assert ten.counts() == ten.recount()


def test_an_action_comes_by_each_stage_of_an_item_once_wherever_it_has_moved_to(ten):
    """What it sent back, and what failed again and waits for its next attempt, is not sent back once more."""
    cancel(ten)
    action = begun(ten, RetryStages(Which("p", states=frozenset({State.CANCELLED, State.RETRY_LATER}))))
    for lease in ten.claim(most=3):
        ten.snooze(lease, 100)
    assert actions.drive(ten.store, action.id) == {"cancelled": 10}
    assert states(ten) == {"pending": 7, "retry_later": 3}


def test_items_that_are_added_while_an_action_is_open_are_not_meant(ten, monkeypatch):
    monkeypatch.setattr(delete, "CHUNK", 3)
    cancelling, deleting = begun(ten, CancelStages(Which("p"))), begun(ten, Delete(Which("p")))
    ten.add(["later"])
    assert actions.drive(ten.store, cancelling.id) == {"pending": 10}
    assert actions.drive(ten.store, deleting.id) == {"p": 10}
    assert ten.states("later") == {"a": "pending"}


def test_how_old_is_old_is_counted_from_the_beginning_of_an_action(ten):
    ten.clock.advance(10)
    action = begun(ten, CancelStages(Which("p", older_than_us=5_000_000)))
    ten.add([{"key": "k9", "changed": True}])
    ten.clock.advance(60)
    assert actions.drive(ten.store, action.id) == {"pending": 9}
    assert ten.states("k9") == {"a": "pending"}


def test_two_who_go_on_with_an_action_at_once_take_turns(ten):
    ten.add(f"more{n}" for n in range(50))
    action = begun(ten, CancelStages(Which("p")))
    with connected(ten) as one, connected(ten) as other:
        both = at_once(lambda: actions.drive(one.store, action.id), lambda: actions.drive(other.store, action.id))
    assert both == [{"pending": 60}] * 2
    assert Counter(item["key"] for item in told(ten, action.id)["items"]).most_common(1)[0][1] == 1
    assert ten.counts() == ten.recount()


def test_what_a_stopped_action_has_done_stays_done(ten):
    action = begun(ten, CancelStages(Which("p")))
    assert ten.store.write(lambda tx: actions.stop(tx, action.id, Who("you", "enough")))
    assert actions.drive(ten.store, action.id) == {"pending": 3}
    assert states(ten) == {"cancelled": 3, "pending": 7}
    assert told(ten, action.id)["state"] == "stopped"
    assert ten.events("action_stopped") == [{"action": action.id, "by": "you", "reason": "enough"}]
    assert not ten.store.write(lambda tx: actions.stop(tx, action.id, ME))


def test_an_interrupted_act_says_how_to_go_on_and_how_to_end_it(ten, monkeypatch):
    real, passes = actions.step, count()

    def interrupted(tx, number):
        if next(passes) == 1:
            raise KeyboardInterrupt
        return real(tx, number)

    monkeypatch.setattr(actions, "step", interrupted)
    with pytest.raises(KeyboardInterrupt) as stopped:
        cancel(ten)
    [note] = stopped.value.__notes__
    [one] = listed(ten, only_open=True)
    assert f"holdfast actions {one['id']} --continue" in note
    assert f"holdfast actions {one['id']} --stop" in note
    assert states(ten) == {"cancelled": 6, "pending": 4}


_names = count()


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_interleaving_of_chunks_comes_to_the_same_as_the_act_at_once(app, data):
    """Two actions over the same items, each driven by whoever comes; chunks of any size."""
    kinds = st.sampled_from(
        ["done", "failed", "exhausted", "cancelled", "retry_later", "on_hold", "pending", "in_progress"]
    )
    shelf = data.draw(st.lists(kinds, min_size=1, max_size=12), label="states")
    act, which = data.draw(
        st.sampled_from(
            [
                (RetryStages, frozenset()),
                (RetryStages, frozenset({State.DONE, State.FAILED, State.RETRY_LATER, State.ON_HOLD})),
                (CancelStages, frozenset()),
                (CancelStages, frozenset({State.PENDING, State.IN_PROGRESS})),
            ]
        ),
        label="act",
    )
    at_once_, in_chunks = f"whole{next(_names)}", f"parts{next(_names)}"
    for name in (at_once_, in_chunks):
        _fill(app, name, shelf)
    whole = actions.act(app.store, act(Which(at_once_, states=which)), ME)
    kind = act(Which(in_chunks, states=which))
    chunk, selection.CHUNK = selection.CHUNK, data.draw(st.integers(1, 4), label="chunk")
    try:
        with connected(app) as one, connected(app) as other:
            action = begun(app, kind)
            while action is not None and action.is_open:
                selection.CHUNK = data.draw(st.integers(1, 4), label="chunk")
                driver = data.draw(st.sampled_from([one, other, app]), label="driver")
                action = driver.store.write(lambda tx, number=action.id: actions.step(tx, number))
    finally:
        selection.CHUNK = chunk
    assert ({} if action is None else action.counts) == dict(whole)
    by_key = (
        "SELECT key, state, attempts FROM holdfast_item_stages x JOIN holdfast_pipelines p ON p.id = x.pipeline "
        "WHERE p.name = :name ORDER BY key"
    )
    assert app.query(by_key, name=in_chunks) == app.query(by_key, name=at_once_)


def _fill(app, name, shelf):
    app.pipeline({"a": []}, name=name, max_attempts=1)
    keys = [f"k{n:02}" for n in range(len(shelf))]
    app.add(keys)
    wanted = dict(zip(keys, shelf, strict=True))
    leases = {lease.key: lease for lease in app.claim(f"w {name}", most=100)}
    for key, state in wanted.items():
        lease = leases[key]
        if state == "done":
            app.complete(lease, 1)
        elif state == "failed":
            app.permanent(lease)
        elif state == "exhausted":
            app.fail(lease)
        elif state == "retry_later":
            app.snooze(lease, 100)
        elif state != "in_progress":
            app.release(lease)
    actions.act(
        app.store, CancelStages(Which(name, key=tuple(k for k in keys if wanted[k] == "cancelled") or "nobody")), ME
    )
    for key in keys:
        if wanted[key] == "on_hold":
            number = app.stage("a").id
            item = app.query(
                "SELECT id FROM holdfast_items i WHERE key = :key AND pipeline = (SELECT id FROM "
                "holdfast_pipelines p WHERE p.name = :name)",
                key=key,
                name=name,
            )[0][0]
            app.store.write(lambda tx, item=item, number=number: hold(tx, number, [item], "person", "asked"))


# Continued by a worker --------------------------------------------------------------------------------------------------


def test_a_worker_goes_on_with_what_nobody_has_touched_for_a_lease_a_chunk_at_a_time(ten):
    action = begun(ten, CancelStages(Which("p")))
    with connected(ten) as other:
        service = ActionFinisher(other.store, 1.0, LEASE_SECONDS)
        ten.clock.advance(LEASE_SECONDS)
        assert not service.one_pass(), "whoever began it may still be at it"
        ten.clock.advance(0.001)
        seen = []
        while service.one_pass():
            seen.append(states(ten).get("cancelled", 0))
    assert seen == [6, 9, 10]
    assert told(ten, action.id)["state"] == "done"


def test_of_two_workers_one_goes_on_and_the_other_leaves_it_to_it(ten):
    begun(ten, CancelStages(Which("p")))
    ten.clock.advance(LEASE_SECONDS + 1)
    with connected(ten) as one, connected(ten) as other:
        first, second = ActionFinisher(one.store, 1.0, LEASE_SECONDS), ActionFinisher(other.store, 1.0, LEASE_SECONDS)
        assert first.one_pass()
        assert not second.one_pass()
        assert first.one_pass()


def test_an_action_that_cannot_go_on_is_stopped_and_says_why(ten, caplog):
    action = begun(ten, CancelStages(Which("p")))
    ten.execute("UPDATE holdfast_actions SET filter = '{\"which\": 5}'")
    ten.clock.advance(LEASE_SECONDS + 1)
    with connected(ten) as other:
        service = ActionFinisher(other.store, 1.0, LEASE_SECONDS)
        assert not service.one_pass()
        assert not service.one_pass()
    [(state, error)] = ten.query("SELECT state, error FROM holdfast_actions WHERE id = :id", id=action.id)
    assert state == "stopped" and "it could not go on" in error


def test_ended_actions_go_with_the_events_of_their_time_and_open_ones_stay(ten):
    cancel(ten, key="k0")
    left = begun(ten, CancelStages(Which("p")))
    ten.clock.advance(100)
    ten.store.write(lambda tx: prune.prune_events(tx, tx.now - 50_000_000))
    assert [one["id"] for one in listed(ten)] == [left.id]


# Undone -----------------------------------------------------------------------------------------------------------------


def test_what_was_cancelled_is_sent_back_unless_it_has_moved_on(ten):
    done = cancel(ten)
    ten.retry(key="k0")
    ten.retry(key="k1")
    ten.cancel(key="k1", reason="and this one for good")
    back = undo(ten, done.action)
    assert back == {"cancelled": 8}
    assert ten.states("k0") == {"a": "pending"}
    assert ten.states("k1") == {"a": "cancelled"}
    one = told(ten, back.action)
    assert (one["kind"], one["undoes"], one["by"], one["reason"]) == ("retry", done.action, "you", "not so")
    assert ten.counts() == ten.recount()
    assert undo(ten, done.action) == {}


def test_what_was_sent_back_and_has_not_begun_is_as_it_was_before(ten):
    leases = ten.claim(most=6)
    for lease in leases[:3]:
        ten.permanent(lease, "no such page")
    for lease in leases[3:]:
        ten.complete(lease, 1)
    every = frozenset({State.FAILED, State.DONE})
    done = actions.act(ten.store, RetryStages(Which("p", states=every)), ME)
    assert done == {"failed": 3, "done": 3}
    [began] = ten.claim(most=1)
    undoing = ten.store.read(lambda tx: actions.undoing(tx, done.action))
    assert actions.count(ten.store, undoing) == {"pending": 5}
    assert undo(ten, done.action) == {"pending": 5}
    assert ten.row("k1", "a")["error"] == "no such page"
    assert states(ten) == {"failed": 2, "done": 3, "in_progress": 1, "pending": 4}
    ten.complete(began, 2)
    assert ten.counts() == ten.recount()


def test_what_was_on_hold_is_on_hold_again(ten):
    ten.hold("a", "k1")
    sent_back = actions.act(ten.store, RetryStages(Which("p", states=frozenset({State.ON_HOLD}))), ME)
    undo(ten, sent_back.action)
    assert ten.states("k1") == {"a": "on_hold"}
    cancelled = cancel(ten, key="k1")
    undo(ten, cancelled.action)
    assert ten.states("k1") == {"a": "on_hold"}
    assert ten.counts() == ten.recount()


def test_an_undo_can_be_undone(ten):
    done = cancel(ten)
    back = undo(ten, done.action)
    assert undo(ten, back.action) == {"pending": 10}
    assert states(ten) == {"cancelled": 10}
    assert ten.counts() == ten.recount()


def test_a_delete_cannot_be_undone_and_an_open_action_not_yet(ten):
    deleted = actions.act(ten.store, Delete(Which("p", key="k0")), ME)
    with pytest.raises(UsageError, match="cannot be undone: what was deleted is gone"):
        undo(ten, deleted.action)
    action = begun(ten, CancelStages(Which("p")))
    with pytest.raises(UsageError, match=f"still open: stop it first .*actions {action.id} --stop"):
        undo(ten, action.id)
    with pytest.raises(UsageError, match="there is no action 999"):
        undo(ten, 999)


# Flat -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_what_an_action_did_is_found_by_an_index_and_so_are_open_actions(ten):
    def plan(name, **params):
        statement = ten.store.statements[name]
        packed = ten.store.driver.dialect.pack_lists(statement, params)
        return "\n".join(
            row[3]
            for row in ten.store.read(lambda tx: tx.store.driver._run(f"EXPLAIN QUERY PLAN {statement.text}", packed))
        )

    events = plan("action_events", event="cancelled", at=0, until=1, after=0, mark="x", most=9)
    assert "ix_holdfast_events_kind (event=? AND at>? AND at<?)" in events
    assert "TEMP B-TREE" not in events
    assert "ix_holdfast_actions_open" in plan(
        "find_idle_action", kinds=["retry"], before=0, now=1, mine=0, touched_at=0
    )


# Asked for twice ------------------------------------------------------------------------------------------------------


def ask(store, request):
    return actions.begin_once(store, CancelStages(Which("p")), ME, request)


@pytest.mark.req("P17")
def test_a_request_that_arrives_twice_is_begun_once(ten):
    first = ask(ten.store, "r1")
    assert (first, first.action) == ({"pending": 3}, 1)
    again = ask(ten.store, "r1")
    assert (again, again.action) == (first, 1)
    assert [one["id"] for one in listed(ten)] == [1]
    assert actions.drive(ten.store, 1) == {"pending": 10}
    assert ask(ten.store, "r1") == {"pending": 10}
    seen = told(ten, 1)["preview"]
    assert (seen["counts"], seen["more"]) == ({"pending": 10}, False)


@pytest.mark.req("P17")
def test_of_the_same_request_from_two_at_once_one_acts(ten):
    with connected(ten) as one, connected(ten) as other:
        found = at_once(lambda: ask(one.store, "r1"), lambda: ask(other.store, "r1"))
    # On PostgreSQL the one that lost may have used up a number.
    [action] = {one.action for one in found}
    assert [one["id"] for one in listed(ten)] == [action]


def test_a_count_up_to_a_limit_says_that_there_is_more(ten):
    few = actions.count(ten.store, CancelStages(Which("p")), 4)
    assert (few, few.more) == ({"pending": 4}, True)
    every = actions.count(ten.store, CancelStages(Which("p")))
    assert (every, every.more) == ({"pending": 10}, False)
