"""Values that only somebody else can have written, in rows that everybody reads: one costs its row, and `db check` names it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.engine import alert_rules, changed_items, matrix, poll_sources, show_item, status, stray_rows
from holdfast.engine.add import merged
from holdfast.engine.alert_rules import Declared
from holdfast.engine.changed_items import WalkPlace
from holdfast.engine.check import check
from holdfast.engine.item_stages import read_leases
from holdfast.engine.on_hold import outdated_workers
from holdfast.errors import UsageError
from holdfast.model.alert import AlertRule
from holdfast.store import Store
from holdfast.testing import ManualClock
from tests.engine.discovering import Sources
from tests.support.harness import App
from tests.support.limits import Limited

pytestmark = pytest.mark.req("P9", "V7")

FAR = 2**62
LARGEST = 2**63 - 1


# Alerts ---------------------------------------------------------------------------------------------------------------


class Watch:
    """Two rules that were looking before somebody wrote into the store."""

    def __init__(self, app: App) -> None:
        self.app = app
        app.pipeline({"a": []})
        self.rules = [
            AlertRule.read(name, {"event": "attempt_failed", "log": True, "count": count})
            for name, count in (("each", 1), ("twice", 2))
        ]
        self.pass_()

    def pass_(self) -> int:
        return self.app.store.write(lambda tx: alert_rules.watch_events(tx, self.rules))

    def happen(self, n: int = 1) -> None:
        self.app.store.write(lambda tx: [tx.record("attempt_failed", error="no") for _ in range(n)])

    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(row[0]) for row in self.app.query("SELECT body FROM holdfast_deliveries ORDER BY id")]

    def put(self, body: str, attempts: int = 0) -> None:
        self.app.execute(
            "INSERT INTO holdfast_deliveries (alert, body, attempts, due_at) VALUES ('each', :body, :attempts, 0)",
            body=body,
            attempts=attempts,
        )

    def take(self) -> list[alert_rules.Delivery]:
        number = self.app.worker("w").id
        return self.app.store.write(lambda tx: alert_rules.take_deliveries(tx, self.rules, number, 10))


@pytest.fixture
def watch(app: App) -> Watch:
    return Watch(app)


@pytest.mark.parametrize("at", [FAR, -FAR, LARGEST, -1])
def test_an_event_at_a_time_that_no_calendar_knows_raises_no_alert_and_stops_none(watch: Watch, at: int) -> None:
    watch.app.execute("INSERT INTO holdfast_events (at, event, data) VALUES (:at, 'attempt_failed', '{}')", at=at)
    [(number,)] = watch.app.query("SELECT MAX(id) FROM holdfast_events")
    assert watch.pass_() == 0
    assert f"events {number}: its at cannot be {at}" in check(watch.app.store)
    watch.happen()
    assert watch.pass_() == 1
    watch.happen()
    watch.app.clock.advance(400)
    assert watch.pass_() == 2
    assert [body["alert"] for body in watch.bodies()] == ["each", "each", "twice"]


@pytest.mark.parametrize("body", ["{}", '{"by":"log","text":"x"}', '{"by":["log"],"text":"x","count":1}', "{", "[1]"])
def test_a_notification_that_cannot_be_read_is_set_aside_and_the_others_are_delivered(watch: Watch, body: str) -> None:
    watch.put(body, attempts=9)
    watch.happen()
    watch.pass_()
    [(number, _)] = watch.app.query("SELECT MIN(id), 1 FROM holdfast_deliveries")
    assert f"deliveries {number}: its body cannot be read" in check(watch.app.store)
    [one] = watch.take()
    assert watch.app.store.write(lambda tx: alert_rules.delivered(tx, one))
    [event] = watch.app.events("row_set_aside")
    assert (event["table"], event["row"]["body"]) == ("deliveries", body)
    assert watch.app.query("SELECT COUNT(*) FROM holdfast_deliveries") == [(0,)]


@pytest.mark.parametrize("attempts", [2**31 - 1, -5])
def test_a_notification_with_attempts_that_nobody_has_made_gets_one_more(watch: Watch, attempts: int) -> None:
    watch.happen()
    watch.pass_()
    watch.app.execute("UPDATE holdfast_deliveries SET attempts = :attempts", attempts=attempts)
    [(number,)] = watch.app.query("SELECT id FROM holdfast_deliveries")
    assert f"deliveries {number}: its attempts cannot be {attempts}" in check(watch.app.store)
    [one] = watch.take()
    assert watch.app.store.write(lambda tx: alert_rules.failed_delivery(tx, one, "no answer"))
    assert [event["said"] for event in watch.app.events("alert_given_up")] == [one.body["text"]]


def test_a_rule_that_has_looked_further_than_there_are_events_looks_again_from_here_on(watch: Watch) -> None:
    watch.app.execute("UPDATE holdfast_alerts SET looked_until = :far WHERE name = 'each'", far=FAR)
    assert f"alerts each: its looked_until cannot be {FAR}" in check(watch.app.store)
    assert watch.app.store.read(lambda tx: alert_rules.anything_to_do(tx, watch.rules))
    assert watch.pass_() == 0
    watch.happen()
    assert watch.pass_() == 1


def test_an_event_with_a_number_far_above_the_others_mutes_no_rule(watch: Watch) -> None:
    """On PostgreSQL what happens later has smaller numbers."""
    watch.app.execute(f"INSERT INTO holdfast_events (id, at, event, data) VALUES ({FAR}, 1, 'junk', '{{}}')")
    watch.pass_()
    watch.happen()
    assert watch.pass_() == 1


@pytest.mark.parametrize("told_at", [LARGEST, -LARGEST])
def test_a_rule_that_told_at_a_time_that_no_calendar_knows_is_declared_and_tells(watch: Watch, told_at: int) -> None:
    watch.app.execute("UPDATE holdfast_alerts SET told_at = :told_at, quiet_until = :told_at", told_at=told_at)
    watch.app.store.write(lambda tx: alert_rules.declare(tx, ["p"], watch.rules))
    assert watch.app.store.read(lambda tx: alert_rules.undeclared(tx, ["p"], watch.rules)) == Declared([], [])
    watch.happen()
    assert watch.pass_() == 1


# Sources --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("found", "{}"),
        ("found", "[1]"),
        ("found", '{"ended":false,"counts":[1]}'),
        ("found", '{"ended":false,"counts":{"found":"x"}}'),
        ("found", f'{{"ended":false,"counts":{{"found":{LARGEST}}}}}'),
        ("memory", '{"of":"1","kept":[1]}'),
        ("run", LARGEST),
        ("run", -5),
        ("failures", 2**31 - 1),
    ],
)
def test_a_source_whose_row_holds_nonsense_is_looked_at_and_the_others_are_too(
    app: App, column: str, value: Any
) -> None:
    app.pipeline({"a": []})
    sources = Sources(app)
    sources.sync(first="1", second="1")
    sources.look("x")
    sources.look("y")
    app.clock.advance(60)
    [(number,)] = app.query("SELECT id FROM holdfast_sources WHERE name = 'first'")
    app.execute(f"UPDATE holdfast_sources SET {column} = :value WHERE name = 'first'", value=value)
    assert any(line.startswith(f"sources {number}: ") for line in check(app.store))
    assert {one["source"] for one in app.store.read(poll_sources.sources)} == {"first", "second"}
    for _ in range(2):
        due = sources.take()
        sources.finish(due, error="no answer")
    assert sources.take() is None
    assert [sources.row(name)["error"] for name in ("first", "second")] == ["no answer"] * 2
    app.clock.advance(3600)
    assert {sources.look("x", "y").found, sources.look("x", "y").found} == {2}


# Workers --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("versions", '{"a":1}'),
        ("versions", '{"1":[1]}'),
        ("stages", '[["x"]]'),
        ("stages", '[{"a":1}]'),
        ("facts", '{"progress":5}'),
        ("facts", '{"progress":[{"item":"x"}]}'),
        ("facts", '{"progress":[1],"guards":{"a":1},"in_hand":"x","done":[1],"last_error":"x"}'),
    ],
)
def test_a_worker_whose_row_holds_json_of_another_shape_is_shown_without_it(app: App, column: str, text: str) -> None:
    app.pipeline({"a": []})
    app.add(["x"])
    app.join("w")
    [lease] = app.claim("w")
    app.execute(f"UPDATE holdfast_workers SET {column} = :text", text=text)
    [(number,)] = app.query("SELECT id FROM holdfast_workers")
    assert f"workers {number}: its {column} cannot be read" in check(app.store)
    [shown] = app.store.read(status.workers)
    assert (shown["name"], shown["alive"]) == ("w", True)
    stage = app.stage("a")
    assert len(app.store.read(lambda tx: outdated_workers(tx, stage))) == (column == "versions")
    assert app.store.read(lambda tx: read_leases(tx, lease.item, "x"))[lease.stage]["progress"] is None


# What belongs to nothing, and numbers that cannot be --------------------------------------------------------------------

NOWHERE = 999_999


def test_db_check_finds_rows_that_belong_to_nothing_and_a_repair_takes_those_of_items_and_alerts(app: App) -> None:
    app.pipeline({"a": []})
    app.add(["x"])
    [(x,)] = app.query("SELECT id FROM holdfast_items")
    for text in (
        "children (parent, child) VALUES (:x, :nowhere)",
        "children (parent, child) VALUES (:nowhere, :x)",
        "chains (item, led_by) VALUES (:nowhere, '[]')",
        """deliveries (id, alert, body, due_at) VALUES (7, 'gone', '{"by":"log","text":"x","count":1}', 0)""",
        """sources (id, pipeline, name, memory, due_at) VALUES (8, :nowhere, 's', '{"of":"","kept":{}}', 0)""",
        "found (source, key, mark, run) VALUES (:nowhere, 'k', 'm', 1)",
        "lookups (source, key, mark, at) VALUES (:nowhere, 'k', 'm', 1)",
        "reservations (lease, resource, amount) VALUES (9, :nowhere, 1)",
        """error_groups (slot, stage, id, kind, place, message, n, amount, first_seen, last_seen, item)
        VALUES (0, :nowhere, 'g', 'k', 'p', 'm', 1, 0, 1, 1, :x)""",
    ):
        app.execute(
            f"INSERT INTO holdfast_{text}", **{name: {"x": x, "nowhere": NOWHERE}[name] for name in _named(text)}
        )
    kept = [
        f"sources 8: there is no pipeline {NOWHERE}",
        f"reservations 9: there is no resource {NOWHERE}",
        f"found {NOWHERE}: there is no source {NOWHERE}",
        f"lookups {NOWHERE}: there is no source {NOWHERE}",
        f"error_groups {NOWHERE}: there is no stage {NOWHERE}",
    ]
    assert sorted(check(app.store)) == sorted(
        [
            *kept,
            f"children {NOWHERE}: there is no item {NOWHERE}",
            f"children {x}: there is no item {NOWHERE}",
            f"chains {NOWHERE}: there is no item {NOWHERE}",
            "deliveries 7: there is no alert gone",
        ]
    )
    assert len(stray_rows.repair(app.store, app.store)) == 4
    assert sorted(check(app.store)) == sorted(kept)
    told = sorted((event["table"], event["why"]) for event in app.events("row_set_aside"))
    assert told == [
        (table, "what it belongs to does not exist") for table in ("chains", "children", "children", "deliveries")
    ]


def _named(text: str) -> set[str]:
    return {name for name in ("x", "nowhere") if f":{name}" in text}


@pytest.mark.parametrize("database", ["sqlite"])
def test_db_check_finds_rows_that_repeat_nothing(app: App) -> None:
    """On PostgreSQL these tables are an index, and the numbers of transactions."""
    app.pipeline({"a": []})
    app.execute(f"INSERT INTO holdfast_amended (item, stage, lease) VALUES ({NOWHERE}, 0, 1)")
    app.execute(f"INSERT INTO holdfast_grouped (error_group, item, stage) VALUES ('g', {NOWHERE}, 7)")
    assert check(app.store) == [
        f"amended {NOWHERE}: there is no item {NOWHERE}",
        f"grouped {NOWHERE}: there is no outcome in stage 7",
    ]


@pytest.mark.parametrize(
    ("column", "value"),
    [("attempts", 2**31 - 1), ("attempts", -5), ("rerun", 7), ("alone", 2**15 - 1), ("since", FAR), ("since", -1)],
)
def test_db_check_finds_numbers_of_waiting_work_that_cannot_be(app: App, column: str, value: int) -> None:
    app.pipeline({"a": []})
    app.add(["x"])
    assert check(app.store) == []
    app.execute(f"UPDATE holdfast_waiting SET {column} = {value}")
    [(x,)] = app.query("SELECT id FROM holdfast_items")
    assert check(app.store) == [f"waiting {x}: its {column} cannot be {value}"]


def test_db_check_finds_a_due_time_that_no_calendar_knows(app: App) -> None:
    app.pipeline({"a": []})
    app.add(["x"])
    app.fail(app.claim()[0], delay=5)
    app.execute(f"UPDATE holdfast_delayed SET due_at = {FAR}")
    [(x,)] = app.query("SELECT id FROM holdfast_items")
    assert check(app.store) == [f"delayed {x}: its due_at cannot be {FAR}"]


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("pipelines", "generation"),
        ("pipelines", "retry_after"),
        ("stages", "retry_after"),
        ("resources", "paced_at"),
        ("resources", "cool_until"),
        ("resources", "open_until"),
        ("resources", "retry_after"),
    ],
)
@pytest.mark.parametrize("value", [-(2**62), 2**63 - 1])
def test_db_check_finds_generations_and_pauses_that_cannot_be(
    store: Store, clock: ManualClock, table: str, column: str, value: int
) -> None:
    app = Limited(store, clock)
    app.limited({"rate": "10/s"})
    assert check(app.store) == []
    app.execute(f"UPDATE holdfast_{table} SET {column} = {value}")
    app.store.cache.clear()
    found = [line for line in check(app.store) if "cannot be" in line]
    assert found and all(line.endswith(f": its {column} cannot be {value}") for line in found)
    assert found[0].startswith(f"{table} ")


def test_db_check_finds_buckets_and_clocks_that_cannot_be(app: App) -> None:
    app.pipeline({"a": []})
    app.execute(f"INSERT INTO holdfast_buckets (resource, unit, used_until) VALUES (1, '', {2**63 - 1})")
    app.execute("INSERT INTO holdfast_clock (name, ahead) VALUES ('elsewhere', -5)")
    found = check(app.store)
    assert f"buckets 1: its used_until cannot be {2**63 - 1}" in found
    assert "clock elsewhere: its ahead cannot be -5" in found


def test_an_item_of_no_pipeline_on_the_list_of_changed_ones_is_taken_off_it(app: App) -> None:
    """It stopped the clearing of the list for good."""
    app.pipeline({"a": []})
    app.execute(f"INSERT INTO holdfast_changed (pipeline, item) VALUES ({NOWHERE}, 1)")
    assert app.store.write(lambda tx: changed_items.clear(tx, WalkPlace()))[0] == 1
    assert app.query("SELECT COUNT(*) FROM holdfast_changed") == [(0,)]


def test_a_matrix_ends_although_an_item_has_a_number_far_above_the_others(app: App) -> None:
    app.pipeline({"a": []})
    app.add(["x", "y"])
    app.execute(
        "INSERT INTO holdfast_items (id, pipeline, key, data, priority, created_at, updated_at) "
        f"VALUES ({FAR}, :pipeline, 'far', '{{}}', 0, 1, 1)",
        pipeline=app.stage("a").pipeline,
    )
    assert matrix.matrix(app.store, "p", 10)["items"] == 3


def test_data_that_cannot_be_read_is_not_blamed_on_the_merge_function(app: App) -> None:
    """A list is added as a whole or not at all, so the error says which item keeps it from being added."""

    def keep(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
        return {**old, **new}

    with pytest.raises(UsageError, match="item 'x': its stored data cannot be read, so keep has nothing to merge with"):
        merged(keep, "x", "{oops", '{"n":1}')


def test_data_that_cannot_be_read_is_overwritten_where_nothing_is_merged(app: App) -> None:
    app.pipeline({"a": [], "b": ["a"]})
    app.add(["x"])
    app.run_through()
    app.execute("UPDATE holdfast_items SET data = '{oops'")
    app.add(["x"])
    assert app.query("SELECT data FROM holdfast_items") == [("{}",)]


@pytest.mark.parametrize("text", ["{", "[1]", '{"known":[[["a"],[]]],"number":"x"}'])
def test_db_check_finds_readings_of_a_stage_that_are_none(app: App, text: str) -> None:
    app.pipeline({"a": []})
    app.execute("UPDATE holdfast_stages SET readings = :text", text=text)
    assert check(app.store) == [f"stages {app.stage('a').id}: its readings cannot be read"]


@pytest.mark.parametrize("text", ["{", "{}", '["x"]', "[-1]"])
def test_db_check_finds_a_chain_of_reruns_that_is_none(app: App, text: str) -> None:
    app.pipeline({"a": []})
    app.add(["x"])
    [(x,)] = app.query("SELECT id FROM holdfast_items")
    app.execute("INSERT INTO holdfast_chains (item, led_by) VALUES (:x, :text)", x=x, text=text)
    assert check(app.store) == [f"chains {x}: its led_by cannot be read"]


def test_a_previous_result_that_only_somebody_else_can_have_written_is_found_and_keeps_nobody_from_asking(
    app: App,
) -> None:
    app.pipeline({"a": []})
    app.add(["x"])
    app.run_through()
    [(x,)] = app.query("SELECT id FROM holdfast_items")
    app.execute("UPDATE holdfast_outcomes SET previous = '{'")
    assert check(app.store) == [f"outcomes {x}: its previous cannot be read"]
    [stage] = app.store.read(lambda tx: show_item.show(tx, "x", None))["stages"]
    assert "previous" not in stage


# Clocks ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [FAR, -FAR, LARGEST, -LARGEST - 1])
def test_a_clock_that_nobody_can_have_set_shifts_no_due_time(app: App, ahead: int) -> None:
    """It used to fail every promotion, of all pipelines."""
    app.pipeline({"a": []})
    app.add(["x"])
    app.promote()
    app.fail(app.claim()[0], delay=60)
    app.execute("UPDATE holdfast_clock SET ahead = :ahead", ahead=ahead)
    app.clock.advance(59)
    assert app.promote().moved == 0
    app.clock.advance(1)
    assert app.promote().moved == 1
    assert app.events("clock_set") == []


@pytest.mark.parametrize("hours", [1, -1])
@pytest.mark.parametrize("time", [LARGEST, -LARGEST - 1])
def test_times_that_cannot_be_shifted_keep_no_others_from_it(app: App, time: int, hours: int) -> None:
    app.pipeline({"a": []})
    app.add(["odd", "x"])
    app.promote()
    for lease in app.claim(most=2):
        app.fail(lease, delay=60)
    app.execute(
        "UPDATE holdfast_delayed SET due_at = :time WHERE item = (SELECT MIN(id) FROM holdfast_items)", time=time
    )
    app.execute("UPDATE holdfast_pipelines SET paused = 1, retry_after = :time", time=time)
    app.execute("UPDATE holdfast_stages SET paused = 1, retry_after = :time", time=time)
    app.execute(
        "INSERT INTO holdfast_resources (name, spec, updated_at, paused, retry_after, cool_until, open_until, paced_at) "
        "VALUES ('api', '{}', 0, 1, :time, :time, :time, :time)",
        time=time,
    )
    app.execute("INSERT INTO holdfast_buckets (resource, unit, used_until) VALUES (1, 'start', :time)", time=time)
    app.clock.set_wall(hours * 3600)
    is_due = time < 0
    assert app.promote().moved == is_due
    app.clock.advance(59)
    assert app.promote().moved == 0
    app.clock.advance(1)
    assert app.promote().moved == 1


# Sums -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("table", "columns"), [("counts", ("n", "total_us")), ("versions", ("n",))])
@pytest.mark.parametrize("value", [LARGEST, -LARGEST - 1])
def test_counts_that_nothing_can_have_reached_are_folded(
    app: App, table: str, columns: tuple[str, ...], value: int
) -> None:
    """Their sum would leave its column: nothing of anybody was folded any more."""
    app.pipeline({"a": []})
    app.add(["x", "y"])
    app.run_through()
    app.leave("w")
    app.execute(f"UPDATE holdfast_{table} SET {', '.join(f'{column} = :value' for column in columns)}", value=value)
    app.fold()
    app.execute(f"UPDATE holdfast_{table} SET {columns[0]} = :value", value=value)
    app.add(["z"])
    app.run_through(worker="v")
    app.leave("v")
    app.fold()
    assert app.query(f"SELECT COUNT(*) FROM holdfast_{table} WHERE slot <> 0") == [(0,)]
