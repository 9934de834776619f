"""What was spent: sums over the ledger, exact, by pipeline, stage, item, resource, model and day."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import combinations

import pytest

from holdfast.answers.units import day, instant
from holdfast.app import Holdfast
from holdfast.engine import costs
from holdfast.engine.complete import complete
from holdfast.engine.costs import BY
from holdfast.engine.fail import fail
from holdfast.engine.finish_leases import Cost, FinishedAttempt
from holdfast.engine.memos import MemoWrite, remember
from holdfast.errors import UsageError
from holdfast.model.money import micros
from holdfast.model.paid_call import CallFacts
from holdfast.model.states import State
from holdfast.store import Transaction
from tests.support.money import charged

pytestmark = pytest.mark.req("J9", "J10")

DAY = 24 * 3600


@pytest.fixture
def hold(url, app, clock) -> Iterator[Holdfast]:
    """The questions a person asks, on the same store."""
    app.pipeline({"a": [], "b": ["a"]})
    with Holdfast(url, resources={"gemini": {}, "mistral": {}}, clock=clock) as hold:
        hold.register()
        yield hold


def pays(app, lease, amount, resource=None, **facts) -> None:
    """Finish an attempt that has spent money."""
    one = app.finished(lease)
    one.costs = [Cost(micros(amount), resource, CallFacts.read(facts, where="test"))]
    app.store.write(lambda tx: complete(tx, [one]))


def fails(app, lease, amount, **more) -> None:
    one = FinishedAttempt(lease, State.RETRY_LATER, "1", error="boom", costs=[Cost(micros(amount), None)], **more)
    app.store.write(lambda tx: fail(tx, [one]))


def remembers(app, lease, name, amount, resource=None) -> MemoWrite:
    memo = MemoWrite(lease, name, "done", "1", f"key of {name}", cost=micros(amount), value="1", resource=resource)
    app.store.write(lambda tx: remember(tx, [memo]))
    return memo


@pytest.fixture
def spent(app, hold, clock) -> list[dict[str, object]]:
    """Payments of two pipelines, two stages, three items, two resources and two days; what each was."""
    payments: list[dict[str, object]] = []

    def pay(pipeline: str, stage: str, item: str, resource: str | None, amount: str) -> None:
        [lease] = app.claim(stage=stage)
        assert lease.key == item
        model = "" if resource is None else f"{resource}-1"
        pays(app, lease, amount, resource, model=model, tokens_in=3)
        payments.append(
            {
                "pipeline": pipeline,
                "stage": stage,
                "item": item,
                "resource": resource,
                "day": day(clock.now() // (DAY * 10**6)),
                "amount": amount,
                "model": model or None,
            }
        )

    app.add(["x", "y"])
    pay("p", "a", "x", "gemini", "0.40")
    pay("p", "a", "y", None, "0.10")
    clock.advance(DAY)
    pay("p", "b", "x", "gemini", "0.000001")
    pay("p", "b", "y", "mistral", "2.30")
    app.pipeline({"a": []}, name="q")
    app.add(["x", "z"])
    pay("q", "a", "x", "gemini", "0.1")
    pay("q", "a", "z", "gemini", "0.1")
    return payments


@pytest.mark.parametrize("at_once", [1, 3, costs.CHUNK])
def test_sums_by_anything_are_those_of_the_payments(hold, spent, at_once, monkeypatch):
    """By one, by several, by all: the same money, exactly, also if several were paid at one instant."""
    monkeypatch.setattr(costs, "CHUNK", at_once)
    for by in [by for many in range(1, 7) for by in combinations(BY, many)]:
        sums: dict[tuple[object, ...], Fraction] = defaultdict(Fraction)
        count: dict[tuple[object, ...], int] = defaultdict(int)
        for payment in spent:
            group = tuple(payment[name] for name in by)
            sums[group] += Fraction(str(payment["amount"]))
            count[group] += 1
        told = charged(hold, by)
        assert {one.tokens_in for one in hold.costs(by).sums} <= {3 * n for n in range(1, 7)}
        assert {tuple(one[name] for name in by): Fraction(one["amount"], 10**6) for one in told} == sums
        assert {tuple(one[name] for name in by): one["payments"] for one in told} == count
        assert all(type(one["amount"]) is int for one in told)
        assert [one["amount"] for one in told] == sorted((one["amount"] for one in told), reverse=True)


@pytest.mark.req("J10")
def test_the_view_of_costs_says_who_paid_what_when_without_millionths(app, spent):
    rows = app.query("SELECT pipeline, stage, item, resource, model, day, costs, in_doubt FROM holdfast_costs")
    assert sorted((*row[:6], exact(row[6]), exact(row[7])) for row in rows) == sorted(
        (
            *(one[name] for name in ("pipeline", "stage", "item", "resource", "model")),
            str(one["day"]),
            exact(one["amount"]),
            0,
        )
        for one in spent
    )


@pytest.mark.req("J10")
def test_the_same_question_in_sql_has_the_same_answer_on_both_databases(app, hold, spent):
    asked = "SELECT day, stage, ROUND(SUM(costs), 6) FROM holdfast_costs WHERE pipeline = 'p' GROUP BY day, stage ORDER BY day"
    [first, *_] = {one["day"]: None for one in spent}
    assert [(day, stage, exact(n)) for day, stage, n in app.query(asked)] == [
        (str(first), "a", Decimal("0.5")),
        (str(first + timedelta(days=1)), "b", Decimal("2.300001")),
    ]
    assert micros(str(app.query("SELECT ROUND(SUM(costs), 6) FROM holdfast_costs")[0][0])) == micros(
        hold.costs().total.costs
    )


@pytest.mark.req("J10")
def test_in_the_view_of_costs_a_call_in_doubt_stands_apart_and_one_that_was_free_is_none(app, hold):
    app.add(["x", "y"])
    for lease, state in zip(app.claim(most=2), ("doubtful", "not_charged"), strict=True):
        memo = MemoWrite(lease, "m", "intended", "1", "k", estimate=micros("0.4"))
        app.store.write(lambda tx, memo=memo: remember(tx, [memo]))
        app.execute("UPDATE holdfast_calls SET state = :state WHERE item = :item", state=state, item=lease.item)
    [(item, state, costs_, in_doubt)] = app.query("SELECT item, state, costs, in_doubt FROM holdfast_costs")
    assert (item, state, exact(costs_), exact(in_doubt)) == ("x", "doubtful", 0, Decimal("0.4"))


def exact(value: object) -> Decimal:
    """A number as its digits say: SQLite has no decimal numbers, but prints them alike."""
    return Decimal(str(value)).normalize()


def test_sums_by_stage_are_made_in_the_database_a_stretch_at_a_time(hold, spent, monkeypatch):
    """So that memory does not grow with the payments, nor with the items they were for."""
    monkeypatch.setattr(costs, "CHUNK", 2)
    sizes: list[tuple[str, int]] = []
    run = Transaction.run

    def counted(tx, name, /, **params):
        rows = run(tx, name, **params)
        sizes.append((name, len(rows)))
        return rows

    monkeypatch.setattr(Transaction, "run", counted)
    hold.costs(["stage"], since=instant(0))
    # The two of the first day; the four of the next, which were paid at one instant; and no more. Each by stage, resource,
    # model and day.
    assert [n for name, n in sizes if name == "sum_calls"] == [2, 3, 0]
    assert not [n for name, n in sizes if name == "read_items"]


#: What a call has read and written; of these, what came from a cache, and what was reasoning.
TOKENS = {"tokens_in": 812, "tokens_out": 40, "tokens_cached": 500, "tokens_reasoning": 16}


def tokens(one: object) -> dict[str, int]:
    return {name: getattr(one, name) for name in TOKENS}


@pytest.mark.req("P12")
def test_cached_and_reasoning_tokens_are_summed_beside_those_they_are_part_of(hold, app):
    app.add(["x", "y", "z"])
    for lease in app.claim(most=3):
        told = {} if lease.key == "z" else {**TOKENS, "model": "flash"}
        pays(app, lease, "0.05", "gemini", **told)
    twice = {name: 2 * n for name, n in TOKENS.items()}
    assert tokens(hold.costs().total) == twice
    for by in ("pipeline", "stage", "item", "resource", "model", "day"):
        sums = hold.costs([by]).sums
        assert sums == hold.costs([by], since=instant(0)).sums
        told = {getattr(one, by): tokens(one) for one in sums}
        expected = {"item": {"x": TOKENS, "y": TOKENS}, "model": {"flash": twice}}.get(by, {next(iter(told)): twice})
        assert told == {name: expected.get(name, dict.fromkeys(TOKENS, 0)) for name in told}
        assert expected.keys() <= told.keys()
    assert [tokens(call) for call in hold.calls("x")] == [TOKENS]
    asked = f"SELECT {', '.join(TOKENS)} FROM holdfast_costs WHERE model = 'flash'"
    assert app.query(asked) == [tuple(TOKENS.values())] * 2


@pytest.mark.req("P12", "V13")
def test_the_tokens_of_a_call_in_doubt_count_once_somebody_knows_that_it_was_charged(hold, app):
    app.add(["x", "y"])
    facts = CallFacts.read({**TOKENS, "model": "flash"}, where="test")
    leases = app.claim("dies", most=2)
    intents = [
        MemoWrite(lease, "ask", "intended", "1", "key", estimate=share, facts=its, lead=leases[0].id)
        for lease, share, its in zip(leases, (200_001, 200_000), facts.shares(2), strict=True)
    ]
    app.store.write(lambda tx: remember(tx, intents))
    assert hold.costs().sums == ()
    app.kill("dies")
    [doubt] = hold.costs(["model"]).sums
    assert (doubt.in_doubt, doubt.doubts, tokens(doubt)) == (Decimal("0.400001"), 1, dict.fromkeys(TOKENS, 0))
    hold.resolve("x", "ask", charged="0.38", by="me", reason="on the invoice")
    [paid] = hold.costs(["model"]).sums
    assert (paid.model, paid.costs, paid.payments, tokens(paid)) == ("flash", Decimal("0.38"), 1, TOKENS)
    halves = {name: n // 2 for name, n in TOKENS.items()}
    assert [tokens(one) for one in hold.costs(["item"]).sums] == [halves, halves]


def test_costs_of_one_pipeline_and_from_a_time_on(hold, spent, clock):
    assert charged(hold, ["stage"], pipeline="q") == [{"stage": "a", "amount": 200_000, "payments": 2}]
    today = clock.now() // (DAY * 10**6)
    assert charged(hold, ["day"], pipeline="p", since=instant(today * DAY * 10**6)) == [
        {"day": day(today), "amount": 2_300_001, "payments": 2}
    ]
    assert charged(hold, ["pipeline"], pipeline="nothing of this name") == []


def test_sums_by_what_does_not_exist_are_refused(hold):
    for by in ([], ["colour"], ["stage", "colour"]):
        with pytest.raises(UsageError, match=r"summed by pipeline, stage, item, resource, model, day"):
            hold.costs(by)


def test_ten_thousand_tenths_are_a_thousand(hold, app):
    """Added up as floats they would not be."""
    app.add(["x"])
    [lease] = app.claim()
    one = app.finished(lease)
    one.costs = [Cost(micros(0.1), None) for _ in range(10_000)]
    app.store.write(lambda tx: complete(tx, [one]))
    assert charged(hold, ["pipeline"]) == [{"pipeline": "p", "amount": 1_000_000_000, "payments": 10_000}]


def test_large_sums_stay_exact(hold, app):
    """Beyond what a double holds to the unit."""
    app.add(["x", "y", "z"])
    most = 2**53 + 1
    for lease in app.claim(most=3):
        one = app.finished(lease)
        one.costs = [Cost(most, None)]
        app.store.write(lambda tx, one=one: complete(tx, [one]))
    assert charged(hold, ["pipeline"])[0]["amount"] == 3 * most


def test_the_money_of_attempts_that_failed_counts(hold, app):
    app.add(["x"])
    for amount in ("0.10", "0.20"):
        fails(app, app.claim()[0], amount)
        app.promote()
    pays(app, app.claim()[0], "0.30")
    assert charged(hold, ["item", "stage"]) == [{"item": "x", "stage": "a", "amount": 600_000, "payments": 3}]


def test_the_money_of_an_attempt_that_was_the_last_counts(hold, app):
    app.pipeline({"a": [], "b": ["a"]}, max_attempts=1)
    app.add(["x"])
    fails(app, app.claim()[0], "0.10")
    assert app.states("x") == {"a": "exhausted"}
    assert charged(hold, ["stage"]) == [{"stage": "a", "amount": 100_000, "payments": 1}]


def test_the_money_of_an_attempt_that_can_never_work_counts(hold, app):
    app.add(["x"])
    [lease] = app.claim()
    one = FinishedAttempt(lease, State.FAILED, "1", error="no", costs=[Cost(5, None)])
    app.store.write(lambda tx: complete(tx, [one]))
    assert charged(hold, ["stage"]) == [{"stage": "a", "amount": 5, "payments": 1}]


def test_the_money_of_a_snooze_counts(hold, app):
    app.add(["x"])
    fails(app, app.claim()[0], "0.10", snooze=True, delay_us=1)
    assert charged(hold, ["stage"])[0]["amount"] == 100_000


def test_an_attempt_that_lost_its_lease_records_no_money(hold, app):
    """Nothing is written under an old token, not even a cost: the late worker's call is a fact of its own log."""
    app.add(["x"])
    [late] = app.claim("late")
    app.kill("late")
    pays(app, late, "0.40")
    assert remembers(app, late, "gemini", "0.40").lost
    assert charged(hold, ["stage"]) == []


