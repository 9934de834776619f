"""Pages of items and of events are what the views and the log say, whatever way they are read."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable
from itertools import product
from typing import Any, TypeVar

import pytest

from holdfast.engine import events as events_
from holdfast.engine import item_pages, show_item
from holdfast.errors import UsageError
from holdfast.model.item_filter import Which
from holdfast.model.key_pattern import Pattern
from holdfast.model.states import State
from holdfast.schema import migrations
from tests.support.effort import effort
from tests.support.harness import App

pytestmark = pytest.mark.req("J5")

T = TypeVar("T")

KEYS = ["a", "aa", "ab", "a*b", "a?b", "b[1]", "b%", "b_", "bcd", "ä", "\U0010ffff", "\U0010ffffz", "Z"]
PATTERNS = [
    None,
    "a",
    "a*",
    "a?",
    "*",
    "*b",
    "?",
    "b*",
    "b%",
    "b_*",
    "b[1]",
    "\U0010ffff*",
    "nobody",
    "no*",
    "",
    "a[*]b",
    "a[?]b",
    "*[*]*",
    "b[[]1]",
    "a[*]*",
    ("a", "aa"),
    ("a*", "ab", "*b"),
    ("Z", "?", "nobody"),
]
SHAPE = {"a": [], "b": ["a"]}


def view(name: str, until: int) -> str:
    """A view as the migrations up to a number made it."""
    found = [
        re.findall(rf"CREATE VIEW holdfast_{name} AS(.*?);\n", migration.text, re.DOTALL)
        for migration in migrations()
        if migration.number <= until
    ]
    return next(texts[-1] for texts in reversed(found) if texts)


#: Written plainly, each stage of each item by itself: what all pages are compared with.
HELD = """
UNION ALL SELECT i.pipeline, i.id, i.key, h.stage, 'on_hold', h.attempts, NULL, NULL, NULL, NULL, h.reason, h.since
FROM holdfast_holds h JOIN holdfast_items i ON i.id = h.item"""
NOT_HELD = "  AND NOT EXISTS (SELECT 1 FROM holdfast_holds h WHERE h.item = o.item AND h.stage = o.stage)"
STAGES = view("item_stages", 1) + NOT_HELD + HELD
ON_HOLD = """THEN 'pending'
        WHEN EXISTS (SELECT 1 FROM holdfast_item_stages x JOIN holdfast_stages s ON s.id = x.stage AND s.active = 1
                     WHERE x.item = i.id AND x.state = 'on_hold') THEN 'on_hold'"""
STATUS = view("item_status", 2).replace("THEN 'pending'", ON_HOLD, 1).replace("holdfast_item_stages", f"({STAGES})")


@pytest.fixture(params=["large", "small"])
def ways(request, monkeypatch):
    """With small bounds every way of reading is taken."""
    if request.param == "small":
        monkeypatch.setattr(item_pages, "STRETCH", 3)
        monkeypatch.setattr(item_pages, "FEW", 2)
        monkeypatch.setattr(item_pages, "MOST_PRIORITIES", 1)
        monkeypatch.setattr(events_, "STRETCH", 5)
        monkeypatch.setattr(events_, "WIDE", 12)


def live(app: App, rng: random.Random) -> None:
    """A store with a past: items everywhere, some that run again, and stages that came back or are gone."""
    app.pipeline({"a": []}, name="q")
    app.add(KEYS[:5], priority=2)
    app.pipeline(SHAPE, max_attempts=2)
    for step in range(150):
        if step == 60:
            app.pipeline({"a": []}, max_attempts=2)
        if step == 100:
            app.pipeline(SHAPE, max_attempts=2)
        act(app, rng)
    # And at last one more in each state, some that are run again among them.
    app.name = "p"
    app.add(KEYS)
    app.add([f"last {how}" for how in range(9)], priority=-9)
    app.retry(states=["done", "skipped", "failed", "exhausted", "cancelled"], stage="a", key="a*")
    for how, lease in enumerate(app.claim("one", stage="a", most=8)):
        end(app, lease, how)
    app.cancel(key="last 8")
    again = [lease for lease in app.claim("one", stage="a", most=20) if lease.rerun]
    for how, lease in zip((0, 4, 5, 6), again, strict=False):
        end(app, lease, how)
    # Out of attempts.
    app.add(["worn out"], priority=-99)
    for _ in range(2):
        [lease] = app.claim("one", stage="a", most=1)
        app.fail(lease, "worn out", delay=0)
        app.promote()
    # On hold, for the first time and again.
    app.add([f"held {how}" for how in range(3)])
    app.retry(states=["done"], stage="a", key="last ?")
    assert app.hold("a", "held *", "too dear") == 3
    assert app.hold("a", "last ?", "an older version is at work") > 0
    # And a stage that is gone, with all that it had.
    app.pipeline({"x": [], "y": []}, name="s")
    app.add([f"gone {how}" for how in range(9)])
    for lease in app.claim("one", stage="x", most=9):
        app.complete(lease)
    for how, lease in enumerate(app.claim("one", stage="y", most=8)):
        end(app, lease, how)
    app.pipeline({"x": []}, name="s")
    app.name = "p"


def act(app: App, rng: random.Random) -> None:
    app.name = rng.choice("ppq")
    what = rng.randrange(12)
    if what < 2:
        app.add(rng.sample(KEYS, 2), priority=rng.choice([0, 0, -1, 7]))
    elif what < 8:
        for lease in app.claim(rng.choice(["one", "two"]), most=rng.randrange(1, 4)):
            end(app, lease, rng.randrange(7))
    elif what == 8:
        app.retry(states=rng.sample(["done", "skipped", "failed", "exhausted", "cancelled"], 2), key=rng.choice(KEYS))
    elif what == 9:
        app.cancel(key=rng.choice(["a*", "b*", "Z"]), reason=rng.choice(["", "not now"]))
    elif what == 10:
        app.clock.advance(rng.choice([1, 40]))
        app.promote()
    else:
        app.reap()


def end(app: App, lease: Any, how: int) -> None:
    if how < 2:
        app.complete(lease, {"n": how})
    elif how == 2:
        app.skip(lease, "nothing to do")
    elif how == 3:
        app.permanent(lease, "torn page")
    elif how == 4:
        app.fail(lease, "timed out", delay=20)
    elif how == 5:
        app.snooze(lease, 30, "later")


def fits(pattern: str | tuple[str, ...] | None, key: str) -> bool:
    if pattern is None or isinstance(pattern, tuple):
        return pattern is None or any(fits(one, key) for one in pattern)
    wild = {"*": ".*", "?": ".", "[*]": "[*]", "[?]": "[?]", "[[]": r"\["}
    text = "".join(wild.get(part, re.escape(part)) for part in re.findall(r"\[[*?[]\]|.", pattern))
    return re.fullmatch(text, key, re.DOTALL) is not None


def page(app: App, **given: Any) -> list[dict[str, Any]]:
    asked = dict.fromkeys(("pipeline", "stage", "state", "key", "error")) | {"after": 0, "most": 100} | given
    state = asked.pop("state")
    after, most = asked.pop("after"), asked.pop("most")
    which = Which(**asked, states=frozenset() if state is None else frozenset({state}))
    return app.store.read(lambda tx: item_pages.items(tx, which, after=after, most=most))


def part_of(cases: Iterable[T], number: int) -> list[T]:
    """Every other one of the cases, the rest under the next number; all of them in a thorough run."""
    return list(cases)[number % 2 :: 2] if effort(1, 0) else list(cases)


@pytest.mark.parametrize("seed", range(effort(2, 10)))
def test_a_page_of_stages_of_items_is_what_the_view_says(app, ways, seed):
    rng = random.Random(seed)
    live(app, rng)
    columns = "item, key, stage, state, attempts, next_attempt_at, error, updated_at"
    known = app.layout().stages
    rows = [
        dict(zip(columns.split(", "), row, strict=True)) for row in app.query(f"SELECT {columns} FROM ({STAGES}) AS x")
    ]
    told = [
        {
            "id": row["item"],
            "cursor": f"{row.pop('item')}/{known[row['stage']].name}",
            "pipeline": known[row["stage"]].pipeline_name,
            **row,
            "stage": known[row["stage"]].name,
        }
        for row in sorted(rows, key=lambda row: (row["item"], known[row["stage"]].position, row["stage"]))
    ]
    assert {row["state"] for row in told} == set(State)
    asked_for = product((None, "p", "q", "s"), (None, "a", "b", "y"), (None, *State), (None, "page", "n", "no such"))
    for pipeline, stage, state, error in part_of(asked_for, seed):
        if (stage, state, error) == (None, None, None):
            continue
        key, after, most = rng.choice(PATTERNS), rng.choice([0, 0, 4, 8, 99]), rng.choice([1, 3, 100])
        asked = {"pipeline": pipeline, "stage": stage, "state": state, "error": error, "key": key}
        wanted = [
            row
            for row in told
            if row["id"] > after
            and fits(key, row["key"])
            and (error is None or error in (row["error"] or ""))
            and all(asked[name] in (None, row[name]) for name in ("pipeline", "stage", "state"))
        ]
        if pipeline and stage and app.layout().find(pipeline, stage) is None:
            with pytest.raises(UsageError, match=f"there is no stage '{stage}' in pipeline '{pipeline}'; there are: "):
                page(app, **asked)
            continue
        assert page(app, **asked, after=after, most=most) == wanted[:most], (asked, after, most)


@pytest.mark.parametrize("state", [None, "done", "exhausted", "pending", "retry_later", "in_progress"])
def test_pages_of_every_size_together_are_the_whole_list(app, ways, state):
    """An item with several stages in one state is on two pages where its stages are cut apart."""
    app.pipeline({"z": [], "a": [], "b": []}, max_attempts=1, name="q")
    app.add(["other"])
    app.pipeline({"c": [], "a": [], "b": []}, max_attempts=1)
    app.add(["u", "v", "w", "x", "y", "z"], priority=1)
    app.add(["x1", "x2"], priority=0)
    # In another order than that in which they were first named.
    app.pipeline({"b": [], "d": [], "a": [], "c": []}, max_attempts=1)
    for stage in ("a", "b", "d"):
        for lease in app.claim(
            stage=stage, most=8 if state in ("done", "exhausted", "retry_later", "in_progress") else 3
        ):
            if state == "exhausted":
                app.fail(lease)
            elif state == "retry_later":
                app.snooze(lease, 100, "later")
            elif state != "in_progress":
                app.complete(lease)
    # Nothing is left of a stage that was removed but what it has.
    app.pipeline({"b": [], "a": []}, max_attempts=1)
    ways_to_ask = (
        {},
        {"key": "x*"},
        {"key": ("x", "x*", "u")},
        {"pipeline": "p", "stage": "a"},
        {"key": ("*1", "*2", "?")},
    )
    for number, given in enumerate(ways_to_ask):
        asked = {"state": None if state is None else State(state), "error": "" if state is None else None, **given}
        whole = page(app, **asked, most=1000)
        assert len(whole) > len({row["id"] for row in whole}) or "stage" in given or state is None
        for most in part_of(range(1, len(whole) + 2), number):
            pages_: list[dict[str, Any]] = []
            after: int | str = 0
            while found := page(app, **asked, after=after, most=most):
                assert len(found) <= most
                pages_ += found
                after = found[-1]["cursor"]
            assert pages_ == whole, (asked, most)


def test_a_place_that_is_none_is_refused(app):
    app.pipeline(SHAPE)
    app.add(KEYS)
    for after in ("x", "-1", "", "1/", "/a", "1/nowhere", str(2**63), "1/a/b"):
        with pytest.raises(UsageError, match="after"):
            page(app, state=State.PENDING, after=after)
    with pytest.raises(UsageError, match="name the item alone"):
        page(app, after="1/a")
    assert [row["id"] for row in page(app, state=State.PENDING, after=11)] == [12, 13]
    assert [row["id"] for row in page(app, after="11")] == [12, 13]


@pytest.mark.parametrize("seed", range(effort(2, 10)))
def test_a_page_of_items_is_what_the_view_of_their_status_says(app, ways, seed):
    rng = random.Random(seed)
    live(app, rng)
    statuses = dict(app.query(f"SELECT item, status FROM ({STATUS}) AS x"))
    assert dict(app.query("SELECT item, status FROM holdfast_item_status")) == statuses
    columns = ("id", "pipeline", "key", "created_at", "updated_at")
    rows = app.query(
        "SELECT i.id, p.name, i.key, i.created_at, i.updated_at FROM holdfast_items i "
        "JOIN holdfast_pipelines p ON p.id = i.pipeline ORDER BY i.id"
    )
    told = [{**dict(zip(columns, row, strict=True)), "status": statuses[row[0]], "cursor": str(row[0])} for row in rows]
    assert set(statuses.values()) == {"pending", "in_progress", "on_hold", "failed", "cancelled", "done"}
    for pipeline, key, after, most in part_of(product((None, "p", "q", "s"), PATTERNS, (0, 6, 99), (1, 3, 100)), seed):
        wanted = [
            row for row in told if row["id"] > after and fits(key, row["key"]) and pipeline in (None, row["pipeline"])
        ]
        assert page(app, pipeline=pipeline, key=key, after=after, most=most) == wanted[:most], (
            pipeline,
            key,
            after,
            most,
        )


def test_where_an_item_stands_is_what_the_view_says(app):
    rng = random.Random(0)
    live(app, rng)
    columns = ["state", "attempts", "started_at", "ended_at", "elapsed_us", "next_attempt_at", "error", "updated_at"]
    for key in KEYS:
        told = app.store.read(lambda tx, key=key: show_item.show(tx, key, "p"))
        for one in told["stages"]:
            seen = app.query(
                f"SELECT {', '.join(columns)} FROM ({STAGES}) AS x WHERE x.key = :key AND x.stage = :stage",
                key=key,
                stage=app.stage(one["stage"]).id,
            )
            wanted = dict(zip(columns, seen[0], strict=True)) if seen else {"state": None, "attempts": 0}
            assert {name: one.get(name) for name in wanted} == wanted


@pytest.mark.parametrize("seed", range(effort(4, 20)))
def test_events_are_told_by_number_though_the_clock_was_set(app, ways, seed):
    """The index of kinds has the order of times, which is another one."""
    rng = random.Random(seed)
    app.pipeline({"a": []}, name="q")
    app.pipeline(SHAPE)
    app.add(KEYS)
    numbers = [row[0] for row in app.query("SELECT id FROM holdfast_items")]
    kinds = ["attempt_failed"] * 20 + ["retried"] * 5 + ["paused"]
    pipelines = {"q": app.layout().pipelines["q"].id, "p": app.layout().pipelines["p"].id}
    for n in range(60):
        app.execute(
            "INSERT INTO holdfast_events (at, event, pipeline, item, data) VALUES (:at, :event, :pipeline, :item, :data)",
            at=rng.choice([n, n, n, rng.randrange(60)]),
            event=rng.choice(kinds),
            pipeline=rng.choice([None, pipelines["q"], pipelines["p"], pipelines["p"]]),
            item=rng.choice([None, *numbers[:4]]),
            data=json.dumps({"n": n}),
        )
    rows = app.query("SELECT id, at, event, pipeline, item FROM holdfast_events ORDER BY id")
    kinds = [None, "attempt_failed", "retried", "paused", "clock_set"]
    for event, pipeline, item, since in product(kinds, (None, "p", "q"), (None, *numbers[:2]), (None, 0, 30, 58, 99)):
        after, most = rng.choice([None, None, 0, 10, 55, 60]), rng.choice([1, 3, 10, 100])
        wanted = [
            row[0]
            for row in rows
            if event in (None, row[2])
            and pipeline in (None, *[name for name, n in pipelines.items() if n == row[3]])
            and item in (None, row[4])
            and (since is None or row[1] >= since)
            and (after is None or row[0] > after)
        ]
        asked = {"event": event, "pipeline": pipeline, "item": item, "since": since, "after": after, "most": most}
        told = app.store.read(lambda tx, asked=asked: events_.events(tx, **asked))
        assert [one["id"] for one in told] == (wanted[-most:] if after is None else wanted[:most]), asked


def test_few_items_are_found_by_their_keys_and_many_are_only_counted(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    app.pipeline({"a": []})
    app.add([f"x{n}" for n in range(5)] + ["y"])
    monkeypatch.setattr(item_pages, "FEW", 1)
    [(pipeline,)] = app.query("SELECT id FROM holdfast_pipelines")
    some = Pattern("x*")

    def found(most: int) -> int | None:
        numbers = app.store.read(lambda tx: item_pages.few_items(tx, [pipeline], some, most))
        return None if numbers is None else len(numbers)

    assert [found(most) for most in (1, 4, 5, 6)] == [None, None, 5, 5]
