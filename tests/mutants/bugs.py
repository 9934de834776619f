"""Deliberate bugs. HOLDFAST_MUTANT=name puts one into this process; the suite must notice each of them.

Each is a mistake that systems like this one have shipped (see the failure modes in docs/reasons). None of them is a
crash or a syntax error: in calm weather every one of these engines does its work.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from holdfast import Holdfast, points
from holdfast.clock import SECOND
from holdfast.engine import complete, ledger
from holdfast.engine.finish_leases import FinishedAttempt
from holdfast.model import paid_call
from holdfast.model.budget_day import day_of
from holdfast.model.paid_call import Paid, PaidCall
from holdfast.model.states import State
from holdfast.store import Transaction, Write, statements
from holdfast.store.driver import Row

VARIABLE = "HOLDFAST_MUTANT"


def finish_without_asking() -> None:
    """A completion does not ask whether its lease still stands."""

    def end(tx: Transaction, stage: int, finished: Sequence[FinishedAttempt]) -> list[FinishedAttempt]:
        tx.run("take_leases", stage=stage, leases=[one.lease.id for one in finished])
        tx.count(stage, State.IN_PROGRESS, -len(finished))
        return list(finished)

    def move(tx: Transaction, stage: int, onward: int, finished: Sequence[FinishedAttempt]) -> list[FinishedAttempt]:
        tx.run("move_leases", stage=stage, next=onward, leases=[one.lease.id for one in finished], now=tx.now)
        tx.count(stage, State.IN_PROGRESS, -len(finished))
        tx.count(onward, State.IN_PROGRESS, len(finished))
        return list(finished)

    complete.end_leases, complete.move_leases = end, move
    # The last word wins, instead of being refused by the primary key.
    run_rows = Transaction.run_rows

    def overwrite(tx: Transaction, name: str, rows: Sequence[Sequence[Any]], /, **params: Any) -> list[Row]:
        return run_rows(tx, {"insert_outcomes": "replace_outcomes"}.get(name, name), rows, **params)

    def as_any(tx: Transaction, stage: int, finished: Sequence[FinishedAttempt], *, timed: bool = True) -> None:
        for one in finished:
            one.routine = False
        save(tx, stage, finished, timed=timed)

    save = complete.save_outcomes
    complete.save_outcomes = as_any

    Transaction.run_rows = overwrite  # type: ignore[method-assign]


def count_attempts_at_the_end() -> None:
    """The claim does not count the attempt; whoever finishes it does. A dead worker finishes nothing."""
    _rewrite("claim", "attempts + 1", "attempts")
    _rewrite("move_leases", "attempt = 1", "attempt = 0")
    run = Transaction.run

    def counted(tx: Transaction, name: str, /, **params: Any) -> list[Row]:
        rows = run(tx, name, **params)
        if name == "claim":
            return [(id_, item, attempt + 1, *rest) for id_, item, attempt, *rest in rows]
        return rows

    Transaction.run = counted  # type: ignore[method-assign]


def reap_by_age() -> None:
    """A lease that was granted long ago is taken for a dead worker's, and a young one never is."""
    nobody = "NOT EXISTS (SELECT 1 FROM holdfast_workers w WHERE w.id = l.worker)"
    _rewrite("free_leases", nobody, "l.since <= :before")
    _rewrite("free_leases", "AND NOT EXISTS (SELECT 1 FROM holdfast_workers w WHERE w.id = holdfast_leases.worker)", "")
    run = Transaction.run

    def aged(tx: Transaction, name: str, /, **params: Any) -> list[Row]:
        if name == "free_leases":
            params["before"] = tx.now - 30 * SECOND
        return run(tx, name, **params)

    Transaction.run = aged  # type: ignore[method-assign]


def claim_in_two_steps() -> None:
    """A claim reads what is waiting and then takes what it has read, whether or not it is still there.

    On PostgreSQL without a lock; on SQLite, where one transaction shuts out all others, what was read in the one before.
    """
    run = Transaction.run
    remembered: dict[tuple[int, int], list[Row]] = {}

    def in_two_steps(tx: Transaction, name: str, /, **params: Any) -> list[Row]:
        if name != "claim":
            return run(tx, name, **params)
        worker, stage, most = params["worker"], params["stage"], params["most"]
        points.reach("store.read_waiting")
        seen = _ask(
            tx,
            "SELECT w.item, w.attempts, w.alone, w.rerun, i.key, i.data FROM holdfast_waiting w "
            "JOIN holdfast_items i ON i.id = w.item WHERE w.stage = :stage ORDER BY w.priority, w.item LIMIT :most",
            stage=stage,
            most=most + 3,
        )
        if tx.store.driver.dialect.name == "sqlite":
            old = remembered.pop((worker, stage), None)
            if seen[most:]:
                remembered[worker, stage] = seen[most:]
            seen = old if old is not None else seen
        taken = []
        for item, attempts, alone, rerun, key, data in seen[:most]:
            points.reach("store.take_waiting")
            _ask(tx, "DELETE FROM holdfast_waiting WHERE stage = :stage AND item = :item", stage=stage, item=item)
            [(lease,)] = _ask(
                tx,
                "INSERT INTO holdfast_leases (item, stage, worker, attempt, alone, rerun, since) "
                "VALUES (:item, :stage, :worker, :attempt, :alone, :rerun, :now) RETURNING id",
                item=item,
                stage=stage,
                worker=worker,
                attempt=attempts + 1,
                alone=alone,
                rerun=rerun,
                now=tx.now,
            )
            taken.append((lease, item, attempts + 1, alone, rerun, key, data))
        return taken

    Transaction.run = in_two_steps  # type: ignore[method-assign]


