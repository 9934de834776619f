"""Values that only somebody else can have written, in rows that everybody reads: one costs its row, and `db check` names it."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.engine import poll_sources, status, stray_rows
from holdfast.engine.check import check
from holdfast.engine.item_stages import read_leases
from holdfast.engine.on_hold import outdated_workers
from tests.engine.discovering import Sources
from tests.support.harness import App

pytestmark = pytest.mark.req("P9", "V7")

FAR = 2**62
LARGEST = 2**63 - 1


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
