"""Somebody else writes nonsense into our tables: every good item ends, whoever asks gets an answer, and nothing spins.

Into many cells of rows that belong to one pipeline, and to nobody in particular, at once; the other pipeline of the store is to
notice nothing. And into the rows of one item, of which the other items of its pipeline are to notice nothing. The seed is the
name of the case: the same nonsense every time.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Holdfast, Permanent, Pipeline, RetryLater, Settings
from holdfast.errors import HoldfastError
from holdfast.model.states import State
from holdfast.store import Transaction
from tests.support.effort import effort
from tests.support.steps import ask, tables

pytestmark = [pytest.mark.req("P9", "V5", "V7"), pytest.mark.fault(81)]

TEXTS = ["", "{", "null", "[1]", '"x"', "no json", '{"a":', "\u2028" * 20]
NUMBERS = [-1, 0, 7, 2**15 - 1, 2**31 - 1, 2**62]
#: Also what a column cannot hold: the table refuses it, or keeps it, and then it has to be read.
JUNK: dict[str, list[Any]] = {
    "text": [*TEXTS, *TEXTS, 7, b"\xff"],
    "number": [*NUMBERS, *NUMBERS, "seven", 1.5, b"\xff"],
}
#: What says which tables these are, and who is who: with another number a row is another row.
WHO = {"id", "item", "stage", "pipeline", "key", "name", "slot", "source", "writer"}
#: Of these, what says to whom a row belongs.
BELONGS_TO = {"item", "stage", "pipeline"}
#: Which schema this is; and the rows of writers that are alive.
LEFT_ALONE = {"schema_version", "commits"}
QUICK = Settings(lease_seconds=1.0, poll_seconds=0.05, concurrency=4)


class Victim:
    """A store with two pipelines: one whose rows are spoilt, and one that is to notice nothing."""

    def __init__(self, url: str) -> None:
        self.url = url
        spoilt, good = Pipeline("spoilt"), Pipeline("good")

        @spoilt.stage(max_attempts=2)
        def fetch(item: Any, ctx: Any) -> Any:
            if item.key == "bad":
                raise Permanent("no such page")
            return ctx.once("ask", dict, cost=0.01)

        @spoilt.stage(after=fetch)
        def link(item: Any, ctx: Any) -> Any:
            if item.key == "later":
                return RetryLater("1h", "not yet")
            return {"fetched": ctx.result("fetch")}

        @good.stage()
        def read(item: Any, ctx: Any) -> Any:
            return {"n": item.data["n"]}

        @good.stage(after=read)
        def tell(item: Any, ctx: Any) -> Any:
            return ctx.result("read")

        self.specs = [spoilt.spec, good.spec]

    def open(self) -> Holdfast:
        return Holdfast(self.url, self.specs)

    def fill(self) -> None:
        with self.open() as app:
            app.add("spoilt", ["one", "two", "bad", "later"])
            until(app, lambda: app.items(state="failed") and app.items(state="retry_later"))
            app.add("spoilt", ["waits", "waits too"])
            app.add("good", [{"key": f"g{n}", "n": n} for n in range(8)])
            app.retry(key="bad")
            app.event("user.seen", key="one", pipeline="spoilt")

    def good_ones(self, app: Holdfast) -> bool:
        found = app.items(pipeline="good", state="done", most=100)
        return len(found) == 16


def until(app: Holdfast, happened: Callable[[], Any]) -> None:
    """Work until something is so; a worker that ends by itself has nothing more to do."""
    worker = app.worker(QUICK)

    def look() -> None:
        if happened():
            worker.stop()

    worker.run(until_drained=True, on_tick=look, tick_seconds=0.05)
    assert happened()


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
        text = f"UPDATE holdfast_{table} SET {column} = :junk WHERE {where}"
        if written(app, text, {"junk": junk}):
            done.append(f"{table}.{column} = {junk!r}")
    app.store.cache.clear()
    return done


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
        if column not in BELONGS_TO:
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


def mine(table: str, of: dict[str, str]) -> str | None:
    """Which rows belong to the pipeline that is spoilt, or to nobody in particular."""
    pipeline = "(SELECT id FROM holdfast_pipelines WHERE name = 'spoilt')"
    if table == "pipelines":
        return "name = 'spoilt'"
    if "pipeline" in of:
        return f"pipeline = {pipeline}"
    if "stage" in of:
        return f"stage IN (SELECT id FROM holdfast_stages WHERE pipeline = {pipeline})"
    return "1 = 1"


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
}


@pytest.mark.parametrize("seed", range(effort(5, 200)))
@pytest.mark.parametrize("how", [spoil, add_rows])
def test_whatever_is_written_into_our_tables_the_good_items_end_and_questions_are_answered(
    url: str, how: Callable[[Holdfast, int], list[str]], seed: int
) -> None:
    victim = Victim(url)
    victim.fill()
    with victim.open() as app:
        done = how(app, seed)
        assert len(done) > 5
    unanswered = []
    for name, question in QUESTIONS.items():
        with Holdfast(url, create=False) as app:
            try:
                question(app)
            except Exception as error:
                unanswered.append(f"{name}: {''.join(traceback.format_exception(error)[-3:])}")
    assert not unanswered, "\n".join([*unanswered, *done])
    with victim.open() as app:
        try:
            until(app, lambda: victim.good_ones(app))
        except HoldfastError as error:
            raise AssertionError(f"{error} after {done}") from error


#: By key: items of one pipeline in every state that an item can be in when somebody writes into its rows.
VICTIMS = ("one", "bad", "later", "waits")


@pytest.mark.parametrize("seed", range(effort(6, 200)))
def test_nonsense_in_the_rows_of_one_item_costs_that_item_alone(url: str, seed: int) -> None:
    victim, key = Victim(url), VICTIMS[seed % len(VICTIMS)]
    victim.fill()
    others = {"one", "two", "waits", "waits too"} - {key}
    with victim.open() as app:
        done = spoil(app, seed, key)
        assert done

        def are_done() -> bool:
            ended = {one.key for one in app.items(pipeline="spoilt", stage="link", state="done", most=100)}
            return victim.good_ones(app) and others <= ended

        try:
            until(app, are_done)
        except (AssertionError, HoldfastError) as error:
            raise AssertionError(f"{error} after {done}") from error


@pytest.mark.parametrize("data", ["{oops", "[1]", "null", ""])
def test_an_item_whose_data_cannot_be_read_fails_at_once_and_says_which_row_it_is(url: str, data: str) -> None:
    """It used to spend all of its attempts first."""
    victim = Victim(url)
    with victim.open() as app:
        app.add("good", [{"key": "g", "n": 1}, {"key": "other", "n": 2}])
        [(number,)] = app.store.write(lambda tx: ask(tx, "SELECT id FROM holdfast_items WHERE key = 'g'"))
        text = "UPDATE holdfast_items SET data = :data WHERE key = 'g'"
        app.store.write(lambda tx: ask(tx, text, data=data))
        until(app, lambda: app.items(pipeline="good", state="failed") and app.show("other", "good").status == "done")
        [failed] = app.items(pipeline="good", state="failed")
        assert (failed.key, failed.attempts) == ("g", 1)
        assert f"items {number}: its data cannot be read" in failed.error
        assert f"items {number}: its data cannot be read" in app.check()
