"""Sums of money follow from the ledger: damage is found and said in words, and put right without losing anything."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import count
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.engine import reconcile_money
from holdfast.engine.actions import act
from holdfast.engine.costs import costs
from holdfast.engine.delete import Delete
from holdfast.engine.prune import prune_items
from holdfast.engine.resolve import Resolve
from holdfast.engine.selection import Who
from holdfast.model.item_filter import Which
from holdfast.model.paid_call import CallFacts
from holdfast.store import Store
from holdfast.testing import ManualClock
from tests.support.limits import UNIT, Limited, statements
from tests.support.together import listening, wait_for

pytestmark = pytest.mark.req("V13")

DAY_SECONDS = 86_400
#: Limits of the pipeline and of its stage.
OWN = {"budget": 900, "zone": "Asia/Kathmandu", "stages": {"work": {"concurrency": 5}}}
ME = Who("me", "the file was restored by hand")


def spend(app: Limited) -> None:
    """One call that is charged, one that is in doubt, one that was refused, and an amount that was reported."""
    charged, doubtful, refused = app.begin(3)
    for lease in (charged, doubtful, refused):
        app.intend(lease, estimate=2 * UNIT, facts=CallFacts("large", 7, 3, 5, 2))
    app.paid(charged, cost=UNIT)
    app.end(charged, cost=UNIT // 4)
    app.permanent(doubtful, "no answer")
    app.refused(refused)
    app.permanent(refused, "429")


class Books(Limited):
    """A pipeline with a stage that uses a resource, limits of its own everywhere, and money spent on three days."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        super().__init__(store, clock)
        clock.advance(datetime(2027, 3, 22, 22, 30, tzinfo=UTC).timestamp() - clock.now() / 1e6)
        self.limited({"zone": "Europe/Berlin", "budget": 900}, items=9)
        self.declare({"api": {"zone": "Europe/Berlin", "budget": 900}}, p=OWN)
        for _ in range(3):
            spend(self)
            self.clock.advance(DAY_SECONDS)
            self.beat("w")
        assert self.wrong() == []

    def wrong(self) -> list[str]:
        return [one.text for one in self.store.read(reconcile_money.find).wrong]

    def repair(self) -> list[str]:
        found = self.store.read(reconcile_money.find)
        return [
            text
            for day in found.steps
            for text in self.store.write(
                lambda tx, day=day: reconcile_money.repair(tx, day, found.old_at, ME),
                exclusive=True,  # type: ignore[misc]
            )
        ]

    def money(self) -> Any:
        """All that is told of money."""
        by = ("pipeline", "stage"), ("resource", "day"), ("model",)
        sums = [self.store.read(lambda tx, by=by: costs(tx, by, pipeline=None, since=None)) for by in by]  # type: ignore[misc]
        return sums, {name: {key: one[key] for key in MONEY} for name, one in self.limits().items()}


MONEY = ("spent", "costs", "in_doubt", "spent_today", "set_aside")


@pytest.fixture
def books(store: Store, clock: ManualClock) -> Books:
    return Books(store, clock)


# Found, and put right -------------------------------------------------------------------------------------------------

