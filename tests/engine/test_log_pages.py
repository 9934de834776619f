"""Pages of the log and of the audit, newest first: together they have everything once, each looks through a bounded part."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import UsageError
from holdfast.engine import (
    actions,
    alert_rules,
    alert_status,
    audit,
    change_limits,
    event_pages,
    pause,
    reconcile_money,
    request_look,
    resolve,
    selection,
)
from holdfast.engine.alert_rules import MOST_ATTEMPTS
from holdfast.engine.memos import MemoWrite, remember
from holdfast.engine.poll_sources import Wanted, sync_sources
from holdfast.engine.retry_and_cancel import CancelStages, RetryStages
from holdfast.engine.selection import Who
from holdfast.model import acts
from holdfast.model.alert import AlertRule
from holdfast.model.item_filter import Which
from tests.support.harness import App

pytestmark = pytest.mark.req("P17", "V14")


@pytest.fixture
def books(app: App) -> App:
    app.pipeline({"fetch": [], "extract": ["fetch"]}, name="books")
    app.add(["k1", "k2"])
    return app


def happen(app: App, event: str, times: int = 1, stage: str = "fetch", item: str | None = None, **facts: Any) -> None:
    row = app.stage(stage)
    number = None if item is None else app.query("SELECT id FROM holdfast_items WHERE key = :key", key=item)[0][0]
    for _ in range(times):
        app.clock.advance(seconds=1)
        app.store.write(lambda tx: tx.record(event, pipeline=row.pipeline, stage=row.id, item=number, **facts))


def pages(app: App, **asked: Any) -> list[list[dict[str, Any]]]:
    """Every page of the log."""
    found, after = [], ""
    while True:
        page = app.store.read(lambda tx, after=after: event_pages.newest_events(tx, after=after, **asked))
        found.append(page["events"])
        if page["cursor"] is None:
            return found
        after = page["cursor"]


def numbers(several: list[list[dict[str, Any]]]) -> list[int]:
    return [one["id"] for page in several for one in page]


def test_pages_of_the_log_have_every_event_once_and_the_newest_first(books: App):
    happen(books, "discovered", 7)
    happen(books, "snoozed", 5)
    every = numbers(pages(books, most=1000))
    assert every == sorted(every, reverse=True)
    found = pages(books, most=5)
    assert numbers(found) == every
    assert {len(page) for page in found[:-1]} == {5}
    by_name = pages(books, event="discovered", most=3)
    assert [len(page) for page in by_name] == [3, 3, 1]
    assert {one["event"] for page in by_name for one in page} == {"discovered"}


def test_what_is_rare_comes_on_a_later_page_and_no_page_looks_through_everything(
    books: App, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(event_pages, "SLICE", 10)
    happen(books, "discovered", stage="extract")
    happen(books, "discovered", 35)
    for asked in ({"stage": "extract"}, {"stage": "extract", "event": "discovered"}):
        found = pages(books, most=2, **asked)
        assert len(numbers(found)) == 1
        assert found[0] == [] and len(found) >= 4


def test_the_log_is_narrowed_by_item_stage_pipeline_and_time(books: App):
    happen(books, "snoozed", 2, item="k1")
    happen(books, "snoozed", item="k2", stage="extract")
    since = books.clock.now()
    happen(books, "discovered", item="k1")
    [(k1,)] = books.query("SELECT id FROM holdfast_items WHERE key = 'k1'")
    assert [one["event"] for one in pages(books, item=k1, most=9)[0]] == ["discovered", "snoozed", "snoozed"]
    assert [one["event"] for one in pages(books, item=k1, event="snoozed", most=9)[0]] == ["snoozed"] * 2
    assert [one["item"] for one in pages(books, stage="extract", most=9)[0]] == ["k2"]
    assert [one["event"] for one in pages(books, since=since + 1, most=9)[0]] == ["discovered"]
    assert len(pages(books, pipeline="books", event="snoozed", most=9)[0]) == 3


@pytest.mark.parametrize(
    "asked", [{"event": "snozed"}, {"pipeline": "boks"}, {"stage": "fech"}, {"after": "x"}, {"after": "1/2/3"}]
)
def test_a_page_that_cannot_be_is_refused(books: App, asked: dict[str, Any]):
    with pytest.raises(UsageError):
        books.store.read(lambda tx: event_pages.newest_events(tx, most=1, **asked))


# The audit ------------------------------------------------------------------------------------------------------------


def audits(app: App, **asked: Any) -> list[tuple[str, str]]:
    found, after = [], ""
    while True:
        page = app.store.read(lambda tx, after=after: audit.audit(tx, after=after, **asked))
        found += [(one["by"], one["verb"]) for one in page["entries"]]
        if page["cursor"] is None:
            return found
        after = page["cursor"]


def act(app: App, *who: str) -> None:
    """A pause, an action, a change of limits and a resume by each."""
    for name in who:
        for work in (
            lambda tx, name=name: pause.pause(tx, "books", Who(name, "lunch")),
            lambda tx, name=name: change_limits.tune(tx, "books", {"rate": "5/s"}, Who(name)),
            lambda tx, name=name: pause.resume(tx, "books", Who(name)),
        ):
            app.clock.advance(seconds=1)
            app.store.write(work)
        app.clock.advance(seconds=1)
        actions.act(app.store, CancelStages(Which(key="k1")), Who(name))
        app.clock.advance(seconds=1)
        actions.act(app.store, RetryStages(Which(key="k1")), Who(name))


VERBS = ["retry", "cancel", "resume", "tune", "pause"]


def test_the_audit_has_every_act_once_in_order_whatever_the_size_of_its_pages(
    books: App, monkeypatch: pytest.MonkeyPatch
):
    act(books, "ada", "bob", "ada")
    every = [(name, verb) for name in ("ada", "bob", "ada") for verb in VERBS]
    for slice_, most in ((2, 1), (2, 3), (3, 2), (500, 2), (500, 100)):
        monkeypatch.setattr(audit, "SLICE", slice_)
        assert audits(books, most=most) == every, (slice_, most)
        assert audits(books, by="bob", most=most) == [("bob", verb) for verb in VERBS]
        assert audits(books, verb="tune", most=most) == [("ada", "tune"), ("bob", "tune"), ("ada", "tune")]
        assert audits(books, by="eve", most=most) == []


def test_what_an_action_did_to_each_item_and_what_workers_did_are_no_entries_of_their_own(books: App):
    happen(books, "paused", item="k1", by="out of credit", reason="402")
    happen(books, "resolved", item="k1", action=1, by="ada", reason="")
    happen(books, "resolved", item="k1", memo="m", by="ada", reason="")
    assert audits(books, most=10) == [("ada", "resolve")]
    with pytest.raises(UsageError, match="there are"):
        audits(books, verb="retyr", most=10)


def pauses(app: App, who: Who) -> None:
    app.store.write(lambda tx: pause.pause(tx, "books", who))


def resumes(app: App, who: Who) -> None:
    app.store.write(lambda tx: pause.pause(tx, "books", Who()))
    app.store.write(lambda tx: pause.resume(tx, "books", who))


def tunes(app: App, who: Who) -> None:
    app.store.write(lambda tx: change_limits.tune(tx, "books", {"rate": "5/s"}, who))


def resolves(app: App, who: Who) -> None:
    [lease] = app.claim()
    app.store.write(lambda tx: remember(tx, [MemoWrite(lease, "call", "intended", "1", "k-1")]))
    app.fail(lease)
    app.store.write(lambda tx: resolve.resolve(tx, lease.key, "books", "call", resolve.Decision(charged=0), who))


def looks(app: App, who: Who) -> None:
    later = app.clock.now() + 10**10
    app.store.write(lambda tx: sync_sources(tx, "books", {"shelf": Wanted("d", later, later)}))
    app.store.write(lambda tx: request_look.request_look(tx, "books", "shelf", who))


def stops(app: App, who: Who) -> None:
    begun = app.store.write(lambda tx: actions.begin(tx, CancelStages(Which("books")), Who("bob", "too slow")))
    assert begun is not None and begun.is_open
    app.store.write(lambda tx: actions.stop(tx, begun.id, who))


def repairs(app: App, who: Who) -> None:
    app.execute("INSERT INTO holdfast_spent VALUES (999, 20900, 5, 0)")
    found = app.store.read(reconcile_money.find)
    for day in found.steps:
        app.store.write(lambda tx, day=day: reconcile_money.repair(tx, day, found.old_at, who), exclusive=True)


#: An act of each kind, by its command.
SINGLE_ACTS = {
    "pause": pauses,
    "resume": resumes,
    "tune": tunes,
    "resolve": resolves,
    "discover": looks,
    "stop": stops,
    "repair": repairs,
}


def test_there_is_an_example_of_every_single_act():
    assert set(SINGLE_ACTS) == set(acts.COMMANDS.values())


@pytest.mark.parametrize("verb", SINGLE_ACTS)
def test_every_single_act_stands_in_the_audit_with_who_when_and_why(
    books: App, monkeypatch: pytest.MonkeyPatch, verb: str
):
    monkeypatch.setattr(selection, "CHUNK", 1)
    books.clock.advance(seconds=1)
    at = books.clock.now()
    SINGLE_ACTS[verb](books, Who("ada", "a good reason"))
    for asked in ({}, {"by": "ada"}, {"verb": verb}):
        entries = books.store.read(lambda tx, asked=asked: audit.audit(tx, most=10, **asked))["entries"]
        told = [(one["verb"], one["reason"], one["at"]) for one in entries if one["by"] == "ada"]
        assert told == [(verb, "a good reason", at)], asked


def test_a_look_that_somebody_asks_for_makes_the_source_due_and_stands_in_the_audit(books: App):
    later = books.clock.now() + 10**10
    books.store.write(lambda tx: sync_sources(tx, "books", {"shelf": Wanted("d", later, later)}))
    asked = lambda tx: request_look.request_look(tx, "books", "shelf", Who("ada", "new books"))  # noqa: E731
    assert books.store.write(asked) is True
    assert books.store.write(asked) is False
    assert books.query("SELECT due_at FROM holdfast_sources") == [(books.clock.now(),)]
    assert audits(books, most=10) == [("ada", "discover")] * 2
    with pytest.raises(UsageError, match="shelf"):
        books.store.write(lambda tx: request_look.request_look(tx, "books", "shlf", Who()))


# Alerts ---------------------------------------------------------------------------------------------------------------


def test_alerts_tell_what_waits_what_was_delivered_and_what_was_given_up(books: App):
    rules = [AlertRule.read(name, {"event": "snoozed", "log": True, "every": "1s"}) for name in ("a", "b", "c")]
    books.store.write(lambda tx: alert_rules.watch_events(tx, rules))
    happen(books, "snoozed", item="k1", reason="closed")
    books.store.write(lambda tx: alert_rules.watch_events(tx, rules))
    worker = books.worker("w").id
    told = lambda: books.store.read(lambda tx: alert_status.alert_status(tx, 100))  # noqa: E731
    assert [(one["alert"], one["state"]) for one in told()["deliveries"]] == [(name, "queued") for name in "abc"]
    a, b, c = books.store.write(lambda tx: alert_rules.take_deliveries(tx, rules, worker, 10))
    assert {one["state"] for one in told()["deliveries"]} == {"being delivered"}
    books.store.write(lambda tx: alert_rules.delivered(tx, a))
    books.store.write(lambda tx: alert_rules.failed_delivery(tx, b, "no answer"))
    books.store.write(lambda tx: alert_rules.failed_delivery(tx, c._replace(attempt=MOST_ATTEMPTS), "never"))
    found = told()
    assert sorted((one["alert"], one["state"], one["error"]) for one in found["deliveries"]) == [
        ("a", "delivered", None),
        ("b", "to be retried", "no answer"),
        ("c", "given up", "never"),
    ]
    assert [(one["name"], one["queued"], one["told_at"] is None) for one in found["rules"]] == [
        ("a", 0, False),
        ("b", 1, False),
        ("c", 0, False),
    ]
