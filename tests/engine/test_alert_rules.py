"""A rule over events is told of what it asks for: once, by whoever looks first, and not too often."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.engine import alert_rules
from holdfast.engine.alert_rules import BACKOFF, MOST_ATTEMPTS, Delivery
from holdfast.model.alert import AlertRule
from holdfast.store import Store
from tests.support.harness import App, connected
from tests.support.together import at_once

pytestmark = pytest.mark.req("D11")

FIVE_MINUTES = 300


def rule(name: str = "a", **given: Any) -> AlertRule:
    return AlertRule.read(name, {"event": "attempt_failed", "log": True, **given})


class Watch:
    """Events as they happen, rules that look at them, and what they have to tell."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.pipeline = app.pipeline({"fetch": [], "extract": ["fetch"]}, name="books")
        app.add([f"k{n}" for n in range(20)])
        self.rules: list[AlertRule] = []

    def watch(self, *rules: AlertRule) -> int:
        """Look; the first time, a rule sees only what comes later."""
        self.rules = list(rules) or self.rules
        return self.app.store.write(lambda tx: alert_rules.watch_events(tx, self.rules))

    def happen(self, *events: str, stage: str = "extract", item: str = "k1", **facts: Any) -> None:
        row = self.app.stage(stage)
        [(number,)] = self.app.query("SELECT id FROM holdfast_items WHERE key = :key", key=item)

        def record(tx: Any) -> None:
            for event in events:
                tx.record(event, pipeline=row.pipeline, stage=row.id, item=number, **facts)

        self.app.store.write(record)

    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(row[0]) for row in self.app.query("SELECT body FROM holdfast_deliveries ORDER BY id")]

    def take(self, worker: str = "w", most: int = 10) -> list[Delivery]:
        number = self.app.worker(worker).id
        return self.app.store.write(lambda tx: alert_rules.take_deliveries(tx, self.rules, number, most))

    def succeed(self, one: Delivery) -> bool:
        return self.app.store.write(lambda tx: alert_rules.delivered(tx, one))

    def fail(self, one: Delivery, error: str = "no answer") -> bool:
        return self.app.store.write(lambda tx: alert_rules.failed_delivery(tx, one, error))

    def anything(self) -> bool:
        return self.app.store.read(lambda tx: alert_rules.anything_to_do(tx, self.rules))


@pytest.fixture
def watch(app: App) -> Watch:
    return Watch(app)


# When ---------------------------------------------------------------------------------------------------------------


def test_an_event_that_a_rule_asks_for_is_told_with_all_that_is_known(watch: Watch):
    watch.watch(rule(name="failures"))
    watch.app.clock.advance(1)
    watch.happen("attempt_failed", error="timed out")
    assert watch.watch() == 1
    [body] = watch.bodies()
    assert body == {
        "alert": "failures",
        "event": "attempt_failed",
        "count": 1,
        "by": "log",
        "first": "2027-01-15T08:00:01Z",
        "last": "2027-01-15T08:00:01Z",
        "examples": [
            {
                "at": "2027-01-15T08:00:01Z",
                "event": "attempt_failed",
                "pipeline": "books",
                "stage": "extract",
                "item": "k1",
                "error": "timed out",
            }
        ],
        "text": "failures: attempt_failed, last books/extract/k1: timed out",
    }


@pytest.mark.req("J9")
def test_a_rule_counts_events_of_users_and_looks_into_their_reason(watch: Watch):
    watch.watch(rule(name="prices", event="user.price_changed", count=2, error="sale"))
    watch.happen("user.price_changed", attempt=1, reason="summer sale")
    watch.happen("user.price_changed", attempt=1, reason="a mistake")
    assert watch.watch() == 0
    watch.happen("user.price_changed", attempt=1, reason="winter sale")
    assert watch.watch() == 1
    [body] = watch.bodies()
    assert (body["event"], body["count"]) == ("user.price_changed", 2)
    assert body["text"].endswith("last books/extract/k1: winter sale")


def test_what_happened_before_there_was_a_rule_is_not_told(watch: Watch):
    watch.happen("attempt_failed")
    assert watch.watch(rule()) == 0
    assert watch.watch() == 0
    watch.happen("attempt_failed")
    assert watch.watch() == 1