#: What is done to the tables, and what is said of it.
DAMAGE = (
    (
        "UPDATE holdfast_money SET amount = amount + 3000000 WHERE model = 'large' AND amount > 0",
        "costs of p/work, resource 'api', model 'large' on 2027-03-22: costs 4.00, the ledger says 1.00",
    ),
    ("UPDATE holdfast_money SET tokens_in = 0", "tokens in 0, the ledger says 7"),
    (
        "UPDATE holdfast_money SET tokens_cached = tokens_cached + 8 WHERE tokens_cached > 0",
        "model 'large' on 2027-03-22: tokens cached 13, the ledger says 5",
    ),
    ("UPDATE holdfast_money SET tokens_reasoning = 0", "tokens reasoning 0, the ledger says 2"),
    (
        "UPDATE holdfast_money SET doubts = 0, in_doubt = 0",
        "doubts 0, the ledger says 1; in doubt 0.00, the ledger says 2.00",
    ),
    ("DELETE FROM holdfast_money", "costs of p/work, resource 'api'"),
    (
        "INSERT INTO holdfast_money VALUES (7, 999, '', '', 20535, 1, 5, 0, 0, 0, 0, 0, 0)",
        "costs of stage 999 on 2026-03-23: payments 1, the ledger says 0; costs 0.000005, the ledger says 0.00",
    ),
    ("UPDATE holdfast_spent SET amount = in_doubt", "costs 0.00, the ledger says 1.25"),
    ("UPDATE holdfast_spent SET in_doubt = in_doubt - 2000001", "in doubt -0.000001, the ledger says 2.00"),
    ("DELETE FROM holdfast_spent", "budget of pipeline 'p' until 2027-03-25: costs 0.00, the ledger says 3.75"),
    (
        "DELETE FROM holdfast_spent WHERE resource IN (SELECT id FROM holdfast_resources WHERE name = '@p/work')",
        "budget of stage 'work' until 2027-03-24",
    ),
    ("INSERT INTO holdfast_spent VALUES (999, 20900, 5, 0)", "budget of resource 999 on 2027-03-23"),
    (
        "INSERT INTO holdfast_spent VALUES (999, 99999999, 5, 0)",
        "on day 99999999: costs 0.000005, the ledger says 0.00",
    ),
    # What nothing can have reached: a difference would leave its column.
    ("UPDATE holdfast_spent SET amount = 9223372036854775807", "the ledger says"),
    ("UPDATE holdfast_spent SET amount = -9223372036854775807 - 1", "the ledger says"),
    ("UPDATE holdfast_spent SET in_doubt = 9223372036854775807", "the ledger says"),
    ("UPDATE holdfast_spent SET in_doubt = -9223372036854775807 - 1", "the ledger says"),
    ("UPDATE holdfast_money SET amount = 9223372036854775807 WHERE slot = 0", "the ledger says"),
    ("UPDATE holdfast_money SET in_doubt = -9223372036854775807 - 1", "the ledger says"),
)


def test_a_sum_that_is_damaged_is_found_and_put_right(books: Books):
    right = books.money()
    for statement, words in DAMAGE:
        books.execute(statement)
        found = books.wrong()
        assert any(words in line for line in found), (statement, found)
        assert sorted(books.repair()) == sorted(found), statement
        assert (books.wrong(), books.repair(), books.money()) == ([], [], right), statement
        told = [line for event in books.told("sums_repaired") for line in event["data"]["found"]]
        assert {*found} <= {*told}, statement


def test_what_a_living_worker_has_counted_stays_in_its_own_rows(books: Books):
    """The difference is added beside it: the worker goes on adding to what it has."""
    books.execute("UPDATE holdfast_money SET amount = 0")
    own = books.query("SELECT * FROM holdfast_money WHERE slot <> 0 ORDER BY stage, resource, model, day, slot")
    books.repair()
    assert books.query("SELECT * FROM holdfast_money WHERE slot <> 0 ORDER BY stage, resource, model, day, slot") == own
    books.fold()
    assert books.wrong() == []


def test_only_the_days_that_are_wrong_are_held(books: Books):
    api = "resource IN (SELECT id FROM holdfast_resources WHERE name = 'api')"
    books.execute(f"UPDATE holdfast_spent SET amount = amount + 1 WHERE day = 20899 AND {api}")
    assert [line.split(": ")[0] for line in books.repair()] == ["budget of resource 'api' on 2027-03-22"]
    assert [event["data"]["day"] for event in books.told("sums_repaired")] == ["2027-03-22"]


