"""Counts: kept per writer, added up on reading, and always what a recount of the rows would give (J6)."""

from __future__ import annotations

import random

import pytest

from holdfast.clock import SECOND
from holdfast.engine.actions import act
from holdfast.engine.complete import complete
from holdfast.engine.plan_and_reprocess import Accept
from holdfast.engine.selection import Who
from holdfast.errors import LeaseLost
from holdfast.model.duration_buckets import bucket, bucket_middle_us

pytestmark = pytest.mark.req("J6")

SHAPE = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}


def some_mixture(app, rng, steps):
    """Drive the engine at random, with workers that die and come late; say after each step what was done."""
    hands, n = [], 0
    for _ in range(steps):
        what = rng.choice(
            [
                "add",
                "claim",
                "claim",
                "claim",
                "complete",
                "complete",
                "complete",
                "fail",
                "skip",
                "permanent",
                "snooze",
                "release",
                "kill",
                "promote",
                "reap",
                "retry",
                "rerun",
                "cancel",
                "fold",
                "late",
                "deploy",
                "accept",
            ]
        )
        stage = rng.choice(list(SHAPE))
        if what == "add":
            app.add([f"k{n + i}" for i in range(3)])
            n += 3
        elif what == "claim":
            hands += app.claim(rng.choice("uvw"), stage, most=rng.randint(1, 3))
        elif what in ("complete", "fail", "skip", "permanent", "snooze", "release", "late") and hands:
            lease = hands.pop(rng.randrange(len(hands)))
            if what == "late":
                hands.append(lease)
            try:
                if what in ("complete", "late"):
                    version = rng.choice(["1", "2"])
                    hands += app.complete(lease, rng.randint(0, 1), onward=rng.sample(list(SHAPE), 2), version=version)
                elif what == "snooze":
                    app.snooze(lease, 1)
                else:
                    getattr(app, what)(lease)
            except LeaseLost:
                pass
        elif what == "kill":
            worker = rng.choice("uvw")
            app.worker(worker)
            app.kill(worker)
        elif what == "promote":
            app.clock.advance(1)
            app.promote()
        elif what == "reap":
            app.clock.advance(rng.choice([1, 31]))
            app.reap()
        elif what == "retry":
            app.retry(stage=stage)
        elif what == "rerun":
            app.retry(stage=stage, states=["done", "skipped"])
        elif what == "cancel":
            app.cancel(stage=stage)
        elif what == "fold":
            app.fold()
        elif what == "deploy":
            app.pipeline(SHAPE, max_attempts=2, version=rng.choice(["1", "2"]))
        elif what == "accept":
            act(app.store, Accept("p", stage=stage), Who())
        yield what


@pytest.mark.parametrize("seed", range(4))
def test_after_any_mixture_of_operations_the_counts_are_those_of_the_rows(app, seed):
    app.pipeline(SHAPE, max_attempts=2)
    for step in some_mixture(app, random.Random(seed), 80):
        assert app.counts() == app.recount(), f"seed {seed}, after {step}"
        assert app.made_by() == app.remade_by(), f"seed {seed}, after {step}"
    for worker in "uvw":
        app.worker(worker)
        app.kill(worker)
    app.fold()
    assert app.counts() == app.recount()
    assert app.made_by() == app.remade_by()
    assert app.query("SELECT COUNT(*) FROM holdfast_counts WHERE slot <> 0") == [(0,)]
    assert app.query("SELECT COUNT(*) FROM holdfast_versions WHERE slot <> 0") == [(0,)]


def test_while_a_finished_stage_runs_again_the_counts_say_what_the_view_says(app):
    """Each item is in one state at a stage: counted as pending, it is not counted as done as well."""
    app.pipeline({"a": []})
    app.add(["x", "y"])
    app.run_through()
    app.retry(key="x", states=["done"])
    seen = app.query("SELECT state, COUNT(*) FROM holdfast_item_stages GROUP BY state")
    assert dict(seen) == {"pending": 1, "done": 1}
    assert app.counts() == {"a": dict(seen)}