def test_a_memo_that_was_paid_counts_once_however_often_its_stage_is_tried(hold, app):
    app.add(["x"])
    [lease] = app.claim()
    remembers(app, lease, "gemini", "0.40", "gemini")
    for _ in range(3):
        app.fail(lease)
        app.promote()
        [lease] = app.claim()
        assert lease.memos["gemini"].cost == 400_000
    app.complete(lease)
    assert charged(hold, ["resource"]) == [{"resource": "gemini", "amount": 400_000, "payments": 1}]


def test_what_a_call_cost_that_a_person_resolved_counts(hold, app):
    app.add(["x"])
    [lease] = app.claim()
    intent = MemoWrite(lease, "gemini", "intended", "1", "key", estimate=400_000)
    app.store.write(lambda tx: remember(tx, [intent]))
    app.permanent(lease, "held")
    assert hold.resolve("x", "gemini", value={"text": "…"}, charged="0.38", by="me", reason="on the invoice") == "a"
    assert charged(hold, ["item"]) == [{"item": "x", "amount": 380_000, "payments": 1}]
    [event] = hold.events(event="resolved")
    assert (event.item, event.stage) == ("x", "a")
    assert event.data == {
        "memo": "gemini",
        "decided": "given a result",
        "by": "me",
        "reason": "on the invoice",
    }
    app.retry()
    [again] = app.claim()
    assert (again.memos["gemini"].state, again.memos["gemini"].value) == ("done", '{"text":"…"}')


