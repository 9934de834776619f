"""Somebody else writes nonsense into our tables: every good item ends, whoever asks gets an answer, and nothing spins.

Into many cells of rows that belong to one pipeline, and to nobody in particular, at once; the other pipeline of the store is to
notice nothing. And into the rows of one item, of which the other items of its pipeline are to notice nothing. The seed is the
name of the case: the same nonsense every time.
"""

from __future__ import annotations

import json
import random
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.engine import alert_rules
from holdfast.errors import HoldfastError
from holdfast.model.states import State
from holdfast.store import Transaction
from tests.support.effort import effort
from tests.support.steps import ask, tables
from tests.worker.victim import Victim

pytestmark = [pytest.mark.req("P9", "V5", "V7"), pytest.mark.fault(81)]

TEXTS = ["", "{", "null", "[1]", '"x"', "no json", '{"a":', "\u2028" * 20, "{}", '{"a":1}', '[["x"]]', "[null]"]
#: Put in place of a part of a value, so that it keeps its outer shape.
PARTS: list[Any] = [{}, [], None, 7, -1, 2**62, 1.5, "x", [["x"]], {"a": [1]}]
NUMBERS = [-1, 0, 7, 2**15 - 1, 2**31 - 1, 2**62]
#: The first and the last number of a column. As the number of a row, the last one fills its table.
EXTREMES = [-(2**63), 2**63 - 1]
#: Also what a column cannot hold: the table refuses it, or keeps it, and then it has to be read.
JUNK: dict[str, list[Any]] = {
    "text": [*TEXTS, *TEXTS, 7, b"\xff"],
    "number": [*NUMBERS, *NUMBERS, *EXTREMES, "seven", 1.5, b"\xff"],
}
#: What says which tables these are, and who is who: with another number a row is another row.
WHO = {"id", "item", "stage", "pipeline", "key", "name", "slot", "source", "writer"}
#: Of these, what says to whom a row belongs.
BELONGS_TO = {"item", "stage", "pipeline"}
#: Which schema this is; and the rows of writers that are alive.
LEFT_ALONE = {"schema_version", "commits"}


def spoil(app: Holdfast, seed: int, item: str | None = None) -> list[str]:
    """Put nonsense into cells all over the store, one in each table at most, or only into the rows of one item; return what was
    done."""
    chance = random.Random(seed)
    done = []
    for table in app.store.write(tables):
        if table in LEFT_ALONE:
            continue
        of = app.store.write(lambda tx, table=table: columns(tx, table))  # type: ignore[misc]
        column = chance.choice(sorted(of.keys() - WHO) or [""])
        junk = chance.choice(JUNK[of.get(column, "text")])
        where = mine(table, of) if item is None else of_item(table, of, item)
        if not column or where is None:
            continue
        if of[column] == "text" and chance.random() < 0.5:
            text = f"SELECT {column} FROM holdfast_{table} WHERE {where}"
            there = app.store.write(lambda tx, text=text: sorted(ask(tx, text), key=repr))  # type: ignore[misc]
            junk = bent(there, junk, chance)
        text = f"UPDATE holdfast_{table} SET {column} = :junk WHERE {where}"
        if written(app, text, {"junk": junk}):
            done.append(f"{table}.{column} = {junk!r}")
    app.store.cache.clear()
    return done


def bent(rows: list[Any], otherwise: Any, chance: random.Random) -> Any:
    """The JSON of the first of these cells with another part; something else if there is none."""
    try:
        value = json.loads(rows[0][0])
    except (IndexError, TypeError, ValueError):
        return otherwise
    return json.dumps(_bent(value, chance))


def _bent(value: Any, chance: random.Random) -> Any:
    if not isinstance(value, (dict, list)) or not value or chance.random() < 0.2:
        return chance.choice(PARTS)
    places = sorted(value) if isinstance(value, dict) else range(len(value))
    place = chance.choice(places)
    value[place] = _bent(value[place], chance)
    return value


def add_rows(app: Holdfast, seed: int) -> list[str]:
    """Put new rows into tables all over the store, each like one of the pipeline that is spoilt but for a few of its values, of
    which some name what does not exist; return what was done."""
    chance = random.Random(seed)
    done = []
    for table in app.store.write(tables):
        if table in LEFT_ALONE:
            continue
        of = app.store.write(lambda tx, table=table: columns(tx, table))  # type: ignore[misc]
        names = ", ".join(of)
        text = f"SELECT {names} FROM holdfast_{table} WHERE {mine(table, of)}"
        rows = app.store.write(lambda tx, text=text: sorted(ask(tx, text), key=repr))  # type: ignore[misc]
        if not rows:
            continue
        parameters = ", ".join(f":{column}" for column in of)
        for row in chance.choices(rows, k=3):
            values = nonsense_in(dict(zip(of, row, strict=True)), of, chance)
            if written(app, f"INSERT INTO holdfast_{table} ({names}) VALUES ({parameters})", values):
                done.append(f"{table}: {values}")
    app.store.cache.clear()
    return done


