"""Registering a pipeline: what its author wrote becomes known to the database, and only that changes."""

from __future__ import annotations

import pytest

from holdfast.errors import UsageError


def test_a_registration_says_what_it_added(app):
    assert app.pipeline({"a": [], "b": ["a"]})[:3] == (["a", "b"], [], [])
    assert [row.name for row in app.layout().of_pipeline("p")] == ["a", "b"]


def test_the_same_registration_again_changes_nothing(app):
    app.pipeline({"a": [], "b": ["a"]})
    before = app.layout()
    assert app.pipeline({"a": [], "b": ["a"]})[:3] == ([], [], [])
    assert app.layout().stages == before.stages
    assert len(app.events("pipeline_registered")) == 1


@pytest.mark.parametrize("change", [{"version": "2"}, {"max_attempts": 9}])
def test_a_changed_setting_is_a_change_of_that_stage_only(app, change):
    app.pipeline({"a": [], "b": ["a"]})
    assert app.pipeline({"a": [], "b": ["a"]}, only={"b": change})[:3] == ([], ["b"], [])
    [(name, value)] = change.items()
    assert getattr(app.stage("b"), name) == value
    assert getattr(app.stage("a"), name) != value


def test_a_change_raises_the_generation_and_no_change_does_not(app):
    app.pipeline({"a": []})
    [(first,)] = app.query("SELECT generation FROM holdfast_pipelines")
    app.pipeline({"a": []})
    assert app.query("SELECT generation FROM holdfast_pipelines") == [(first,)]
    app.pipeline({"a": []}, version="2")
    assert app.query("SELECT generation FROM holdfast_pipelines") == [(first + 1,)]


def test_a_removed_stage_stays_in_the_table_and_is_no_longer_active(app):
    app.pipeline({"a": [], "b": ["a"]})
    kept = app.stage("b").id
    assert app.pipeline({"a": []})[:3] == ([], [], ["b"])
    assert [row.name for row in app.layout().of_pipeline("p")] == ["a"]
    assert not app.stage("b").active
    assert app.stage("b").id == kept


def test_a_stage_that_comes_back_is_the_same_stage(app):
    app.pipeline({"a": [], "b": ["a"]})
    kept = app.stage("b").id
    app.pipeline({"a": []})
    assert app.pipeline({"a": [], "b": ["a"]})[:3] == ([], ["b"], [])
    assert (app.stage("b").id, app.stage("b").active) == (kept, True)


def test_two_pipelines_may_name_their_stages_alike(app):
    app.pipeline({"a": []}, name="one")
    app.pipeline({"a": []}, name="two")
    one, two = (app.layout().find(name, "a") for name in ("one", "two"))
    assert one.id != two.id
    assert one.pipeline != two.pipeline


def test_removing_a_stage_of_one_pipeline_leaves_the_other_alone(app):
    app.pipeline({"a": [], "b": []}, name="one")
    app.pipeline({"a": [], "b": []}, name="two")
    app.pipeline({"a": []}, name="one")
    assert app.layout().find("two", "b").active


def test_adding_to_a_pipeline_that_is_not_registered_is_refused(app):
    app.pipeline({"a": []})
    app.name = "other"
    with pytest.raises(UsageError, match="no pipeline 'other'"):
        app.add(["x"])


def test_another_connection_sees_a_change_with_its_next_write(app):
    """What a process has learnt of the layout is good for one generation."""
    app.pipeline({"a": []})
    app.add(["x"])
    other = app.beside()
    [lease] = other.claim("other")
    app.pipeline({"a": [], "b": ["a"]})
    other.complete(lease)
    assert app.states("x") == {"a": "done", "b": "pending"}
    other.store.close()


def test_a_change_does_not_send_a_back_fill_that_has_ended_round_again(app):
    app.pipeline({"a": []})
    app.add(["x"])
    app.run_through()
    app.pipeline({"a": [], "b": ["a"]})
    app.add(["y"])
    app.backfill()
    app.pipeline({"a": [], "b": ["a"]}, version="2")
    assert app.stage("b").backfill_next is None