def test_work_that_a_damaged_budget_held_back_begins_again(books: Books):
    books.execute("UPDATE holdfast_spent SET amount = 900000000 WHERE day = 20899")
    books.retry(states=("done", "failed"))
    assert books.admit().blocked.reason == "budget"
    books.repair()
    assert len(books.begin()) == 1


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_who_pays_while_a_day_is_put_right_waits_until_that_is_done(books: Books, url: str):
    """On SQLite there is one writer at a time anyway."""
    books.retry(states=("done", "failed"))
    spend(books)
    books.execute("UPDATE holdfast_money SET amount = amount + 1 WHERE day = (SELECT MAX(day) FROM holdfast_money)")
    looks, waiting = count(), "SELECT COUNT(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with ThreadPoolExecutor(1) as pool, Holdfast(url, clock=books.clock) as app:
        paying: list[Future[None]] = []

        def pays(point: str) -> None:
            # The first look says which days are wrong; in the second one, the ledger has been read already.
            if point == "store.sum_money" and next(looks) == 1:
                paying.append(pool.submit(spend, books.beside()))
                wait_for(lambda: paying[0].done() or books.query(waiting) != [(0,)])

        with listening(pays):
            assert app.repair() != []
        paying[0].result()
        assert app.check() == []


@pytest.mark.parametrize("gone", ["pruned", "deleted"])
def test_sums_do_not_shrink_when_items_are_forgotten(books: Books, gone: str):
    """The ledger keeps the amounts of items that are no more."""
    right = books.money()
    if gone == "deleted":
        assert act(books.store, Delete(Which("p")), ME) == {"p": 9}
    else:
        pipeline = books.stage("work").pipeline
        assert books.store.write(lambda tx: prune_items(tx, pipeline, tx.now)) == 9
    assert books.wrong() == []
    books.execute("DELETE FROM holdfast_money")
    books.execute("DELETE FROM holdfast_spent")
    books.repair()
    assert books.money() == right