def test_folding_leaves_every_sum_as_it_was_and_one_set_of_rows(app):
    app.pipeline({"a": [], "b": ["a"]})
    for n in range(10):
        app.add([f"k{n}"])
        app.complete(app.claim(f"worker-{n}", "a")[0], took_seconds=n)
        app.leave(f"worker-{n}")
    before = app.query("SELECT * FROM holdfast_stage_stats ORDER BY stage, state")
    [(rows,)] = app.query("SELECT COUNT(*) FROM holdfast_counts")
    assert app.fold() > 0
    assert app.query("SELECT * FROM holdfast_stage_stats ORDER BY stage, state") == before
    [(fewer,)] = app.query("SELECT COUNT(*) FROM holdfast_counts")
    assert fewer < rows
    assert app.fold() == 0


def test_a_version_of_which_nothing_is_left_leaves_no_row_when_counts_are_folded(app):
    app.pipeline({"a": []})
    app.add(["x"])
    app.complete(app.claim()[0])
    app.pipeline({"a": []}, version="2")
    act(app.store, Accept("p"), Who())
    app.leave("w")
    app.fold()
    assert app.query("SELECT version, n FROM holdfast_versions WHERE stage > 0") == [("2", 1)]


def test_counts_of_a_living_worker_are_not_folded(app):
    app.pipeline({"a": []})
    app.add(["x"])
    app.complete(app.claim("alive")[0])
    who = app.worker("alive")
    app.fold()
    assert app.query("SELECT COUNT(*) FROM holdfast_counts WHERE slot = :slot", slot=who.id) != [(0,)]
    app.leave("alive")
    app.fold()
    assert app.query("SELECT COUNT(*) FROM holdfast_counts WHERE slot <> 0") == [(0,)]
    assert app.counts() == app.recount()


def test_folding_in_small_steps_comes_to_the_same(app):
    app.pipeline({"a": [], "b": ["a"]})
    for n in range(6):
        app.add([f"k{n}"])
        app.run_through(worker=f"w{n}")
        app.leave(f"w{n}")
    before = app.counts()
    assert app.fold(most=2) > 2
    assert app.counts() == before == app.recount()


def test_old_marks_of_commits_are_forgotten_and_young_ones_kept(app):
    """A writer may need a week to find out whether its commit took place."""
    for writer, days in ((1, 8), (2, 6)):
        at = app.clock.now() - days * 24 * 3600 * SECOND
        app.execute("INSERT INTO holdfast_commits (writer, seq, at) VALUES (:writer, 1, :at)", writer=writer, at=at)
    app.fold()
    assert app.query("SELECT writer FROM holdfast_commits WHERE writer < 3") == [(2,)]


def test_timings_are_counted_with_their_number_sum_and_maximum(app):
    app.pipeline({"a": []})
    app.add(["x", "y", "z"])
    for lease, seconds in zip(app.claim(most=3), (1, 2, 6), strict=True):
        app.complete(lease, took_seconds=seconds)
    [(n, total, most)] = app.query("SELECT n, total_us, most_us FROM holdfast_stage_stats WHERE state = 'done'")
    assert (n, total, most) == (3, 9 * SECOND, 6 * SECOND)


@pytest.mark.parametrize("took_us", [0, 1, 2, 3, 1000, 999_999, 10**6, 3600 * 10**6, 30 * 24 * 3600 * 10**6])
def test_a_duration_is_known_to_within_a_tenth_by_its_bucket(took_us):
    assert bucket(took_us) >= 0
    if took_us > 1:
        assert bucket_middle_us(bucket(took_us)) == pytest.approx(took_us, rel=0.1)


@pytest.mark.req("P9")
def test_a_bucket_that_somebody_else_wrote_has_a_duration_too():
    assert bucket_middle_us(2**62) >= bucket_middle_us(bucket(10**17))
    assert bucket_middle_us(-(2**62)) == 0


def test_longer_durations_have_no_smaller_bucket():
    buckets = [bucket(took_us) for took_us in range(5000)]
    assert buckets == sorted(buckets)


def test_reading_the_counts_costs_as_many_rows_after_a_thousand_items_as_after_ten(app):
    app.pipeline({"a": []})
    sizes = []
    for n in (10, 1000):
        app.add(f"{n}/{i}" for i in range(n))
        leases = app.claim("w", most=n)
        app.store.write(lambda tx: complete(tx, [app.finished(lease) for lease in leases]))  # noqa: B023
        app.fold()
        sizes += app.query("SELECT COUNT(*) FROM holdfast_counts")
    assert sizes[0] == sizes[1]
