"""Failures that are alike are counted together as they happen."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.engine import error_groups, retry_and_cancel, selection
from holdfast.engine.delete import Delete
from holdfast.engine.fail import fail
from holdfast.engine.finish_leases import Cost, FinishedAttempt
from holdfast.engine.item_pages import items
from holdfast.engine.prune import prune_events
from holdfast.errors import UsageError
from holdfast.model.item_filter import Which
from holdfast.model.states import State
from tests.support.harness import App

pytestmark = pytest.mark.req("V14", "P15")


def errors(app: App, **asked: Any) -> list[dict[str, Any]]:
    return app.store.read(lambda tx: error_groups.errors(tx, **asked))


def of_group(app: App, group: str, **asked: Any) -> list[tuple[str, str]]:
    after, most = asked.pop("after", 0), asked.pop("most", 100)
    which = Which(group=group, **{**asked, "states": frozenset(asked.get("states", ()))})
    return [(one["key"], one["state"]) for one in app.store.read(lambda tx: items(tx, which, after=after, most=most))]


def three_that_fail(app: App) -> str:
    """Three items failed alike: one for good, one was out of attempts, one is to be tried again; and one failed otherwise."""
    app.pipeline({"a": []}, max_attempts=2)
    app.add(["x1", "x2", "x3", "other"])
    x1, x2, x3, other = app.claim(most=4)
    app.permanent(x1, "ValueError: page 1 is torn")
    app.fail(x2, "ValueError: page 2 is torn")
    app.promote()
    [x2] = app.claim()
    app.fail(x2, "ValueError: page 22 is torn")
    app.fail(x3, "ValueError: page 3 is torn", delay=3600)
    app.fail(other, "KeyError: 'title'", delay=3600)
    return str(errors(app)[0]["group"])


def test_attempts_that_fail_alike_are_one_group_with_when_where_and_how_many(app: App) -> None:
    began = app.clock.now()
    three_that_fail(app)
    torn, title = errors(app)
    assert (torn["error"], torn["message"], torn["count"], torn["stages"]) == (
        "ValueError",
        "page <…> is torn",
        4,
        [f"{app.name}/a"],
    )
    assert began <= torn["first_seen_at"] <= torn["last_seen_at"] <= app.clock.now()
    assert (torn["pipeline"], torn["key"]) == (app.name, "x3")  # the last
    assert (torn["items"], torn["more_items"]) == (2, False)  # what stands failed or exhausted
    assert (title["error"], title["count"], title["items"]) == ("KeyError", 1, 0)


def test_a_snooze_is_no_failure(app: App) -> None:
    app.pipeline({"a": []})
    app.add(["x"])
    app.snooze(app.claim()[0], 10, "not yet")
    assert errors(app) == []


def test_what_was_paid_in_attempts_that_failed_is_told_with_them(app: App) -> None:
    app.pipeline({"a": []})
    app.add(["x", "y"])
    for lease in app.claim(most=2):
        one = FinishedAttempt(lease, State.RETRY_LATER, "1", error="ValueError: bad", costs=[Cost(250_000, None)])
        app.store.write(lambda tx, one=one: fail(tx, [one]))
    assert [(one["count"], one["spent"]) for one in errors(app)] == [(2, 500_000)]


def test_a_worker_that_dies_with_an_item_again_and_again_is_a_cause(app: App) -> None:
    app.pipeline({"a": []}, max_attempts=1)
    app.add(["x"])
    app.join("w")
    app.claim("w")
    app.kill("w")
    for _ in range(5):  # a death is held against nobody until it has happened in isolation
        if app.states("x")["a"] == "exhausted":
            break
        app.join("w")
        app.claim("w")
        app.kill("w")
    assert app.states("x") == {"a": "exhausted"}
    [one] = errors(app)
    assert (one["message"], one["items"], one["key"]) == ("the worker that ran attempt <…> died", 1, "x")


def test_the_groups_of_writers_that_are_gone_are_added_up(app: App) -> None:
    group = three_that_fail(app)
    before = errors(app)
    assert app.query("SELECT COUNT(*) FROM holdfast_error_groups WHERE slot <> 0") != [(0,)]
    for worker in list(app.living()):
        app.leave(worker)
    app.fold()
    assert app.query("SELECT COUNT(*) FROM holdfast_error_groups WHERE slot <> 0") == [(0,)]
    assert errors(app) == before
    app.retry(key="x1")
    app.permanent(app.claim()[0], "ValueError: page 4 is torn")
    app.clock.advance(10)
    assert errors(app)[0] | {"last_seen_at": 0, "key": ""} == before[0] | {"count": 5, "last_seen_at": 0, "key": ""}
    assert errors(app)[0]["group"] == group


def test_of_ever_new_causes_those_seen_last_are_kept(app: App, monkeypatch: Any) -> None:
    monkeypatch.setattr(error_groups, "MOST_GROUPS", 5)
    app.pipeline({"a": []}, max_attempts=10**6)
    app.add(["x"])
    for word in ("one", "two", "three", "four", "five", "six", "seven", "eight"):
        app.clock.advance(1)
        app.fail(app.claim()[0], f"ValueError: {word}")
        app.promote()
    assert {one["message"] for one in errors(app)} == {"four", "five", "six", "seven", "eight"}
    for worker in list(app.living()):
        app.leave(worker)
    app.fold()
    assert len(errors(app)) == 5


def test_asked_for_by_pipeline_stage_or_time_only_those_are_told(app: App) -> None:
    three_that_fail(app)
    assert len(errors(app, pipeline=app.name, stage="a")) == 2
    assert errors(app, since=app.clock.now() + 1) == []
    assert len(errors(app, most=1)) == 1
    with pytest.raises(UsageError, match="nope"):
        errors(app, stage="nope")


def test_items_are_listed_sent_back_cancelled_and_deleted_by_group(app: App) -> None:
    group = three_that_fail(app)
    torn = [("x1", "failed"), ("x2", "exhausted"), ("x3", "retry_later")]
    assert of_group(app, group) == torn
    assert of_group(app, group, key="x3") == torn[2:]  # looked up by its key
    assert of_group(app, group, states=(State.FAILED,)) == torn[:1]
    which = selection.Which(group=group)
    assert app._act(retry_and_cancel.RetryStages(which), "", dry_run=True) == {"failed": 1, "exhausted": 1}
    assert app._act(retry_and_cancel.CancelStages(which), "", dry_run=False) == {"retry_later": 1}
    assert app._act(retry_and_cancel.RetryStages(which), "", dry_run=False) == {"failed": 1, "exhausted": 1}
    assert of_group(app, group) == []
    other = str(errors(app)[1]["group"])
    assert app._act(Delete(selection.Which(group=other)), "", dry_run=False) == {app.name: 1}
    # What has failed stays counted; the item that stood for it is gone.
    assert [(one["count"], one["key"]) for one in errors(app)] == [(4, "x3"), (1, None)]


def test_a_group_that_never_was_is_refused_and_one_that_is_trimmed_is_still_found(app: App) -> None:
    group = three_that_fail(app)
    with pytest.raises(UsageError, match=r"no error group 'torn'.*holdfast errors"):
        of_group(app, "torn")
    with pytest.raises(UsageError, match="no error group"):
        app._act(retry_and_cancel.RetryStages(selection.Which(group="torn")), "", dry_run=False)
    app.clock.advance(10)
    app.store.write(lambda tx: prune_events(tx, tx.now))
    assert errors(app) == []
    assert ("x1", "failed") in of_group(app, group)


def test_an_item_that_passes_after_all_stands_failed_no_longer(app: App) -> None:
    three_that_fail(app)
    app.retry(key="x1")
    app.complete(app.claim()[0])
    assert errors(app)[0]["items"] == 1


def test_the_table_by_which_sqlite_finds_the_stages_of_a_group_follows_the_outcomes(app: App, database: str) -> None:
    """Written by triggers, so that nothing that changes outcomes has to know of it."""
    if database == "postgres":
        pytest.skip("PostgreSQL has an index")

    def grouped() -> set[tuple[Any, ...]]:
        found = set(app.query("SELECT error_group, item, stage FROM holdfast_grouped"))
        outcomes = "SELECT error_group, item, stage FROM holdfast_outcomes WHERE error_group IS NOT NULL"
        assert found == set(app.query(outcomes))
        return found

    group = three_that_fail(app)
    torn = grouped()
    assert {name for name, _, _ in torn} == {group}
    assert len(torn) == 2
    app.execute("UPDATE holdfast_outcomes SET stage = stage + 100")
    assert {stage for _, _, stage in grouped()} == {stage + 100 for _, _, stage in torn}
    app.execute(
        "UPDATE holdfast_outcomes SET error_group = 'another' WHERE item = (SELECT MIN(item) FROM holdfast_outcomes)"
    )
    assert {name for name, _, _ in grouped()} == {group, "another"}
    app.execute("UPDATE holdfast_outcomes SET error_group = NULL WHERE error_group = 'another'")
    assert len(grouped()) == 1
    app.execute("UPDATE holdfast_outcomes SET error_group = 'again' WHERE error_group IS NULL")
    assert len(grouped()) == 2
    app.execute("DELETE FROM holdfast_outcomes")
    assert grouped() == set()