def test_a_call_that_was_not_made_is_forgotten_and_has_no_cost(hold, app):
    app.add(["x"])
    [lease] = app.claim()
    app.store.write(lambda tx: remember(tx, [MemoWrite(lease, "gemini", "intended", "1", "key")]))
    app.permanent(lease, "held")
    with pytest.raises(UsageError, match="say what the call returned, or what was charged"):
        hold.resolve("x", "gemini")
    assert [memo.name for memo in hold.memos("x")] == ["gemini"]
    hold.resolve("x", "gemini", charged=0, by="me")
    assert (hold.memos("x"), hold.costs(["item"]).sums) == ((), ())
    assert [(call.state, call.amount) for call in hold.calls("x")] == [("not_charged", 0)]


def test_a_call_that_may_be_under_way_cannot_be_resolved(hold, app):
    app.add(["x"])
    [lease] = app.claim()
    app.store.write(lambda tx: remember(tx, [MemoWrite(lease, "gemini", "intended", "1", "key")]))
    with pytest.raises(UsageError, match="'a' is in progress"):
        hold.resolve("x", "gemini", value=1)
    assert [memo.state for memo in hold.memos("x")] == ["intended"]


def test_only_what_is_in_doubt_can_be_resolved(hold, app):
    app.add(["x"])
    [lease] = app.claim()
    remembers(app, lease, "gemini", 1)
    app.fail(lease)
    for memo, says in (("gemini", "not in doubt"), ("nothing", "has no memo 'nothing'")):
        with pytest.raises(UsageError, match=says):
            hold.resolve("x", memo, value=1)
    with pytest.raises(UsageError, match="negative"):
        hold.resolve("x", "gemini", value=1, charged=-1)