def test_events_that_a_rule_does_not_ask_for_do_not_count(watch: Watch):
    mine = rule(pipeline="books", stage="extract", error="timed out")
    watch.watch(mine)
    watch.happen("exhausted", error="timed out")
    watch.happen("attempt_failed", error="timed out", stage="fetch")
    watch.happen("attempt_failed", error="no pages", traceback="timed out")
    watch.happen("attempt_failed")
    watch.app.pipeline({"extract": []}, name="films")
    watch.app.add(["f"])
    watch.happen("attempt_failed", error="timed out", item="f")
    assert watch.watch() == 0
    watch.app.name = "books"
    watch.happen("attempt_failed", error='it "timed out" again')
    assert watch.watch() == 1


@pytest.mark.parametrize("text", ['"quoted"', "back\\slash", "two\nlines", "ünïcödé 本", "100%", "a_b", "error"])
def test_the_text_is_found_as_it_is_and_nowhere_else(watch: Watch, text: str):
    watch.watch(rule(error=text))
    watch.happen("attempt_failed", error="something else", other=text)
    assert watch.watch() == 0
    watch.happen("attempt_failed", error=f"it said {text}!")
    assert watch.watch() == 1


@pytest.mark.parametrize("facts", [{"reason": "out of credit"}, {"why": "out of credit"}], ids=str)
def test_the_text_may_be_the_reason_of_an_event_that_is_no_error(watch: Watch, facts: dict[str, str]):
    watch.watch(rule(event="paused", error="credit"))
    watch.happen("paused", **facts)
    assert watch.watch() == 1


def test_real_events_of_workers_are_told_by_name_and_by_state(watch: Watch):
    watch.app.pipeline({"fetch": [], "extract": ["fetch"]}, name="books", max_attempts=1)
    watch.watch(rule("death", event="worker_died"), rule("end", event=None, state="exhausted"))
    watch.app.claim("dies")
    watch.app.kill("dies")
    assert watch.watch() == 1
    watch.app.fail(watch.app.claim()[0], "timed out")
    assert watch.watch() == 1
    assert [body["text"] for body in watch.bodies()] == [
        "death: worker_died: its process is gone",
        "end: exhausted, last books/fetch/k0: timed out",
    ]


def test_so_many_within_a_while_are_needed(watch: Watch):
    watch.watch(rule(count=3, within="1m"))
    for seconds in (0, 40, 40, 40, 15):
        watch.app.clock.advance(seconds)
        watch.happen("attempt_failed")
        assert watch.watch() == (seconds == 15)
    [body] = watch.bodies()
    assert (body["count"], body["first"][-9:], body["last"][-9:]) == (3, "08:01:20Z", "08:02:15Z")


def test_the_window_is_open_at_its_far_end(watch: Watch):
    watch.watch(rule(count=2, within="1m"))
    watch.happen("attempt_failed")
    watch.watch()
    watch.app.clock.advance(60)
    watch.happen("attempt_failed")
    assert watch.watch() == 0
    watch.app.clock.advance(59.999)
    watch.happen("attempt_failed")
    assert watch.watch() == 1


def test_it_makes_no_difference_how_often_one_looks(watch: Watch):
    """Once for all events, or after each."""
    often, once = rule("often", count=4, within="1m"), rule("once", count=4, within="1m")
    watch.watch(often, once)
    for _ in range(4):
        watch.app.clock.advance(10)
        watch.happen("attempt_failed")
        watch.watch(often)
    watch.watch(once)
    first, second = watch.bodies()
    assert {**first, "alert": "", "text": ""} == {**second, "alert": "", "text": ""}
    assert first["count"] == 4