def count_outside_the_transaction() -> None:
    """The counters are brought up to date once the rest is committed, in a transaction of their own."""
    flush, once = Transaction.flush, Write._once
    late: dict[int, list[tuple[Any, ...]]] = {}

    def flush_without_counts(tx: Transaction) -> None:
        late[id(tx.store)] = [(tx.slot, *place, *entry) for place, entry in sorted(tx._counts.items()) if any(entry)]
        tx._counts.clear()
        flush(tx)

    def then_count(write: Write[Any]) -> Any:
        late.pop(id(write._store), None)
        result = once(write)
        rows = late.pop(id(write._store), [])
        if rows:
            driver = write._store.driver
            statement = write._store.statements["add_counts"]
            driver.begin_bare()
            driver.run_rows(statement, rows, {})
            driver.commit()
        return result

    Transaction.flush, Write._once = flush_without_counts, then_count  # type: ignore[method-assign]


# Money ----------------------------------------------------------------------------------------------------------------


def leave_refusals_in_doubt() -> None:
    """A call that the provider refused goes on counting as spent."""
    ledger.free = lambda call, reason=None: call._replace(state=str(Paid.DOUBTFUL), reason=reason)


def settle_doubts_today() -> None:
    """Money moves on the day on which somebody says what became of a call, instead of the day of the call."""
    count = ledger._count

    def counted(tx: Transaction, gone: Iterable[PaidCall], come: Iterable[PaidCall], *, budgets: bool = True) -> None:
        today = day_of(tx.now)
        count(tx, gone, [call._replace(day=today, at=tx.now) if gone else call for call in come], budgets=budgets)

    ledger._count = counted


def leave_money_set_aside() -> None:
    """What was paid stays set aside as well."""
    _leave_out("lower_reservations")


def forget_what_rejected_answers_cost() -> None:
    """An answer that is rejected was not worth its money, and is not counted."""
    paid_call.CHARGED = frozenset({Paid.DONE})


def forget_what_an_attempt_left_open() -> None:
    """An attempt that ends takes the calls it had begun with it."""
    ledger.doubt = lambda tx, ended, reason: None


# Questions ------------------------------------------------------------------------------------------------------------


def ask_as_a_writer() -> None:
    """A question is asked in a transaction that could write."""
    Holdfast._read = lambda app, work: app.store.write(work)  # type: ignore[method-assign]


def _by_name(*mutants: Callable[[], None]) -> dict[str, Callable[[], None]]:
    return {mutant.__name__: mutant for mutant in mutants}


OF_WORK = _by_name(
    finish_without_asking, count_attempts_at_the_end, reap_by_age, claim_in_two_steps, count_outside_the_transaction
)
OF_MONEY = _by_name(
    leave_refusals_in_doubt,
    settle_doubts_today,
    leave_money_set_aside,
    forget_what_rejected_answers_cost,
    forget_what_an_attempt_left_open,
)
OF_QUESTIONS = _by_name(ask_as_a_writer)
MUTANTS = {**OF_WORK, **OF_MONEY, **OF_QUESTIONS}


def from_environment() -> None:
    """Put the bug that HOLDFAST_MUTANT names into this process."""
    name = os.environ.get(VARIABLE)
    if name:
        MUTANTS[name]()


def _leave_out(statement: str) -> None:
    run_rows = Transaction.run_rows

    def without(tx: Transaction, name: str, rows: Sequence[Sequence[Any]], /, **params: Any) -> list[Row]:
        return [] if name == statement else run_rows(tx, name, rows, **params)

    Transaction.run_rows = without  # type: ignore[method-assign]


def _rewrite(name: str, old: str, new: str) -> None:
    """Change the text of a statement, in both dialects."""
    texts = statements._texts

    def rewritten(dialect: str) -> dict[str, str]:
        found = dict(texts(dialect))
        # A statement that no longer has these words needs another mutant: a bug that is not there proves nothing.
        assert old in found[name] or dialect == "sqlite", f"{name} no longer says {old!r}"
        found[name] = found[name].replace(old, new)
        return found

    statements._texts = rewritten  # type: ignore[assignment]


def _ask(tx: Transaction, text: str, **params: Any) -> list[Row]:
    driver = tx.store.driver
    return driver.run(driver.dialect.render(text, text), params)