def test_how_far_it_has_come_is_said(books: Books, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("holdfast.engine.costs.CHUNK", 4)
    said: list[int] = []
    books.store.read(lambda tx: reconcile_money.find(tx, said.append))
    assert said == sorted(said) and len(said) > 1 and said[-1] == 12


# Before there was a ledger --------------------------------------------------------------------------------------------


def upgraded(books: Books, at: int) -> None:
    """As if the store had been there before the ledger."""
    books.execute("UPDATE holdfast_schema_version SET migrated_at = :at WHERE version = 5", at=at)


def test_money_that_was_counted_before_there_was_a_ledger_is_kept(books: Books):
    """Workers of the version before counted doubts as spent, and left no row that could tell."""
    noon = round(datetime(2027, 3, 23, 12, tzinfo=UTC).timestamp()) * 1_000_000
    upgraded(books, noon)
    books.execute("UPDATE holdfast_spent SET amount = amount + 7000000")
    assert [line.split(": ")[0] for line in books.repair()] == ["budget of resource 'api' on 2027-03-24"]
    assert books.wrong() == []
    assert books.limit()["costs"] == 3 * 1_250_000 + 2 * 7_000_000, (
        "of the day on which it was upgraded, and of the one before"
    )
    assert books.limit("@p")["costs"] == 3 * 1_250_000 + 3 * 7_000_000


@pytest.mark.parametrize("left", ["a payment", "a doubt", "a payment in the ledger"])
def test_so_is_what_a_worker_of_the_version_before_has_counted_since(books: Books, left: str):
    upgraded(books, 1)
    if left == "a payment in the ledger":
        books.execute("UPDATE holdfast_calls SET lease = 0 WHERE day = 20900")
    else:
        event, data = {"a payment": ("cost", "{}"), "a doubt": ("money_in_doubt", '{"counted": 7}')}[left]
        noon = round(datetime(2027, 3, 23, 12, tzinfo=UTC).timestamp()) * 1_000_000
        added = "INSERT INTO holdfast_events (at, event, data) VALUES (:at, :event, :data)"
        books.execute(added, at=noon, event=event, data=data)
    books.execute("UPDATE holdfast_spent SET amount = amount + 1")
    assert [line.split(": ")[0] for line in books.wrong()] == ["budget of resource 'api' on 2027-03-24"]


def test_costs_are_compared_for_all_days(books: Books):
    upgraded(books, books.clock.now())
    books.execute("UPDATE holdfast_money SET amount = amount + 1")
    assert len(books.repair()) == 6
    assert books.wrong() == []


# Limits of a pipeline or a stage --------------------------------------------------------------------------------------


@pytest.fixture
def paid(store: Store, clock: ManualClock) -> Books:
    """The same, and its pipeline and stage have no limits yet."""
    books = Books(store, clock)
    books.declare(p={})
    books.execute(
        "DELETE FROM holdfast_spent WHERE resource IN (SELECT id FROM holdfast_resources WHERE name <> 'api')"
    )
    assert books.wrong() == []
    return books


def test_limits_that_come_later_know_what_was_spent_before(paid: Books):
    """A budget of a pipeline is what it may spend in all, like that of a resource."""
    paid.declare(p={"budget": 3})
    assert paid.wrong() == []
    assert (paid.limit("@p")["spent"], paid.limit("@p")["in_doubt"]) == (3 * 3_250_000, 6 * UNIT)
    paid.retry(states=("done", "failed"))
    blocked = paid.admit(money=1).blocked
    assert blocked is not None and blocked.reason == "budget"
    assert "pipeline 'p' has a budget of 3.00: 9.75 spent (6.00 of it in doubt)" in blocked.text


def test_so_do_limits_that_a_person_sets(paid: Books):
    paid.tune({"work.budget_per_day": 3})
    assert paid.wrong() == []
    assert (paid.limit("@p/work")["spent"], paid.limit("@p/work")["spent_today"]) == (3 * 3_250_000, 0)


def test_a_doubt_from_before_there_were_limits_is_settled_in_them(paid: Books):
    paid.declare(p={"budget": 900})
    assert act(paid.store, Resolve(Which("p"), 0), ME) == {"p/work": 3}
    assert (paid.limit("@p")["spent"], paid.limit("@p")["in_doubt"]) == (3 * 1_250_000, 0)
    assert paid.wrong() == []


def test_limits_that_are_taken_away_and_given_again_know_what_was_spent_meanwhile(paid: Books):
    paid.declare(p={"budget": 900})
    paid.declare(p={})
    paid.retry(states=("done", "failed"))
    spend(paid)
    assert paid.wrong() == [], "limits that limit nothing count nothing"
    paid.declare(p={"budget": 900})
    assert paid.wrong() == []
    assert paid.limit("@p")["spent"] == 4 * 3_250_000


def test_limits_that_get_another_zone_count_by_its_days(paid: Books):
    """It is half past ten in the evening in Greenwich."""
    paid.retry(states=("done", "failed"))
    spend(paid)
    paid.clock.advance(2 * 3600)
    for zone, today in (
        ("Europe/London", 0),
        ("Pacific/Honolulu", 3_250_000),
        ("Pacific/Kiritimati", 3_250_000),
        ("UTC", 0),
    ):
        paid.declare(p={"budget_per_day": 900, "zone": zone})
        assert (paid.wrong(), paid.limit("@p")["spent_today"], paid.limit("@p")["spent"]) == (
            [],
            today,
            4 * 3_250_000,
        ), zone


def test_to_give_limits_reads_no_more_of_the_ledger_than_of_a_day(paid: Books):
    paid.retry(states=("done", "failed"))
    spend(paid)
    with statements() as ran:
        paid.declare(p={"budget": 3})
        paid.tune({"budget": 5})
    assert ran["sum_calls"] == 1
    assert paid.wrong() == []


def test_limits_that_come_to_a_store_older_than_its_ledger_count_no_less_than_they_did(paid: Books):
    paid.declare(p={"budget": 900})
    paid.execute("UPDATE holdfast_spent SET amount = amount + 7000000")
    upgraded(paid, 1)
    paid.declare(p={})
    paid.declare(p={"budget": 900})
    assert paid.limit("@p")["costs"] == 3 * 1_250_000 + 7_000_000