def test_a_long_backlog_is_counted_whole_and_its_newest_are_the_examples(watch: Watch, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(alert_rules, "PAGE", 7)
    watch.watch(rule(count=5))
    for n in range(30):
        watch.happen("attempt_failed", "handed_back", error=f"error {n}")
    assert watch.watch() == 1
    [body] = watch.bodies()
    assert body["count"] == 30
    assert [one["error"] for one in body["examples"]] == [f"error {n}" for n in range(25, 30)]


def test_a_backlog_beyond_all_measure_is_looked_through_in_parts(watch: Watch, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(alert_rules, "PAGE", 10)
    monkeypatch.setattr(alert_rules, "MOST_READ", 20)
    watch.watch(rule(count=40, within="1d"))
    watch.happen(*["attempt_failed"] * 50)
    assert [watch.watch() for _ in range(3)] == [0, 1, 0]
    [body] = watch.bodies()
    assert body["count"] == 40


# How often ----------------------------------------------------------------------------------------------------------


def test_it_is_told_once_in_a_while_and_what_came_meanwhile_is_told_after_it(watch: Watch):
    watch.watch(rule(every="15m"))
    watch.happen("attempt_failed")
    assert watch.watch() == 1
    for _ in range(14):
        watch.app.clock.advance(60)
        watch.happen("attempt_failed")
        assert watch.watch() == 0
    watch.app.clock.advance(60)
    assert watch.watch() == 1
    assert [body["count"] for body in watch.bodies()] == [1, 14]


def test_an_event_counts_for_one_alert_only(watch: Watch):
    watch.watch(rule(count=3, within="1h", every="1m"))
    for n in range(1, 10):
        watch.app.clock.advance(120)
        watch.happen("attempt_failed")
        assert watch.watch() == (n % 3 == 0)
    assert [body["count"] for body in watch.bodies()] == [3, 3, 3]


def test_silence_after_an_alert_is_told_by_nothing(watch: Watch):
    watch.watch(rule(every="1m"))
    watch.happen("attempt_failed")
    watch.watch()
    for _ in range(5):
        watch.app.clock.advance(60)
        assert watch.watch() == 0


def test_events_count_once_though_the_transaction_that_sees_them_began_before_them(watch: Watch):
    """On PostgreSQL a transaction sees what was committed after it began, and another worker may have begun earlier still."""
    watch.watch(rule(count=3, every="1m", within="1h"))
    watch.happen(*["attempt_failed"] * 3)
    watch.app.clock.set_wall(-1)
    assert watch.watch() == 1
    watch.happen(*["attempt_failed"] * 3)
    watch.app.clock.set_wall(-1)
    assert watch.watch() == 0, "within its quiet period"
    watch.app.clock.advance(62)
    watch.happen("attempt_failed")
    assert watch.watch() == 1
    assert [body["count"] for body in watch.bodies()] == [3, 4]


@pytest.mark.parametrize("hours", [24, -24])
def test_a_clock_that_was_set_silences_nobody(watch: Watch, hours: int):
    watch.watch(rule())
    watch.happen("attempt_failed")
    watch.watch()
    [one] = watch.take()
    watch.fail(one)
    watch.app.clock.set_wall(hours * 3600)
    watch.happen("attempt_failed")
    assert watch.watch() == 1
    assert len(watch.take()) == 2


def test_rules_do_not_disturb_each_other(watch: Watch):
    first, second = rule("first"), rule("second", event="exhausted")
    watch.watch(first, second)
    watch.happen("attempt_failed")
    assert watch.watch() == 1
    watch.happen("exhausted", "attempt_failed")
    assert watch.watch() == 1
    assert [body["alert"] for body in watch.bodies()] == ["first", "second"]


# Several workers ------------------------------------------------------------------------------------------------------


def test_several_workers_that_look_at_once_tell_it_once(watch: Watch):
    mine = rule(count=5)
    watch.watch(mine)
    for round_ in range(5):
        watch.app.clock.advance(FIVE_MINUTES)
        watch.happen(*["attempt_failed"] * 5)
        with connected(watch.app) as one, connected(watch.app) as two:
            raised = at_once(*(lambda app=app: look(app.store, [mine]) for app in (watch.app, one, two)))
        # All may have found it locked by another who found nothing new yet; then the next look tells it.
        assert sum(raised) + watch.watch() == 1, round_
    assert [body["count"] for body in watch.bodies()] == [5] * 5


def look(store: Store, rules: list[AlertRule]) -> int:
    return store.write(lambda tx: alert_rules.watch_events(tx, rules))


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_an_event_whose_commit_comes_late_is_not_missed(watch: Watch):
    """On PostgreSQL numbers are given before commits, and commits come in any order."""
    watch.watch(rule(count=2))
    with connected(watch.app) as late:
        tx = late.store.connect().connection
        tx.execute("BEGIN")
        schema = late.store.connect().dialect.schema
        tx.execute(
            f"INSERT INTO {schema}.events (at, event, data) VALUES ({watch.app.clock.now()}, 'attempt_failed', '{{}}')"
        )
        watch.happen("attempt_failed")
        assert watch.watch() == 0
        tx.execute("COMMIT")
        assert watch.watch() == 1
    [body] = watch.bodies()
    assert body["count"] == 2


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_a_number_that_never_comes_holds_nobody_up_for_long(watch: Watch):
    watch.watch(rule())
    events = f"{watch.app.store.driver.dialect.schema}.events"
    watch.app.execute("SELECT nextval(pg_get_serial_sequence(:events, 'id'))", events=events)
    watch.happen("attempt_failed")
    assert watch.watch() == 0
    assert watch.anything()
    watch.app.clock.advance(31)
    assert watch.watch() == 1


# OngoingDelivery --------------------------------------------------------------------------------------------------------------


def test_each_way_of_telling_is_a_delivery_of_its_own(watch: Watch):
    watch.watch(rule(webhook="https://example.com/secret-path", command=["x"]))
    watch.happen("attempt_failed")
    watch.watch()
    assert [one.by for one in watch.take()] == ["webhook", "command", "log"]
    assert "secret-path" not in str(watch.app.query("SELECT * FROM holdfast_deliveries"))


def raised(watch: Watch) -> Delivery:
    """One that was taken."""
    watch.watch(rule())
    watch.happen("attempt_failed", error="boom")
    watch.watch()
    [one] = watch.take()
    return one


def test_what_was_told_is_over_and_leaves_an_event(watch: Watch):
    one = raised(watch)
    assert (one.alert, one.by, one.attempt, one.body["delivery"]) == ("a", "log", 1, one.id)
    assert watch.succeed(one)
    assert watch.bodies() == []
    assert watch.app.events("alert_told") == [{"alert": "a", "by": "log", "attempt": 1, "count": 1}]
    assert not watch.succeed(one)


def test_what_is_taken_is_taken_once(watch: Watch):
    raised(watch)
    assert watch.take("other") == []
    assert watch.take() == []


def test_two_workers_that_take_at_once_share(watch: Watch):
    watch.watch(*(rule(f"r{n}") for n in range(20)))
    watch.happen("attempt_failed")
    watch.watch()
    numbers = [watch.app.join(name).id for name in ("one", "two")]
    with connected(watch.app) as other:
        taken = at_once(
            *(
                lambda app=app, number=number: [
                    one.id
                    for _ in range(20)
                    for one in app.store.write(lambda tx: alert_rules.take_deliveries(tx, watch.rules, number, 1))
                ]
                for app, number in zip((watch.app, other), numbers, strict=True)
            )
        )
    assert len(taken[0]) + len(taken[1]) == 20 == len({*taken[0], *taken[1]})


def test_what_could_not_be_told_is_tried_again_ever_later_and_given_up_at_last(watch: Watch):
    one = raised(watch)
    for attempt in range(1, MOST_ATTEMPTS):
        assert one.attempt == attempt
        assert watch.fail(one, "the address answered 500")
        wait = BACKOFF.ceiling(attempt)
        watch.app.clock.advance(wait - 0.001)
        assert watch.take() == []
        watch.app.clock.advance(0.001)
        [one] = watch.take()
    assert watch.fail(one, "the address answered 500")
    watch.app.clock.advance(86_400)
    assert watch.take() == []
    [told] = watch.app.events("alert_given_up")
    assert (told["alert"], told["attempts"], told["error"]) == ("a", MOST_ATTEMPTS, "the address answered 500")
    assert "boom" in told["said"]


def test_what_a_dead_worker_had_taken_is_taken_by_another(watch: Watch):
    one = raised(watch)
    assert watch.take("other") == []
    watch.app.kill("w")
    [again] = watch.take("other")
    assert (again.id, again.attempt) == (one.id, 2)
    # The dead one was only frozen, and comes back: too late.
    assert not watch.succeed(one)
    assert not watch.fail(one)
    assert watch.succeed(again)


def test_a_worker_takes_only_what_it_has_rules_for(watch: Watch):
    watch.watch(rule("mine"), rule("yours"))
    watch.happen("attempt_failed")
    watch.watch()
    watch.rules = [rule("mine")]
    assert [one.alert for one in watch.take()] == ["mine"]


def test_secrets_in_what_went_wrong_are_not_kept(watch: Watch):
    one = raised(watch)
    watch.fail(one, "cannot reach https://me:hunter22@example.com")
    assert "hunter22" not in str(watch.app.query("SELECT error FROM holdfast_deliveries"))


def test_a_look_says_whether_there_is_anything_to_do(watch: Watch):
    watch.rules = [rule()]
    assert watch.anything()
    watch.watch()
    assert not watch.anything()
    watch.happen("something_else")
    assert watch.anything()
    watch.watch()
    assert not watch.anything()
    watch.happen("attempt_failed")
    watch.watch()
    assert watch.anything()
    [one] = watch.take()
    assert not watch.anything()
    watch.fail(one)
    assert not watch.anything()
    watch.app.clock.advance(BACKOFF.ceiling(1))
    assert watch.anything()


def test_rules_without_rules_do_nothing(watch: Watch):
    assert watch.watch() == 0
    assert watch.take() == []
