"""A rule is read as it is written; what is wrong with it is said, and what is secret in it is not."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import UsageError
from holdfast.model.alert import KEYS, AlertRule
from holdfast.model.history import EVENTS

pytestmark = pytest.mark.req("D11")

SECRET = "T0P-S3CRET-PATH"


def read(**given: Any) -> AlertRule:
    return AlertRule.read("a", {"event": "worker_died", "log": True, **given})


def test_a_rule_is_read_with_every_key():
    rule = AlertRule.read(
        "too many failures",
        {
            "event": "attempt_failed",
            "pipeline": "books",
            "stage": "extract",
            "error": "timed out",
            "count": 10,
            "within": "5m",
            "every": "15m",
            "webhook": "https://example.com/hook",
            "headers": {"X-Key": "x"},
            "command": ["notify", "books"],
            "log": True,
        },
    )
    assert rule == AlertRule(
        "too many failures",
        ("attempt_failed",),
        "books",
        "extract",
        "timed out",
        10,
        300_000_000,
        900_000_000,
        "https://example.com/hook",
        {"X-Key": "x"},
        ("notify", "books"),
        True,
    )
    assert rule.ways == ("webhook", "command", "log")


def test_what_is_not_said_has_a_default():
    rule = read()
    assert (rule.count, rule.within_us, rule.every_us, rule.ways) == (1, 300_000_000, 300_000_000, ("log",))
    assert read(stage=None, count=1) == rule


def test_a_state_means_every_event_that_leads_to_it():
    assert AlertRule.read("a", {"state": "exhausted", "log": True}).events == ("exhausted",)
    assert AlertRule.read("a", {"state": "retry_later", "log": True}).events == ("attempt_failed", "snoozed")
    assert read(event="attempt_failed", state="retry_later").events == ("attempt_failed",)
    assert read(event="paused", state="failed").events == ("paused",)


@pytest.mark.req("D11", "J9")
@pytest.mark.parametrize("event", sorted(EVENTS - {"alert_told"}))
def test_every_event_that_is_recorded_can_be_named(event: str):
    assert read(event=event).events == (event,)


def test_events_of_users_can_be_named_before_there_is_one():
    assert read(event="user.price_changed").events == ("user.price_changed",)


@pytest.mark.parametrize("state", ["exhausted", "failed"])
def test_a_failed_attempt_that_was_the_last_one_has_an_event_of_its_own(state: str):
    assert read(event="attempt_failed", state=state).events == (state,)


WRONG = {
    "an unknown key": ({"evnet": "x"}, "'evnet' is unknown; there are: event, pipeline"),
    "no event": ({"event": None}, "give an event like 'worker_died', or a state"),
    "an event that is no text": ({"event": 3}, "event: 3 is not a text; write it like 'attempt_failed'"),
    "an event that is no name": ({"event": "Worker died!"}, "event: 'Worker died!' is unknown; there are: accepted, "),
    "an event that does not exist": (
        {"event": "no_such_event"},
        "event: 'no_such_event' is unknown; there are: accepted, ",
    ),
    "an event by an old name": ({"event": "pipeline_paused"}, "(did you mean 'paused'?)"),
    "an event that is nearly one": ({"event": "attempts_failed"}, "(did you mean 'attempt_failed'?)"),
    "an event of nobody": ({"event": "user."}, "event: 'user.' is unknown"),
    "an alert about alerts": ({"event": "alert_told"}, "would never end"),
    "an empty pipeline": ({"pipeline": ""}, "pipeline: '' is not a text"),
    "an unknown state": ({"state": "broken"}, "state: 'broken' is unknown; there are: pending"),
    "a state that no event leads to": (
        {"event": None, "state": "in_progress"},
        "no event says that a stage is in_progress",
    ),
    "a state that never follows": ({"event": "attempt_failed", "state": "done"}, "a stage is retry_later, never done"),
    "a count that is none": ({"count": "many"}, "count: 'many' is not a whole number"),
    "a count of zero": ({"count": 0}, "count: 0 is not"),
    "a count that is true": ({"count": True}, "count: True is not"),
    "a count beyond counting": ({"count": 10**9}, "from 1 to 10,000"),
    "a length that is none": ({"within": "5 minutes"}, "within: '5 minutes' is not a length of time"),
    "a length of nothing": ({"every": 0}, "every: it must be longer than zero"),
    "nobody to tell": ({"log": False}, "it notifies nobody; give one of: webhook, command, log"),
    "a log that is no flag": ({"log": "yes"}, "log: 'yes' is neither true nor false"),
    "a command that is a text": ({"command": "notify"}, "command: it is not a list"),
    "an empty command": ({"command": []}, "command: it is not a list"),
    "a command with a number": ({"command": ["notify", 3]}, "command: each part must be a text"),
    "headers without a webhook": ({"headers": {"a": "b"}}, "headers need a webhook"),
    "headers that are a list": ({"webhook": "http://h", "headers": ["a"]}, "headers: they are not a mapping"),
    "a header with a bad name": ({"webhook": "http://h", "headers": {"a b": "c"}}, "'a b' is not a valid header name"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_with_its_place(name: str):
    given, said = WRONG[name]
    with pytest.raises(UsageError) as error:
        read(**given)
    assert said in str(error.value)
    assert str(error.value).startswith("alert 'a': ")


def test_the_place_is_that_of_the_file_if_there_is_one():
    with pytest.raises(UsageError, match=r"^holdfast\.yaml, line 3: count: "):
        AlertRule.read("a", {"event": "paused", "count": 0, "log": True}, where="holdfast.yaml, line 3")


@pytest.mark.parametrize("given", [None, [], "x", 3], ids=str)
def test_what_is_no_mapping_is_refused(given: object):
    with pytest.raises(UsageError, match="not a mapping"):
        AlertRule.read("a", given)


@pytest.mark.parametrize("name", [None, "", " ", 3, "x" * 300], ids=str)
def test_a_name_is_a_text(name: object):
    with pytest.raises(UsageError, match="is not a valid name"):
        AlertRule.read(name, {"event": "paused", "log": True})


@pytest.mark.parametrize(
    "webhook",
    [
        f"ftp://example.com/{SECRET}",
        f"/{SECRET}",
        SECRET,
        f"https://exa mple.com/{SECRET}",
        f"https://h:x/{SECRET}",
        f"https:///{SECRET}",
        [SECRET],
        f"https://h/{SECRET}\n",
        f"https://h/{SECRET}ü",
        f"http://[/{SECRET}",
    ],
)
def test_an_address_that_is_none_is_refused_without_being_shown(webhook: object):
    with pytest.raises(UsageError, match="webhook: it is not an address") as error:
        read(webhook=webhook)
    assert SECRET not in str(error.value)


@pytest.mark.parametrize("value", [f"{SECRET}\nX-Other: 1", 3, f"{SECRET}\0", f"ü{SECRET}"])
def test_a_header_that_cannot_be_sent_is_refused_without_being_shown(value: object):
    with pytest.raises(UsageError, match="headers: X-Key: its value") as error:
        read(webhook="http://h", headers={"X-Key": value})
    assert SECRET not in str(error.value)


def test_a_rule_does_not_show_whom_it_tells():
    rule = read(webhook=f"https://h/{SECRET}", headers={"Authorization": "Bearer abcdefgh"}, command=["curl", SECRET])
    assert SECRET not in repr(rule)
    assert "abcdefgh" not in repr(rule)
    assert set(rule.secrets) == {f"https://h/{SECRET}", SECRET, "Bearer abcdefgh", "abcdefgh"}
    assert read(webhook="https://h/hooks").secrets == ("https://h/hooks",)


def test_every_key_has_an_example_that_can_be_read():
    rule = AlertRule.read("a", KEYS)
    assert rule.events == ("exhausted",)
