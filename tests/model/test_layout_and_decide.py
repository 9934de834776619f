"""What a completed stage leads to, and what becomes of an attempt that did not succeed."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.layout import Layout, StageRow
from holdfast.model.retry_or_give_up import DEATHS_IN_ISOLATION, after_death, after_failure
from holdfast.model.states import FINISHED, MOVES, OPEN, Alone, State

#: On a busy machine a single example may take long; that says nothing about the code.
at_leisure = settings(deadline=None)


def row(number, name, after=(), *, created=1, changed=1, active=True, pipeline="p"):
    return StageRow(
        number,
        1 if pipeline == "p" else 2,
        pipeline,
        name,
        number,
        tuple(after),
        "1",
        5,
        active,
        created,
        changed,
        None,
        None,
    )


# The layout ----------------------------------------------------------------------------------------------------------


def test_a_stage_that_follows_one_other_needs_no_look_at_the_item():
    layout = Layout.of(1, [row(1, "a"), row(2, "b", ["a"]), row(3, "c", ["a"])])
    assert (layout.successors(1).simple, layout.successors(1).checked) == ((2, 3), ())
    assert (layout.successors(2).simple, layout.successors(2).checked) == ((), ())


def test_a_stage_where_others_meet_is_decided_with_the_item_locked():
    layout = Layout.of(1, [row(1, "a"), row(2, "b"), row(3, "c", ["a", "b"])])
    for parent in (1, 2):
        assert (layout.successors(parent).simple, layout.successors(parent).checked) == ((), (3,))
    assert layout.parents(3) == (1, 2)
    assert layout.parents(1) == ()


def test_many_pipelines_cost_as_much_as_they_are_and_not_as_much_as_their_square():
    def cpu_seconds(pipelines):
        rows = [
            row(number, f"s{number % 3}", [f"s{number % 3 - 1}"] if number % 3 else [], pipeline=f"p{number // 3}")
            for number in range(3 * pipelines)
        ]
        began = time.process_time()
        layout = Layout.of(1, rows)
        for name in layout.pipelines or [f"p{n}" for n in range(pipelines)]:
            assert len(layout.of_pipeline(name)) == 3
        return time.process_time() - began

    few, many = (min(cpu_seconds(pipelines) for _ in range(3)) for pipelines in (500, 8000))
    assert many < 16 * 4 * few  # 256 times as much, if it were the square


def test_a_stage_added_later_at_the_end_needs_no_look_either():
    """No row of it can exist for an item whose stage before it is only now completed."""
    layout = Layout.of(2, [row(1, "a"), row(2, "b", ["a"], created=2, changed=2)])
    assert layout.successors(1).simple == (2,)


@pytest.mark.parametrize(
    "later",
    [
        pytest.param([row(1, "a", created=2, changed=2), row(2, "b", ["a"])], id="the stage before was added later"),
        pytest.param([row(1, "a", changed=2), row(2, "b", ["a"])], id="the stage before was changed later"),
        pytest.param([row(1, "a"), row(2, "b", ["a"], changed=2)], id="the stage itself was moved or came back"),
    ],
)
def test_where_rows_may_exist_already_they_are_looked_for(later):
    layout = Layout.of(2, later)
    assert (layout.successors(1).simple, layout.successors(1).checked) == ((), (2,))


def test_a_removed_stage_follows_nothing_and_can_still_be_found():
    layout = Layout.of(2, [row(1, "a"), row(2, "b", ["a"], active=False, changed=2)])
    assert (layout.successors(1).simple, layout.successors(1).checked) == ((), ())
    assert [stage.name for stage in layout.of_pipeline("p")] == ["a"]
    assert layout.find("p", "b").id == 2
    assert layout.find("p", "x") is None


def test_pipelines_do_not_mix_though_their_stages_are_named_alike():
    layout = Layout.of(
        1, [row(1, "a"), row(2, "b", ["a"]), row(3, "a", pipeline="q"), row(4, "b", ["a"], pipeline="q")]
    )
    assert layout.successors(1).simple == (2,)
    assert layout.successors(3).simple == (4,)
    assert layout.stages[4].label == "q/b"


# Decisions -----------------------------------------------------------------------------------------------------------

attempts = st.integers(1, 20).flatmap(lambda most: st.tuples(st.integers(1, most), st.just(most)))
alone = st.sampled_from(list(Alone))


@pytest.mark.req("J3")
@at_leisure
@given(attempts, alone)
def test_a_failure_alone_is_tried_again_until_the_last_attempt_was_made(made_and_most, alone):
    attempt, most = made_and_most
    then = after_failure(attempt, most, alone, company=1)
    assert then == (State.EXHAUSTED if attempt == most else State.RETRY_LATER, attempt, alone)


@at_leisure
@given(attempts, alone, st.integers(2, 100))
def test_a_failure_in_company_never_exhausts_and_the_next_attempt_is_alone(made_and_most, alone, company):
    attempt, most = made_and_most
    then = after_failure(attempt, most, alone, company)
    assert then.state is State.RETRY_LATER
    assert then.attempts == min(attempt, most - 1)
    assert then.alone == max(alone, Alone.SINGLE)


@pytest.mark.fault(11)
@at_leisure
@given(attempts, st.sampled_from([Alone.TOGETHER, Alone.SINGLE]))
def test_a_death_beside_others_never_exhausts_and_the_next_attempt_is_isolated(made_and_most, alone):
    attempt, most = made_and_most
    for company in (True, False):
        then = after_death(attempt, most, alone, company)
        assert then == (State.PENDING, min(attempt, most - 1), Alone.ISOLATED)


@pytest.mark.req("P6")
@pytest.mark.fault(11)
@at_leisure
@given(attempts, st.integers(Alone.ISOLATED, Alone.SOLITARY + 5))
def test_the_death_of_a_worker_that_held_other_work_too_costs_isolated_work_no_attempt(made_and_most, alone):
    attempt, most = made_and_most
    then = after_death(attempt, most, alone, company=True)
    assert (then.state, then.attempts) == (State.PENDING, attempt - 1)
    assert then.alone == (alone if alone >= Alone.SOLITARY else alone + 1)


@pytest.mark.fault(11)
@at_leisure
@given(attempts, st.integers(Alone.ISOLATED, Alone.SOLITARY + 5))
def test_the_death_of_a_worker_that_held_nothing_else_is_the_works_fault_only_if_it_happens_again_and_again(
    made_and_most, alone
):
    attempt, most = made_and_most
    deaths = max(alone - Alone.SOLITARY, 0) + 1
    then = after_death(attempt, most, alone, company=False)
    if attempt == most and deaths >= DEATHS_IN_ISOLATION:
        assert then == (State.EXHAUSTED, attempt, alone)
    else:
        assert then == (State.PENDING, min(attempt, most - 1), Alone.SOLITARY + deaths)


@at_leisure
@given(st.integers(1, 6), st.lists(st.sampled_from(["fails", "fails in company", "dies"]), min_size=40, max_size=40))
def test_whatever_happens_an_item_is_exhausted_in_the_end_and_never_before_its_attempts(most, fate):
    attempts, alone, starts = 0, 0, 0
    for what in fate:
        starts += 1
        attempt = attempts + 1
        assert attempt <= most
        if what == "dies":
            then = after_death(attempt, most, alone, company=False)
        else:
            in_company = what == "fails in company" and alone < Alone.SINGLE
            then = after_failure(attempt, most, alone, 2 if in_company else 1)
        assert then.alone >= alone
        attempts, alone = then.attempts, then.alone
        if then.state is State.EXHAUSTED:
            break
    assert then.state is State.EXHAUSTED
    # Some on top: for the company it was in, for the worker it shared, for the workers that died beside it.
    assert most <= starts <= most + 2 + DEATHS_IN_ISOLATION


# States --------------------------------------------------------------------------------------------------------------


def test_every_state_is_open_or_finished_and_has_its_moves():
    assert set(State) == OPEN | FINISHED
    assert not OPEN & FINISHED
    assert set(MOVES) == set(State)


def test_from_every_state_every_other_can_be_reached():
    for start in State:
        reached, todo = {start}, [start]
        while todo:
            for to in MOVES[todo.pop()] - reached:
                reached.add(to)
                todo.append(to)
        assert reached == set(State)


def test_what_is_finished_moves_only_to_pending():
    for state in FINISHED:
        assert MOVES[state] == {State.PENDING}
