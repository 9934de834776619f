"""Attempts counted by minute: written by workers, joined, and read as curves."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.clock import SECOND
from holdfast.engine import reap, throughput_by_minute
from holdfast.model.attempt_counts import MINUTE_US, AttemptCounts
from tests.support.harness import App

HOUR_US = 60 * MINUTE_US


def counts(n: int = 1, run: int = 40, wait: int = 60, outcome: str = "done") -> AttemptCounts:
    return AttemptCounts({outcome: n}, {run: n}, {wait: n})


def write(app: App, slot: int, ago: int, what: AttemptCounts, stage: str = "a") -> None:
    """As a worker does, of a minute so many minutes ago."""
    place = (app.clock.now() // MINUTE_US - ago, app.stage(stage).id)
    app.store.write(lambda tx: throughput_by_minute.write(tx, slot, {place: what}))


def join(app: App, most: int = throughput_by_minute.CHUNK) -> int:
    return app.store.write(lambda tx: throughput_by_minute.join(tx, most), exclusive=True)


def throughput(app: App, last: int = 60) -> dict[str, Any]:
    [found] = app.store.read(lambda tx: throughput_by_minute.throughput(tx, app.name, None, last))
    return found


def rows(app: App) -> list[tuple[int, ...]]:
    now = app.clock.now() // MINUTE_US
    return [
        (now - minute, slot) for minute, slot in app.query("SELECT minute, slot FROM holdfast_minutes ORDER BY 1, 2")
    ]


@pytest.fixture
def begun(app: App) -> App:
    # At the beginning of a quarter of an hour, so that a test knows which minutes belong together.
    app.clock.advance((15 * MINUTE_US - app.clock.now() % (15 * MINUTE_US)) / SECOND)
    app.pipeline({"a": []})
    return app


def groups(app: App) -> dict[str, list[int]]:
    stages = [app.stage("a").id]
    return app.store.read(lambda tx: throughput_by_minute.failures_by_hour(tx, stages))


def test_failures_of_a_group_are_told_by_hour_before_and_after_they_are_joined(begun: App) -> None:
    def failed(**by_group: int) -> AttemptCounts:
        return AttemptCounts({"failed": sum(by_group.values())}, groups=by_group)

    write(begun, 1, 0, failed(torn=2))
    write(begun, 2, 61, failed(torn=3, title=1))
    write(begun, 2, 5 * 60, failed(title=4))
    write(begun, 1, 25 * 60, failed(title=100))
    wanted = {"torn": [0] * 22 + [3, 2], "title": [0] * 18 + [4, 0, 0, 0, 1, 0]}
    assert groups(begun) == wanted
    join(begun)
    assert groups(begun) == wanted


def test_only_the_most_frequent_groups_are_kept_where_no_failure_is_like_another(begun: App) -> None:
    many = {f"group-{n}": 1 for n in range(1000)}
    write(begun, 1, 0, AttemptCounts({"failed": 1005}, groups={**many, "torn": 5}))
    found = groups(begun)
    assert len(found) == 50 and found["torn"][-1] == 5


def test_an_attempt_whose_worker_died_is_lost(begun: App) -> None:
    begun.add(["x"])
    begun.claim()
    begun.clock.advance(3600)
    begun.store.write(lambda tx: reap.remove_silent(tx, begun.store.driver.clock_name))
    [(stage, outcome, attempts)] = begun.store.write(lambda tx: (reap.reap(tx), tx.ended)[1])
    assert (stage, outcome, len(attempts)) == (begun.stage("a").id, "lost", 1)


def test_attempts_of_all_workers_are_summed_with_their_outcomes(begun: App) -> None:
    write(begun, 1, 2, counts(3))
    write(begun, 2, 2, counts(4))
    write(begun, 2, 1, counts(1, outcome="failed"))
    found = throughput(begun)
    assert (found["attempts"], found["outcomes"]) == (8, {"done": 7, "failed": 1})
    assert [(point["attempts"], point["outcomes"]) for point in found["points"] if point["attempts"]] == [
        (7, {"done": 7}),
        (1, {"failed": 1}),
    ]
    assert [point["begins_at"] for point in found["points"]] == sorted(point["begins_at"] for point in found["points"])


def test_percentiles_come_from_what_most_attempts_took(begun: App) -> None:
    write(begun, 1, 1, AttemptCounts({"done": 100}, {40: 90, 80: 10}, {60: 50, 64: 50}))
    found = throughput(begun)
    assert found["run_p50_seconds"] == pytest.approx(2**10 / 1e6, rel=0.1)
    assert found["run_p95_seconds"] == pytest.approx(2**20 / 1e6, rel=0.1)
    assert found["wait_p50_seconds"] < found["wait_p95_seconds"]


def test_a_stage_without_attempts_has_points_and_no_percentiles(begun: App) -> None:
    found = throughput(begun)
    assert (found["attempts"], found["run_p50_seconds"], len(found["points"])) == (0, None, 61)


def test_joining_keeps_every_sum(begun: App) -> None:
    for slot in (1, 2, 3):
        for ago in (1, 10, 11, 5 * 60, 5 * 60 + 1, 6 * 60):
            write(begun, slot, ago, counts(slot))
    before = throughput(begun, 24 * 60)
    assert join(begun) == 15
    assert throughput(begun, 24 * 60) == before and before["attempts"] == 36
    assert join(begun) == 0


def test_young_rows_stay_older_ones_become_one_a_minute_and_the_oldest_one_a_quarter(begun: App) -> None:
    for slot in (1, 2):
        for ago in (1, 10, 11, 5 * 60 - 1, 5 * 60 - 2):
            write(begun, slot, ago, counts())
    join(begun)
    assert rows(begun) == [(5 * 60, 0), (11, 0), (10, 0), (1, 1), (1, 2)]


def test_rows_that_come_late_are_joined_with_those_before_them(begun: App) -> None:
    for slot in (1, 2):
        write(begun, slot, 10, counts())
        write(begun, slot, 5 * 60 - 3, counts())
        join(begun)
    assert throughput(begun, 24 * 60)["attempts"] == 4
    assert rows(begun) == [(5 * 60, 0), (10, 0)]


def test_joining_goes_on_where_it_was_cut_off(begun: App) -> None:
    for slot in range(1, 8):
        write(begun, slot, 20, counts())
    assert [join(begun, most=3) for _ in range(4)] == [3, 3, 1, 0]
    assert throughput(begun)["attempts"] == 7 and rows(begun) == [(20, 0)]


def test_rows_are_kept_for_two_weeks(begun: App) -> None:
    write(begun, 1, 20, counts())
    begun.clock.advance(throughput_by_minute.KEPT_MINUTES * 60 - 60 * 60)
    join(begun)
    assert throughput(begun, throughput_by_minute.KEPT_MINUTES)["attempts"] == 1
    begun.clock.advance(2 * 60 * 60)
    join(begun)
    assert rows(begun) == []


@pytest.mark.parametrize("text", ["", "no json", "[1]", '{"run": {"x": 1}}', '{"outcomes": {"done": "many"}}'])
def test_a_row_that_something_else_has_written_is_passed_over(begun: App, text: str) -> None:
    write(begun, 1, 10, counts(2))
    write(begun, 2, 10, counts())
    begun.execute("UPDATE holdfast_minutes SET counts = :text WHERE slot = 2", text=text)
    assert throughput(begun)["attempts"] == 2
    join(begun)
    assert throughput(begun)["attempts"] == 2


@pytest.mark.parametrize(("last", "span"), [(1, 1), (60, 1), (240, 2), (1440, 15), (14 * 1440, 180)])
def test_a_curve_has_a_bounded_number_of_points(begun: App, last: int, span: int) -> None:
    found = throughput(begun, last)
    assert found["span_seconds"] == 60.0 * span
    assert last // span <= len(found["points"]) <= throughput_by_minute.MOST_POINTS + 2