def nonsense_in(values: dict[str, Any], of: dict[str, str], chance: random.Random) -> dict[str, Any]:
    """These values with nonsense in a few columns, and in what numbers the row itself."""
    columns = chance.sample(sorted(of), min(len(of), chance.randint(1, 4)))
    for column in [*columns, *sorted(of.keys() & {"id", "slot"})]:
        if column in {"id", "slot"} and of[column] == "number":
            values[column] = chance.choice(NUMBERS)
        elif column not in BELONGS_TO:
            values[column] = chance.choice(JUNK[of[column]])
        elif chance.random() < 0.5:
            values[column] = chance.choice(NUMBERS)
    return values


#: What a table says when it refuses a value.
REFUSALS = (
    "constraint",
    "CONSTRAINT",
    "out of range",
    "cannot store",
    "is of type",
    "invalid input syntax",
    "cannot be a parameter",
    "datatype mismatch",
)


def written(app: Holdfast, text: str, params: dict[str, Any]) -> bool:
    """Whether the table itself took it."""
    try:
        app.store.write(lambda tx: ask(tx, text, **params))
    except Exception as error:
        if not any(word in str(error) for word in REFUSALS):
            raise
        return False
    return True


PIPELINE = "(SELECT id FROM holdfast_pipelines WHERE name = 'spoilt')"
SOURCE = f"(SELECT id FROM holdfast_sources WHERE pipeline = {PIPELINE})"
RESOURCE = "(SELECT id FROM holdfast_resources WHERE name = 'api')"
ITEMS = f"(SELECT id FROM holdfast_items WHERE pipeline = {PIPELINE})"
#: Which rows belong to the pipeline that is spoilt: by table, or else by the first of these columns.
OF_TABLE = {
    "pipelines": "name = 'spoilt'",
    "workers": "name = 'ghost'",
    "alerts": "name = 'bad'",
    "resources": "name = 'api'",
    "deliveries": "alert = 'bad'",
}
OF_COLUMN = {
    "pipeline": f"pipeline = {PIPELINE}",
    "item": f"item IN {ITEMS}",
    "stage": f"stage IN (SELECT id FROM holdfast_stages WHERE pipeline = {PIPELINE})",
    "source": f"source IN {SOURCE}",
    "resource": f"resource = {RESOURCE}",
    "parent": f"parent IN {ITEMS}",
}


def mine(table: str, of: dict[str, str]) -> str:
    """Which rows belong to the pipeline that is spoilt, or to nobody in particular."""
    return OF_TABLE.get(table) or next((where for column, where in OF_COLUMN.items() if column in of), "1 = 1")


def of_item(table: str, of: dict[str, str], key: str) -> str | None:
    """Which rows belong to this item."""
    column = "id" if table == "items" else "item"
    return f"{column} IN (SELECT id FROM holdfast_items WHERE key = '{key}')" if column in of else None


def columns(tx: Transaction, table: str) -> dict[str, str]:
    """The columns of a table, and whether each holds a text or a number."""
    texts = ("TEXT", "text")
    if tx.store.driver.dialect.name == "sqlite":
        return {
            row[1]: "text" if row[2] in texts else "number" for row in ask(tx, f"PRAGMA table_info(holdfast_{table})")
        }
    rows = ask(
        tx,
        "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute WHERE attnum > 0 AND NOT attisdropped "
        f"AND attrelid = CAST('{tx.store.driver.dialect.table(table)}' AS regclass)",
    )
    return {column: "text" if kind in texts else "number" for column, kind in rows}


QUESTIONS: dict[str, Callable[[Holdfast], Any]] = {
    "status": Holdfast.status,
    "workers": Holdfast.workers,
    "items": Holdfast.items,
    "events": Holdfast.events,
    "costs": Holdfast.costs,
    "limits": Holdfast.limits,
    "errors": Holdfast.errors,
    "doctor": Holdfast.doctor,
    "check": Holdfast.check,
    "actions": Holdfast.actions,
    "plan": lambda app: app.plan("spoilt"),
    "in every state": lambda app: app.items(state=[state.value for state in State], most=1000),
    "show": lambda app: [app.show(key, "spoilt") for key in ("one", "later", "bad", "waits")],
    "why": lambda app: [app.why(key, "spoilt") for key in ("one", "later", "bad", "waits")],
    "memos": lambda app: app.memos("one", "spoilt"),
    "calls": lambda app: app.calls("one", "spoilt"),
    "sources": Holdfast.sources,
    "alert status": Holdfast.alert_status,
    "audit": Holdfast.audit,
    "gauges": Holdfast.gauges,
    "throughput": Holdfast.throughput,
    "summary": Holdfast.summary,
    "newest events": Holdfast.newest_events,
    "matrix": lambda app: app.matrix("spoilt"),
    "history": lambda app: [app.history(key, "spoilt") for key in ("one", "later", "bad", "waits", "leased")],
    "results": lambda app: list(app.results("spoilt")),
}


