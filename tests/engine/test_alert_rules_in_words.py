"""The store keeps alert rules in words, without what may be secret, and whether a program still has them."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Holdfast, Pipeline
from holdfast.engine import alert_rules
from holdfast.model.alert import AlertRule, read_alerts

pytestmark = pytest.mark.req("P17")

SECRETS = ("hooks.example", "T0P/S3CRET/PATH-OF-THE-HOOK", "Bearer", "token-of-a-person", "notify-send", "sk-ant-")
RULES = {
    "failures": {
        "event": "attempt_failed",
        "pipeline": "books",
        "stage": "read",
        "error": "refused",
        "count": 10,
        "within": "5m",
        "webhook": f"https://{SECRETS[0]}/{SECRETS[1]}",
        "headers": {"Authorization": f"Bearer {SECRETS[3]}"},
        "log": True,
    },
    "deaths": {"event": "worker_died", "every": "1h", "command": ["notify-send", "a worker died"]},
    "keys": {
        "event": "attempt_failed",
        "error": "password=sk-ant-api03-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        "log": True,
    },
}


def declared(app: Holdfast, *names: str, pipelines: tuple[str, ...] = ("books",), **changes: Any) -> None:
    rules = read_alerts({name: {**RULES[name], **changes} for name in names})
    app.store.write(lambda tx: alert_rules.declare(tx, pipelines, rules))
    assert not any(app.store.read(lambda tx: alert_rules.undeclared(tx, pipelines, rules)))


@pytest.fixture
def app(url: str):
    made = Pipeline("books", store=url)
    made.stage(name="read")(lambda item, ctx: None)
    made.add(["emma"])
    with Holdfast(url, create=False) as opened:
        yield opened


def test_rules_are_kept_in_words_without_secrets(app: Holdfast):
    declared(app, *RULES)
    told = {one.name: one for one in app.alert_status().rules}
    assert told["failures"].says == (
        "10 × attempt_failed of books/read with 'refused' in it within 5 m, at most every 5 m, by webhook and log"
    )
    assert told["deaths"].says == "1 × worker_died, at most every 1 h, by command"
    assert not [one for one in SECRETS if one in str(app.alert_status().json())]
    assert {(one.active, one.pipeline) for one in told.values()} == {(True, "books")}


def test_a_rule_that_has_changed_or_gone_is_told_so(app: Holdfast):
    declared(app, "failures", "deaths")
    declared(app, "failures", count=3)
    told = {one.name: one for one in app.alert_status().rules}
    assert told["failures"].says is not None and told["failures"].says.startswith("3 × attempt_failed")
    assert (told["failures"].active, told["deaths"].active) == (True, False)
    assert "no program has it any more" in str(app.alert_status())


def test_a_rule_of_an_earlier_version_has_no_words(app: Holdfast):
    rule = AlertRule.read("deaths", RULES["deaths"])
    app.store.write(lambda tx: alert_rules.learn(tx, [rule]))
    [told] = app.alert_status().rules
    assert (told.says, told.active, told.pipeline) == (None, True, None)


def test_the_page_shows_them(app: Holdfast, url: str):
    pytest.importorskip("starlette")
    from starlette.testclient import TestClient

    from holdfast.web import Access, dashboard

    declared(app, *RULES)
    declared(app, "failures", "keys")
    shown = dashboard(url, access=lambda request: Access("ada"), question_seconds=120.0)
    with TestClient(shown, base_url="http://localhost") as client:
        page = client.get("/alerts").text
    assert "10 × attempt_failed of books/read" in page and "no program has it any more" in page
    assert not [one for one in SECRETS if one in page]