def test_the_outcome_carries_what_its_attempt_and_its_memos_cost(hold, app):
    """This is what `plan` forecasts from."""
    app.add(["x"])
    [lease] = app.claim()
    memo = remembers(app, lease, "gemini", "0.40")
    app.fail(lease)
    app.promote()
    [lease] = app.claim()
    assert lease.memos["gemini"].cost == memo.cost
    pays(app, lease, "0.05")
    assert app.query("SELECT cost FROM holdfast_outcomes") == [(450_000,)]


def test_facts_about_a_payment_are_in_the_ledger(hold, app):
    app.add(["x"])
    pays(app, app.claim()[0], "0.05", "gemini", tokens_out=812, model="flash", region="eu")
    [call] = hold.calls("x")
    assert (call.amount, call.resource, call.model, call.tokens_out) == (Decimal("0.05"), "gemini", "flash", 812)
    assert call.facts == {"tokens_out": 812, "model": "flash", "region": "eu"}
    [told] = [one for one in hold.history("x") if one.event == "cost"]
    assert (told.amount, told.data["region"]) == (Decimal("0.05"), "eu")


def test_costs_stay_when_the_events_around_them_are_forgotten(hold, app, clock):
    app.add(["x"])
    fails(app, app.claim()[0], "0.10")
    clock.advance(400 * DAY)
    hold.prune(events_older_than="90d")
    assert hold.events(key="x") == ()
    assert charged(hold, ["item"]) == [{"item": "x", "amount": 100_000, "payments": 1}]


def test_one_name_alone_is_what_costs_are_summed_by(hold: Holdfast) -> None:
    assert hold.costs(by="model").by == ("model",)
    with pytest.raises(UsageError, match="costs by modell: "):
        hold.costs("modell")