def test_every_table_has_a_row_to_spoil(url: str, tmp_path: Path) -> None:
    victim = Victim(url, tmp_path)
    victim.fill()
    with victim.open() as app:
        empty = []
        for table in sorted(set(app.store.write(tables)) - LEFT_ALONE):
            of = app.store.write(lambda tx, table=table: columns(tx, table))  # type: ignore[misc]
            text = f"SELECT COUNT(*) FROM holdfast_{table} WHERE {mine(table, of)}"
            if app.store.write(lambda tx, text=text: ask(tx, text)) == [(0,)]:  # type: ignore[misc]
                empty.append(table)
        assert empty == []


@pytest.fixture(autouse=True)
def _short_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alert rules wait for numbers of events that are missing because a transaction was rolled back."""
    monkeypatch.setattr(alert_rules, "STRAGGLER_US", 1_000_000)


@pytest.mark.parametrize("seed", range(effort(5, 200)))
@pytest.mark.parametrize("how", [spoil, add_rows])
def test_whatever_is_written_into_our_tables_the_good_items_end_and_questions_are_answered(
    url: str, tmp_path: Path, how: Callable[[Holdfast, int], list[str]], seed: int
) -> None:
    victim = Victim(url, tmp_path)
    victim.fill()
    with victim.open() as app:
        done = how(app, seed)
        assert len(done) > 5
    unanswered = not_answered(url)
    assert not unanswered, "\n".join([*unanswered, *done])
    with victim.open() as app:
        try:
            victim.until(app, lambda: victim.good_ones(app))
            victim.put_file("good-files", "new")
            app.event("user.good", pipeline="good")
            victim.until(app, lambda: found_and_told(app), drained=False)
        except (AssertionError, HoldfastError) as error:
            raise AssertionError(f"{error} after {done}") from error
    unanswered = not_answered(url)
    assert not unanswered, "\n".join([*unanswered, *done])


def not_answered(url: str) -> list[str]:
    unanswered = []
    for name, question in QUESTIONS.items():
        with Holdfast(url, create=False) as app:
            try:
                question(app)
            except Exception as error:
                unanswered.append(f"{name}: {''.join(traceback.format_exception(error)[-3:])}")
    return unanswered


def found_and_told(app: Holdfast) -> bool:
    """Whether the source and the alert rule of which no row was touched have done their work."""
    found = app.items(pipeline="good", stage="tell", state="done", most=100)
    told = app.events(event="alert_told", most=100)
    return any("new" in one.key for one in found) and any(one.data.get("alert") == "good" for one in told)


#: By key: items of one pipeline in every state that an item can be in when somebody writes into its rows.
VICTIMS = ("one", "bad", "later", "waits")


@pytest.mark.parametrize("seed", range(effort(6, 200)))
def test_nonsense_in_the_rows_of_one_item_costs_that_item_alone(url: str, tmp_path: Path, seed: int) -> None:
    victim, key = Victim(url, tmp_path), VICTIMS[seed % len(VICTIMS)]
    victim.fill()
    others = {"one", "two", "waits", "waits too"} - {key}
    with victim.open() as app:
        done = spoil(app, seed, key)
        assert done

        def are_done() -> bool:
            ended = {one.key for one in app.items(pipeline="spoilt", stage="link", state="done", most=100)}
            return victim.good_ones(app) and others <= ended

        try:
            victim.until(app, are_done)
        except (AssertionError, HoldfastError) as error:
            raise AssertionError(f"{error} after {done}") from error


@pytest.mark.parametrize("data", ["{oops", "[1]", "null", ""])
def test_an_item_whose_data_cannot_be_read_fails_at_once_and_says_which_row_it_is(
    url: str, tmp_path: Path, data: str
) -> None:
    """It used to spend all of its attempts first."""
    victim = Victim(url, tmp_path)
    with victim.open() as app:
        app.add("good", [{"key": "g", "n": 1}, {"key": "other", "n": 2}])
        [(number,)] = app.store.write(lambda tx: ask(tx, "SELECT id FROM holdfast_items WHERE key = 'g'"))
        text = "UPDATE holdfast_items SET data = :data WHERE key = 'g'"
        app.store.write(lambda tx: ask(tx, text, data=data))
        victim.until(
            app, lambda: app.items(pipeline="good", state="failed") and app.show("other", "good").status == "done"
        )
        [failed] = app.items(pipeline="good", state="failed")
        assert (failed.key, failed.attempts) == ("g", 1)
        assert f"items {number}: its data cannot be read" in failed.error
        assert f"items {number}: its data cannot be read" in app.check()
