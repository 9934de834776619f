"""What people ask costs the same at any size: the rows that an answer needs are read, and no others.

On SQLite the machine counts its steps; on PostgreSQL the server counts the rows a transaction read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.engine import (
    actions,
    alert_status,
    audit,
    costs,
    error_groups,
    event_pages,
    events,
    gauges,
    item_filters,
    item_pages,
    limits,
    look_ahead,
    plan_and_reprocess,
    poll_sources,
    resolve,
    show_item,
    status,
)
from holdfast.engine.blocked_since import BlockedSince
from holdfast.engine.delete import Delete
from holdfast.engine.retry_and_cancel import CancelStages, RetryStages
from holdfast.engine.selection import ActionPlace, Who
from holdfast.engine.undo import Trail, follow
from holdfast.engine.why import Why
from holdfast.model.item_filter import Which
from holdfast.model.states import State
from holdfast.store import Store, Transaction
from tests.support.crowd import TWENTY, Crowd
from tests.support.effort import effort
from tests.support.harness import App
from tests.support.steps import ask

pytestmark = pytest.mark.req("J6", "V14")

Question = Callable[[Transaction], Any]

FEW, MANY = 1_000, effort(8_000, 20_000)
STATISTICS = ["never taken", "taken while there was nothing", "up to date", "taken when all was gone"]
sqlite_only = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
postgres_only = pytest.mark.parametrize("database", ["postgres"], indirect=True)


@pytest.fixture(autouse=True)
def small_stretches(monkeypatch):
    """What is walked through before an index is searched is far less than there is, as it is with millions of items."""
    monkeypatch.setattr(item_pages, "STRETCH", 100)
    monkeypatch.setattr(item_pages, "FEW", 50)
    monkeypatch.setattr(item_pages, "KEYS", 50)
    monkeypatch.setattr(item_pages, "SEARCHED", 40)
    monkeypatch.setattr(item_pages, "PASSED_BY", 100)
    monkeypatch.setattr(events, "STRETCH", 100)
    monkeypatch.setattr(events, "WIDE", 1000)
    monkeypatch.setattr(error_groups, "MOST_ITEMS", 50)
    monkeypatch.setattr(event_pages, "SLICE", 100)
    monkeypatch.setattr(audit, "SLICE", 50)
    monkeypatch.setattr(item_filters, "LOOK", 40)
    monkeypatch.setattr(item_filters, "CHUNK", 20)
    monkeypatch.setattr(item_filters, "PASS_OVER", 100)


@pytest.fixture
def crowd(app):
    if app.store.connect().dialect.name == "sqlite":
        yield Crowd(app)
        return
    # On a busy machine the server's own cleaner comes in the middle of a test, and takes statistics of half of the rows.
    for_each_table(app, "ALTER TABLE {} SET (autovacuum_enabled = false)")
    yield Crowd(app)
    for_each_table(app, "ALTER TABLE {} RESET (autovacuum_enabled)")


# What is asked --------------------------------------------------------------------------------------------------------


def items(state: State | None = None, after: int | str = 0, **given: Any) -> Question:
    which = Which(**given, states=frozenset() if state is None else frozenset({state}))
    return lambda tx: item_pages.items(tx, which, after=after, most=10)


def narrowed(
    state: State | None = None,
    after: int | str = 0,
    error: str | None = None,
    key: str | None = None,
    group: str | None = None,
    **given: Any,
) -> Question:
    """A slice of a list that has to be searched for, or is narrowed by what no index has."""
    which = Which(states=frozenset() if state is None else frozenset({state}), key=key, error=error, group=group)
    return lambda tx: item_filters.listed_items(tx, which, item_filters.Narrowed(**given), after=after, most=10)


def log(**given: Any) -> Question:
    return lambda tx: events.events(tx, **{"most": 10} | given)


def page_of_log(**given: Any) -> Question:
    return lambda tx: event_pages.newest_events(tx, **{"most": 10} | given)


def means(kind: type[RetryStages] | type[CancelStages], **which: Any) -> Question:
    return lambda tx: kind(Which(**which)).choose(tx, ActionPlace(until=10**12))


def counts(kind: type[RetryStages] | type[CancelStages] | type[Delete], **which: Any) -> Question:
    """As a preview asks it."""
    return lambda tx: kind(Which(**which)).look_ahead(tx, ActionPlace(until=10**12), 40)


def what_is_stale(tx: Transaction) -> object:
    """As `plan` asks it where nothing has changed. A larger crowd has more items with a stage that was sent back: those are
    passed by."""
    assert plan_and_reprocess.why_every_item(tx, "p", None) is None
    return plan_and_reprocess.stretch(tx, "p", None, None, True, False, 10**12)


def questions(crowd: Crowd) -> dict[str, Question]:
    """Everything that need not search, about the middle of the store or its ends."""
    half = crowd.items // 40 * 20
    middle, somebody = crowd.number(half), crowd.key(half)
    asked: dict[str, Question] = {
        "status": status.status,
        "workers": status.workers,
        "limits": limits.limits,
        "since when a resource is paused": lambda tx: BlockedSince(tx).at("paused", "nothing"),
        "gauges for monitoring": gauges.gauges,
        "what needs a worker": lambda tx: ask(
            tx, "SELECT SUM(n) FROM holdfast_demand WHERE due_at <= :soon", soon=tx.now + 60_000_000
        ),
        "what is stale": what_is_stale,
        "costs": lambda tx: costs.costs(tx, ("pipeline", "stage"), pipeline=None, since=None),
        "costs by model and day": lambda tx: costs.costs(tx, ("model", "day"), pipeline="p", since=None),
        "paid calls of an item": lambda tx: resolve.calls(tx, somebody, None),
        "errors": error_groups.errors,
        "errors of a stage": lambda tx: error_groups.errors(tx, pipeline="p", stage="a"),
        "failed of a cause": items(group="missing", state=State.FAILED, after=middle),
        "out of attempts, of a cause": items(
            group="missing", state=State.EXHAUSTED, pipeline="p", stage="b", after=middle
        ),
        "what a retry of a cause that nothing stands failed for means": means(RetryStages, group="torn"),
        "costs of late": lambda tx: costs.costs(tx, ("pipeline", "stage"), pipeline=None, since=10**17),
        "items": items(),
        "items, the middle": items(after=middle),
        "items, the end": items(after=10**12),
        "items of a large pipeline": items(pipeline="p", after=middle),
        "items of a small pipeline": items(pipeline="q"),
        "the item of a key": items(key=somebody),
        "no item of a key": items(key="nobody"),
        "items of a beginning": items(key=f"{somebody[:-1]}*"),
        "items of a beginning, later": items(key=f"{somebody[:-1]}*", after=middle + 2),
        "no items of a beginning": items(key="zebra-*"),
        "items of a pattern that fits all": items(key="*-*", after=middle),
        "items of many attempts": narrowed(attempts=9),
        "items changed of late": narrowed(since=10**17),
        "items changed of late, the middle": narrowed(since=10**17, after=middle),
        "items changed long ago": narrowed(until=1),
        "done of late": narrowed(State.DONE, since=10**17),
        "failed of late": narrowed(State.FAILED, since=10**17),
        "failed long ago": narrowed(State.FAILED, until=1),
        "with an error that nothing has": narrowed(error="nothing of the kind"),
        "items of a pattern that nothing fits": narrowed(key="*-x"),
        "items of a prefix of many that nothing fits": narrowed(key="key-*x"),
        "delayed of another cause": narrowed(State.RETRY_LATER, group="missing"),
        "delayed of another cause, the middle": narrowed(State.RETRY_LATER, group="missing", after=middle),
        "how many a retry means": counts(RetryStages),
        "how many a retry of a cause means": counts(RetryStages, group="missing"),
        "how many a retry of a cause elsewhere means": counts(RetryStages, group="missing", stage="c"),
        "how many a retry of done work means": counts(RetryStages, states=frozenset({State.DONE})),
        "how many a retry of a prefix means": counts(RetryStages, key="key-*"),
        "how many a retry of a prefix that nothing fits means": counts(RetryStages, key="key-*x"),
        "how many a retry of an error that nothing has means": counts(RetryStages, error="nothing of the kind"),
        "how many a cancel means": counts(CancelStages),
        "how many a cancel of another cause means": counts(CancelStages, group="missing"),
        "how many a deletion of everything means": counts(Delete),
        "how many a deletion of a prefix means": counts(Delete, key="key-*"),
        "how many a deletion of a prefix that nothing fits means": counts(Delete, key="key-*x"),
        "how many a deletion at a stage means": counts(Delete, stage="b"),
        "events": log(),
        "events of a common kind": log(event="retried"),
        "events of an uncommon kind": log(event="in_doubt"),
        "events of a rare kind": log(event="paused"),
        "events of no kind": log(event="clock_set"),
        "events of late": log(since=10**17),
        "events of a rare kind since": log(event="paused", since=1),
        "events of late of a pipeline": log(since=10**17, pipeline="q"),
        "events of a large pipeline": log(pipeline="p"),
        "events of an item": log(item=middle),
        "events of an item of a kind": log(item=middle, event="retried"),
        "events from the beginning": log(after=0),
        "events from the beginning of a rare kind": log(after=0, event="paused"),
        "events from the end": log(after=10**12, event="retried"),
        "events from the beginning of an item": log(after=0, item=middle),
        "newest events": page_of_log(),
        "newest events, further back": page_of_log(after=f"1/{crowd.items}"),
        "newest events of a common kind": page_of_log(event="retried"),
        "newest events of a common kind, further back": page_of_log(
            event="retried", after=f"{crowd.app.clock.now()}/1"
        ),
        "newest events of a rare kind": page_of_log(event="paused"),
        "newest events of a small pipeline": page_of_log(pipeline="q"),
        "newest events of a small pipeline of a kind": page_of_log(pipeline="q", event="retried"),
        "newest events of a stage": page_of_log(stage="c"),
        "newest events of an item": page_of_log(item=middle),
        "newest events of late": page_of_log(since=10**17),
        "audit": lambda tx: audit.audit(tx, most=10),
        "audit of nobody": lambda tx: audit.audit(tx, by="nobody", most=10),
        "alert status": lambda tx: alert_status.alert_status(tx, 10),
        "sources": poll_sources.sources,
        "what a retry of a key means": means(RetryStages, key=somebody),
        "what a retry of done work of a key means": means(RetryStages, key=somebody, states=frozenset({State.DONE})),
        "what a cancel of a key means": means(CancelStages, key=somebody),
        "what an action did": lambda tx: follow(tx, Trail(1, "paused", 0, 10**17), ActionPlace()),
        "an open action": lambda tx: actions.idle(tx, tx.now, None),
    }
    for state in State:
        asked |= {
            f"{state}": items(state=state),
            f"{state}, the middle": items(state=state, after=middle),
            f"{state} of a small pipeline": items(state=state, pipeline="q"),
            f"{state} of a key": items(state=state, key=somebody),
            f"{state} of a beginning": items(state=state, key=f"{somebody[:-1]}*"),
            f"{state} of no beginning": items(state=state, key="zebra-*"),
            f"{state} of a prefix of many that nothing fits": narrowed(state, key="key-*x"),
        }
        if state in (State.PENDING, State.RETRY_LATER, State.DONE, State.FAILED):
            asked[f"{state} at b"] = items(state=state, stage="b", after=middle)
    asked["at b"] = items(stage="b", after=middle)
    asked["skipped at a, where nothing is"] = items(state=State.SKIPPED, stage="a", pipeline="p")
    asked["at c"] = items(stage="c")
    asked["with an error"] = items(error="page", after=middle)
    for place, states in enumerate(TWENTY):
        key = crowd.key(half + place)
        asked[f"show {states}"] = lambda tx, key=key: show_item.show(tx, key, None)  # type: ignore[misc]
        asked[f"why {states}"] = lambda tx, key=key: Why(tx, key, None).answer()  # type: ignore[misc]
        asked[f"memos {states}"] = lambda tx, key=key: resolve.memos(tx, key, None)  # type: ignore[misc]
    return asked


def views(crowd: Crowd) -> dict[str, Question]:
    """What people ask with a program of their own."""
    somebody = crowd.key(crowd.items // 40 * 20)
    return {
        f"{view} by {', '.join(given)}": lambda tx, view=view, given=given: ask(  # type: ignore[misc]
            tx, f"SELECT * FROM holdfast_{view} WHERE {' AND '.join(f'{name} = :{name}' for name in given)}", **given
        )
        for view in ("results", "item_stages_by_name")
        for given in ({"key": somebody}, {"key": somebody, "pipeline": "p"}, {"pipeline": "q"})
    }


def grown(few: dict[str, int], many: dict[str, int]) -> dict[str, tuple[int, int]]:
    """What costs more with many items, but for one more level of an index here and there."""
    return {name: (few[name], many[name]) for name in few if many[name] > 1.15 * few[name] + 20}


# SQLite ---------------------------------------------------------------------------------------------------------------


def steps(app: App, question: Question) -> int:
    count = 0

    def one_more() -> None:
        nonlocal count
        count += 1

    connection = app.store.connect().connection
    connection.set_progress_handler(one_more, 1)
    app.store.read(question)
    connection.set_progress_handler(None, 1)
    return count


@sqlite_only
@pytest.mark.parametrize("statistics", ["never taken", "up to date"])
def test_on_sqlite_no_question_takes_more_steps_with_many_items_than_with_few(crowd, statistics):
    app = crowd.app
    costs_of = {}
    for size in (FEW, MANY):
        crowd.grow(size)
        if statistics == "up to date":
            app.store.connect().connection.execute("ANALYZE")
        asked = questions(crowd) | views(crowd)
        costs_of[size] = {name: steps(app, question) for name, question in asked.items()}
    assert grown(costs_of[FEW], costs_of[MANY]) == {}


# PostgreSQL -----------------------------------------------------------------------------------------------------------


def rows_read(store: Store, question: Question) -> int:
    """How many rows of all tables the question reads, by scan or by index."""

    def so_far(tx: Transaction) -> int:
        schema = tx.store.driver.dialect.table("").removesuffix(".").strip('"')
        [(read,)] = tx.store.driver.run_text(
            "SELECT SUM(seq_tup_read + COALESCE(idx_tup_fetch, 0))::bigint FROM pg_stat_xact_user_tables "
            f"WHERE schemaname = '{schema}'"
        )
        return int(read)

    def whole(tx: Transaction) -> int:
        before = so_far(tx)
        question(tx)
        return so_far(tx) - before

    return store.read(whole)


TABLES = (
    "waiting",
    "items",
    "leases",
    "delayed",
    "outcomes",
    "events",
    "memos",
    "stages",
    "pipelines",
    "counts",
    "versions",
    "changed",
)


def for_each_table(app: App, command: str) -> None:
    for table in TABLES:
        app.store.connect().connection.execute(command.format(app.store.driver.dialect.table(table)))


def analyse(app: App) -> None:
    for_each_table(app, "ANALYZE {}")


def fill_and_empty(app: App) -> None:
    """A queue that has been worked off: many pages, and nothing in them."""
    table = app.store.connect().dialect.table
    many = "generate_series(1, 20000) AS x"
    for name, columns in {"waiting": "9999, 0, x, 0, 0, 0", "delayed": "x, 9999, 0, 0, 0, 0, NULL"}.items():
        app.store.driver.run_text(f"INSERT INTO {table(name)} SELECT {columns} FROM {many}")
        app.store.driver.run_text(f"DELETE FROM {table(name)} WHERE stage = 9999")


def settle(store: Store) -> int:
    """How often a question is asked until the connection has settled on plans: by itself, or at once, for any values."""
    if by_itself := effort(0, 12):
        return by_itself
    connection = store.connect().connection
    connection.prepare_threshold = 1
    connection.execute("SET plan_cache_mode = force_generic_plan")
    return 2


@postgres_only
@pytest.mark.parametrize("statistics", STATISTICS[effort(1, 0) :: effort(2, 1)])
def test_on_postgresql_no_question_reads_more_rows_with_many_items_than_with_few(crowd, statistics):
    """An old connection has settled on its plans when there were few items; no statistics may turn them."""
    app = crowd.app
    old = app.store.another()
    times = settle(old)
    if statistics == STATISTICS[3]:
        fill_and_empty(app)
    if statistics in (STATISTICS[1], STATISTICS[3]):
        analyse(app)
    costs_of: dict[int, dict[str, int]] = {FEW: {}, MANY: {}}
    for size, costs_of_size in costs_of.items():
        crowd.grow(size)
        if statistics == STATISTICS[2]:
            analyse(app)
        app.store.close()
        for name, question in questions(crowd).items():
            costs_of_size[f"{name}, by a new connection"] = rows_read(app.store, question)
            for _ in range(times if size == FEW else 0):
                old.read(question)
            costs_of_size[f"{name}, by an old connection"] = rows_read(old, question)
    old.close()
    assert grown(costs_of[FEW], costs_of[MANY]) == {}


@postgres_only
def test_on_postgresql_a_view_reads_no_more_rows_with_many_items_than_with_few(crowd):
    """Views have no say in how they are planned: without statistics, the open work of a stage may be read for one key. For the
    name of a pipeline the planner expects half of all items, and may well read them all."""
    costs_of = {}
    for size in (FEW, MANY):
        crowd.grow(size)
        analyse(crowd.app)
        by_key = {name: question for name, question in views(crowd).items() if "by key" in name}
        costs_of[size] = {name: rows_read(crowd.app.store, question) for name, question in by_key.items()}
    assert grown(costs_of[FEW], costs_of[MANY]) == {}


# Both -----------------------------------------------------------------------------------------------------------------


def test_who_asks_for_the_first_in_a_queue_does_not_look_at_those_behind_it(crowd):
    app = crowd.app
    app.join("somebody")
    first = crowd.key(TWENTY.index(("pending", None)))

    def ask(tx: Transaction) -> object:
        return Why(tx, first, None).answer()

    is_sqlite = app.store.connect().dialect.name == "sqlite"
    costs_of = {}
    for size in (FEW, MANY):
        crowd.grow(size)
        if not is_sqlite:
            analyse(app)
        assert app.store.read(ask)["text"].startswith("it waits its turn, 0 before it")
        costs_of[size] = steps(app, ask) if is_sqlite else rows_read(app.store, ask)
    assert costs_of[MANY] <= costs_of[FEW] + 20


@pytest.mark.parametrize(
    "kind", [RetryStages(Which()), CancelStages(Which()), Delete(Which()), Delete(Which(stage="b"))]
)
def test_a_preview_reads_no_statuses_and_nothing_twice(crowd, kind, monkeypatch):
    """However many it counts, it takes one statement for each stage and state, and no more rows than it may count."""
    crowd.grow(FEW)
    asked: list[str] = []
    run = Transaction.run

    def noted(tx: Transaction, name: str, /, **params: Any) -> Any:
        rows = run(tx, name, **params)
        if name == "read_items" and len(params["items"]) <= look_ahead.SAMPLES:
            return rows
        if name in ("walk_items", "item_status", "read_items") or name.startswith("page_"):
            asked.append(f"{name} {params.get('stage')} {params.get('state')}")
        assert len(rows) < 60
        return rows

    monkeypatch.setattr(Transaction, "run", noted)
    found = actions.count(crowd.app.store, kind, 50)
    assert (sum(found.values()) <= 50, found.more) == (True, True)
    assert not {one for one in asked if one.startswith(("item_status", "read_items"))}
    assert len(asked) == len(set(asked))


def test_a_plan_of_one_item_or_of_a_small_pipeline_does_not_look_at_the_others(crowd, monkeypatch):
    seen: list[int] = []
    look = plan_and_reprocess.read_pictures
    monkeypatch.setattr(
        plan_and_reprocess, "read_pictures", lambda tx, rows, stages: seen.append(len(rows)) or look(tx, rows, stages)
    )
    crowd.grow(FEW)
    store = crowd.app.store
    list(plan_and_reprocess.find(store, "p", key=crowd.key(7)))
    list(plan_and_reprocess.find(store, "p", key=f"{crowd.key(70)[:-1]}*"))
    list(plan_and_reprocess.find(store, "q", stale_only=False))
    assert seen == [1, 10, 3]
    seen.clear()
    list(plan_and_reprocess.find(store, "p", stale_only=False))
    assert seen == [500, 500]


def test_a_plan_looks_at_what_has_changed_and_at_nothing_else(crowd, monkeypatch):
    seen: list[int] = []
    look = plan_and_reprocess.read_pictures
    monkeypatch.setattr(
        plan_and_reprocess, "read_pictures", lambda tx, rows, stages: seen.append(len(rows)) or look(tx, rows, stages)
    )
    crowd.grow(FEW)
    app = crowd.app
    app.clear()
    [(listed,)] = app.query("SELECT COUNT(*) FROM holdfast_changed")
    list(plan_and_reprocess.find(app.store, "p"))
    assert seen == [listed]
    app.execute("DELETE FROM holdfast_changed")
    seen.clear()
    assert plan_and_reprocess.plan(app.store, "p") == []
    assert actions.act(app.store, plan_and_reprocess.Reprocess("p"), Who()) == {}
    assert seen == []
