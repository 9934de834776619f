"""Tuning: limits and guards change while work goes on. What a person sets stands until its author says something else of it."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest

from holdfast.errors import UsageError
from holdfast.model.guard_conditions import Guards
from holdfast.model.tuning import read_value
from tests.support.harness import connected
from tests.support.limits import Limited, statements

pytestmark = pytest.mark.req("J17")


@pytest.fixture
def app(store, clock):
    return Limited(store, clock)


def allowed(app, name="api"):
    found = app.limits().get(name)
    return None if found is None else found["allowed"]


# What can be tuned ---------------------------------------------------------------------------------------------------


def test_keys_of_a_pipeline_a_stage_a_resource_and_guards(app):
    app.limited({"rate": "10/s"}, stages={"work": [], "more": []})
    in_force = app.tune(
        {
            "concurrency": 5,
            "work.rate": "2/s",
            "api.rate": "20/s",
            "api.burst": 4,
            "hours": "22:00-06:00",
            "disk_free": "1GB",
        }
    )
    assert in_force == {
        "concurrency": 5,
        "work.rate": "2/s",
        "api.rate": "20/s",
        "api.burst": 4,
        "hours": "22:00-06:00",
        "disk_free": "1GB",
    }
    assert allowed(app, "@p") == {"concurrency": 5}
    assert allowed(app, "@p/work") == {"rate": "2/s"}
    assert allowed(app) == {"rate": "20/s", "burst": 4}
    assert app.state_of().guards == Guards.read({"hours": "22:00-06:00", "disk_free": "1GB"})


def test_everybody_follows_with_the_next_transaction(app):
    app.limited({"concurrency": 1})
    with connected(app) as other:
        assert len(other.begin(5, worker="other")) == 1
        app.tune({"api.concurrency": 3})
        assert len(other.begin(5, worker="other")) == 2
        app.tune({"api.concurrency": 1})
        assert other.begin(5, worker="other") == []


def test_a_limit_on_what_had_none_holds_from_then_on(app):
    app.pipeline({"work": []})
    app.add(f"k{n}" for n in range(5))
    app.tune({"concurrency": 2})
    assert len(app.begin(5)) == 2


def test_tuning_leaves_an_event_with_who_and_why(app):
    app.limited({})
    app.tune({"api.concurrency": 3, "hours": "22:00-06:00"}, by="ann", reason="night only")
    [event] = app.told("tuned")
    assert event["data"] == {
        "changes": {"api.concurrency": 3, "hours": "22:00-06:00"},
        "by": "ann",
        "reason": "night only",
    }
    assert event["pipeline"] == "p"


def test_what_was_set_can_be_taken_back(app):
    app.limited({"rate": "10/s"})
    app.tune({"api.rate": "1/s", "concurrency": 2, "hours": "22:00-06:00"})
    assert app.tune({"api.rate": None, "concurrency": None, "hours": None}) == {
        "api.rate": "10/s",
        "concurrency": None,
        "hours": None,
    }
    assert allowed(app) == {"rate": "10/s"}
    assert app.limit()["tuned"] == []
    assert not app.state_of().guards
    with statements() as run:
        app.begin()
    assert run["lock_gates"], "the stage still uses its resource"


def test_a_pipeline_whose_limits_were_all_taken_back_pays_nothing_again(app):
    app.pipeline({"work": []})
    app.add(["x"])
    app.tune({"rate": "1/s"})
    app.tune({"rate": None})
    assert app.layout().resources_of(app.stage("work").id) == ()


def test_a_key_within_a_key_is_set_and_taken_back_alone(app):
    app.limited({"breaker": {"failures": 5, "probe_after": "5s"}, "units": {"tokens": "10/s", "images": "1/s"}})
    app.tune({"api.breaker.failures": 3, "api.units.tokens": "20/s"})
    assert allowed(app) == {
        "breaker": {"failures": 3, "probe_after": "5s"},
        "units": {"tokens": "20/s", "images": "1/s"},
    }
    app.tune({"api.breaker.probe_after": "7s"})
    assert allowed(app)["breaker"] == {"failures": 3, "probe_after": "7s"}
    app.tune({"api.breaker.failures": None})
    assert allowed(app)["breaker"] == {"failures": 5, "probe_after": "7s"}
    app.tune({"api.breaker": None, "api.units.tokens": None})
    assert allowed(app) == {
        "breaker": {"failures": 5, "probe_after": "5s"},
        "units": {"tokens": "10/s", "images": "1/s"},
    }


def test_a_zone_given_with_hours_is_the_zone_of_the_hours(app):
    app.limited({})
    app.tune({"hours": "22:00-06:00", "zone": "Europe/Berlin"})
    assert app.state_of().guards.hours.zone == "Europe/Berlin"


def test_a_zone_given_without_hours_is_the_zone_of_the_budget(app):
    app.limited({})
    app.tune({"budget_per_day": "1.00", "zone": "Europe/Berlin"})
    assert allowed(app, "@p") == {"budget_per_day": "1.00", "zone": "Europe/Berlin"}
    assert not app.state_of().guards


def test_stages_with_a_point_in_their_name_or_the_name_of_a_key_can_be_tuned(app):
    app.limited({}, stages={"work": [], "a.b": [], "rate": []})
    app.tune({"a.b.concurrency": 2, "rate.concurrency": 3, "rate": "5/s"})
    assert allowed(app, "@p/a.b") == {"concurrency": 2}
    assert allowed(app, "@p/rate") == {"concurrency": 3}
    assert allowed(app, "@p") == {"rate": "5/s"}


# What cannot ---------------------------------------------------------------------------------------------------------

WRONG = {
    "an unknown key": ({"speed": 5}, "'speed' is unknown: give a limit or a guard"),
    "an unknown stage or resource": ({"nobody.rate": "1/s"}, "no stage 'nobody', .* there are: work, api"),
    "an unknown key of a stage": ({"work.speed": 5}, "speed"),
    "a guard of a stage": ({"work.hours": "22:00-06:00"}, "hours"),
    "a stage without a key": ({"work": 5}, "'work' is unknown"),
    "an empty key": ({"": 5}, "'' is unknown"),
    "a key that is no text": ({5: "1/s"}, "5"),
    "a rate that is none": ({"rate": "often"}, "'often' is not a rate"),
    "a burst without a rate": ({"burst": 5}, "burst needs a rate"),
    "hours that are none": ({"hours": "always"}, "'always' is not a part of a day"),
    "a zone that is none": ({"hours": "22:00-06:00", "zone": "Mars"}, "'Mars' is not a time zone"),
    "something inside of a rate": ({"rate.x": 5}, "rate"),
    "both a key and what is inside": ({"breaker": True, "breaker.failures": 5}, "breaker"),
    "a value that cannot be kept": ({"rate": object()}, "cannot be kept"),
    "a function": ({"handler": len}, "handler"),
    "a text that cannot be kept": ({"exists": "\ud800"}, "exists|kept"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_read_is_refused_and_nothing_is_changed(app, name):
    app.limited({"rate": "10/s"})
    app.tune({"concurrency": 7})
    before = app.limits(), app.state_of(), app.layout().generation
    changes, complaint = WRONG[name]
    with pytest.raises(UsageError, match=complaint):
        app.tune({"api.rate": "99/s", "concurrency": 9, "disk_free": "1GB", **changes})
    assert (app.limits(), app.state_of(), app.layout().generation) == before
    assert len(app.told("tuned")) == 1


def test_brackets_within_brackets_without_end_are_a_text_that_is_refused(app):
    app.limited({"rate": "10/s"}, stages={"work": []})
    with pytest.raises(UsageError, match="rate"):
        app.tune({"rate": read_value("[" * 50_000)})


def test_a_pipeline_that_nobody_knows_cannot_be_tuned(app):
    app.limited({})
    app.name = "q"
    with pytest.raises(UsageError, match="there is no pipeline 'q' in this store; there are: p"):
        app.tune({"rate": "1/s"})


@pytest.mark.parametrize("value", [timedelta(seconds=30), Decimal("30"), 30, 30.0, "30s", "0.5m", b"30s"])
def test_what_is_set_is_what_everybody_will_read(app, value):
    """A value that comes back from the database as something else is refused, or read as it was meant."""
    app.limited({"cool": "10s"})
    try:
        app.tune({"api.cool": value})
    except UsageError:
        assert allowed(app) == {"cool": "10s"}
    else:
        assert app.layout().resource("api").spec.cool_seconds == 30
    with connected(app) as other:
        assert len(other.begin(worker="other")) == 1


@pytest.mark.parametrize("value", [Decimal("1.50"), "1.50", 1.5])
def test_an_amount_is_kept_exactly(app, value):
    app.limited({})
    app.tune({"api.budget": value})
    assert app.layout().resource("api").spec.budget == 1_500_000


# What authors say ----------------------------------------------------------------------------------------------------


def test_what_is_declared_is_in_force_and_declaring_it_again_changes_nothing(app):
    app.limited({"rate": "10/s"})
    assert allowed(app) == {"rate": "10/s"}
    assert app.is_declared({"api": {"rate": "10/s"}})
    generation = app.layout().generation
    assert app.declare({"api": {"rate": "10/s"}}) == []
    assert app.declare({}) == []
    assert (app.layout().generation, len(app.told("declared"))) == (generation, 1)


def test_a_changed_declaration_drops_what_a_person_had_set_of_that_key_alone(app):
    app.limited({"rate": "10/s", "concurrency": 5})
    app.tune({"api.rate": "1/s", "api.concurrency": 2, "api.budget": "3.00"})
    app.declare({"api": {"rate": "20/s", "concurrency": 5}})
    assert allowed(app) == {"rate": "20/s", "concurrency": 2, "budget": "3.00"}
    assert app.limit()["tuned"] == ["budget", "concurrency"]


def test_the_same_holds_for_guards(app):
    app.limited({})
    app.declare({}, p={"guards": {"hours": "22:00-06:00", "disk_free": "1GB"}})
    app.tune({"hours": "20:00-06:00", "disk_free": "2GB"})
    app.declare({}, p={"guards": {"hours": "23:00-06:00", "disk_free": "1GB"}})
    assert app.state_of().guards == Guards.read({"hours": "23:00-06:00", "disk_free": "2GB"})


def test_what_a_person_had_set_is_dropped_where_it_no_longer_fits_what_the_author_says(app):
    app.limited({"rate": "5/s"})
    app.tune({"api.burst": 9})
    app.declare({"api": {"concurrency": 2}})
    assert allowed(app) == {"concurrency": 2}
    assert len(app.begin(5)) == 2


def test_what_an_author_takes_out_of_a_tuning_is_out_of_force(app):
    app.limited({}, stages={"work": [], "more": []})
    app.declare({}, p={"concurrency": 2, "stages": {"work": {"concurrency": 1}}, "guards": {"disk_free": "1GB"}})
    app.declare({}, q={"concurrency": 3})
    app.declare({}, p={})
    assert len(app.begin(5)) == 5
    assert not app.state_of().guards
    assert allowed(app, "@q") == {"concurrency": 3}


def test_an_app_that_says_nothing_of_a_pipeline_changes_nothing_of_it(app):
    app.limited({"rate": "10/s"})
    app.declare({}, p={"concurrency": 2})
    app.declare({"gpu": {"concurrency": 1}})
    assert allowed(app, "@p") == {"concurrency": 2}
    assert allowed(app) == {"rate": "10/s"}


def test_a_declaration_that_cannot_be_read_changes_nothing(app):
    app.limited({"rate": "10/s"})
    with pytest.raises(UsageError, match="resource 'gpu': rate: 'often' is not a rate"):
        app.declare({"api": {"rate": "20/s"}, "gpu": {"rate": "often"}})
    assert allowed(app) == {"rate": "10/s"}
    assert "gpu" not in app.limits()


def test_resources_that_are_declared_without_limits_have_none(app):
    app.limited({}, uses=("api", "gpu"))
    app.declare({"gpu": {}})
    assert {name: one["allowed"] for name, one in app.limits().items()} == {"api": {}, "gpu": {}}
    assert app.limit("gpu")["stages"] == ["p/work"]
    assert len(app.begin(10)) == 10


def test_what_a_newer_holdfast_has_written_does_not_stop_an_older_one(app):
    app.limited({"concurrency": 2})
    app.execute(
        """UPDATE holdfast_resources SET spec = '{"concurrency": 2, "colour": "red", "rate": {"per": "moon"}}' WHERE name = 'api'"""  # noqa: E501
    )
    app.execute("""UPDATE holdfast_pipelines SET guards = '{"moon": "full"}', generation = generation + 1""")
    assert len(app.begin(10)) == 2
