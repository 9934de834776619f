"""Items × stages: counted in pieces, the same as the view says, whatever state the stages are in."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from holdfast.engine import matrix
from holdfast.engine.item_pages import items
from holdfast.engine.reopen import reopen
from holdfast.errors import UsageError
from holdfast.model.item_filter import Which
from holdfast.model.states import Rerun, State
from tests.support.harness import App

pytestmark = pytest.mark.req("P17")


def by_view(app: App) -> Counter[tuple[str, str]]:
    rows = app.query(
        "SELECT s.name, x.state, COUNT(*) FROM holdfast_item_stages x JOIN holdfast_stages s ON s.id = x.stage GROUP BY 1, 2"
    )
    return Counter({(stage, state): n for stage, state, n in rows})


def in_all(found: dict[str, Any]) -> Counter[tuple[str, str]]:
    counts: Counter[tuple[str, str]] = Counter()
    for one in found["stretches"]:
        for cell in one["stages"]:
            counts.update({(cell["stage"], state): n for state, n in cell["states"].items()})
    return counts


def mixed(app: App) -> None:
    """Thirty items in every state there is."""
    app.pipeline({"a": [], "b": ["a"]}, max_attempts=1)
    app.add([f"k{n}" for n in range(30)])
    leases = app.claim(stage="a", most=20)
    for lease in leases[:8]:
        app.complete(lease)
    app.skip(leases[8])
    app.permanent(leases[9])
    app.fail(leases[10])
    app.snooze(leases[11], 3600)
    app.hold("a", "k25")
    for lease in app.claim(stage="b", most=3):
        app.complete(lease)
    app.cancel(key="k27")
    # A stage that passed and is open again is counted once, as open.
    app.retry(key="k9")


def test_every_state_is_counted_as_the_view_has_it(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "PIECE", 4)
    mixed(app)
    found = matrix.matrix(app.store, app.name, 5)
    assert in_all(found) == by_view(app)
    assert (found["items"], len(found["stretches"])) == (30, 5)
    assert [one["items"] for one in found["stretches"]] == [6] * 5


def test_a_passed_stage_that_is_open_again_is_counted_once_in_every_open_state(app: App) -> None:
    app.pipeline({"a": []}, max_attempts=3)
    app.add(["waits", "runs", "delayed", "held"])
    for lease in app.claim(most=4):
        app.complete(lease)
    numbers = [number for (number,) in app.query("SELECT id FROM holdfast_items ORDER BY id")]
    stage = app.stage("a").id
    passed = app.query("SELECT item, state, version, type FROM holdfast_outcomes")
    chosen = {(item, stage): (State(state), version, type_) for item, state, version, type_ in passed}
    app.store.write(lambda tx: reopen(tx, chosen, Rerun.WAVE))
    runs, delayed, *_ = app.claim(most=2)
    app.fail(delayed, delay=3600)
    assert runs.item == numbers[0]
    app.hold("a", "held")
    found = matrix.matrix(app.store, app.name, 1)
    [stretch] = found["stretches"]
    assert stretch["stages"][0]["states"] == {"pending": 1, "retry_later": 1, "on_hold": 1, "in_progress": 1}


def test_steps_tell_how_far_it_is_and_end_with_all_of_it(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "PIECE", 4)
    mixed(app)
    shares: list[float] = []
    matrix.matrix(app.store, app.name, 5, shares.append)
    assert shares == sorted(shares) and shares[-1] == 1.0 and len(shares) > 5


def test_a_stretch_begins_where_a_page_of_items_does(app: App) -> None:
    app.pipeline({"a": []})
    app.add([f"k{n}" for n in range(10)])
    found = matrix.matrix(app.store, app.name, 3)
    which = Which(app.name)
    firsts = [
        app.store.read(lambda tx, one=one: items(tx, which, after=one["after"], most=1))[0]["key"]  # type: ignore[misc]
        for one in found["stretches"]
    ]
    assert firsts == ["k0", "k4", "k8"]


def test_a_pipeline_without_items_has_no_stretches_and_an_unknown_one_is_an_error(app: App) -> None:
    app.pipeline({"a": []})
    found = matrix.matrix(app.store, app.name, 10)
    assert (found["items"], found["stretches"]) == (0, [])
    with pytest.raises(UsageError, match="no pipeline"):
        matrix.matrix(app.store, "nothing", 10)
