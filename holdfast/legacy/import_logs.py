"""Import the logs of an old database: costs and events. Each row is imported once, however often the import is run.

A row is recognised by its time, its table and its number. So an interrupted import does not import rows twice, and rows that
were added later come with the next import.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from holdfast.engine import ledger
from holdfast.engine.layout import layout
from holdfast.engine.ledger import OldPayment
from holdfast.legacy.mapping import Cells, SideTable
from holdfast.legacy.old_database import OldTable
from holdfast.legacy.read_values import SHOWN, ImportProblem, is_nothing, read_payment, read_time, text_of
from holdfast.legacy.report import ImportReport, LogCounts
from holdfast.model.error_fingerprint import storable
from holdfast.model.redact import redact_value
from holdfast.store import Store, Transaction

EVENT = "legacy_event"

#: A row of our table of events.
EventRow = tuple[Any, ...]


class LogLine(NamedTuple):
    """A row of a log: its content, and the item and stage it is about."""

    row: int
    pipeline: str
    key: str | None
    stage: str | None
    said: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Logs:
    """Imports logs, into a store if there is one."""

    store: Store | None
    #: From the old name of a pipeline to ours; None for a pipeline that is not imported.
    find: Callable[[str | None], str | None]
    #: By pipeline: its stages.
    stages: Mapping[str, frozenset[str]]
    #: Whether the old database has an item.
    has_item: Callable[[str, str], bool]
    report: ImportReport
    dry_run: bool
    most: int

    def import_costs(self, table: OldTable, log: SideTable) -> None:
        """Enter costs into the ledger."""
        counts = self.report.costs
        for lines in self._lines(table, log, counts):
            problems: list[tuple[LogLine, ImportProblem]] = []
            paid = [(line, one) for line in lines if (one := self._paid(table, line, problems)) is not None]
            problems += [
                (line, ImportProblem("cost_of_no_stage", line.stage, table.name))
                for line, _ in paid
                if line.stage not in self.stages[line.pipeline]
            ]
            problems += self._of_no_item("cost_of_no_item", [line for line, _ in paid])
            self._note(problems)
            those = self._ask(partial(_placed, paid), [one for _, one in paid])
            new = self._write(partial(_enter, payments=those), partial(_unknown, payments=those), those)
            counts.imported += len(new)
            counts.already_there += len(those) - len(new)
            counts.amount += sum(one.amount for one in new)

    def import_events(self, table: OldTable, log: SideTable) -> None:
        """Record events. The old name of each is one of its facts."""
        counts = self.report.events
        for lines in self._lines(table, log, counts):
            rows = []
            for line in lines:
                problems: list[ImportProblem] = []
                at = read_time(line.stage, "at", line.said.get("at"), problems)
                rows.append(_event(table, line, at or 0))
                self._note([(line, problem) for problem in problems])
            self._note(self._of_no_item("event_of_no_item", lines))
            those = self._ask(partial(_placed_events, lines, rows), rows)
            new = self._write(partial(_keep, events=those), partial(_new_events, events=those), those)
            counts.imported += len(new)
            counts.already_there += len(those) - len(new)

    def _lines(self, table: OldTable, log: SideTable, counts: LogCounts) -> Iterator[list[LogLine]]:
        """The rows of a log that are imported, one batch at a time."""
        paths = log.paths
        for rows in table.batches(sorted(column for column in log.columns() if table.has(column)), self.most):
            lines: list[LogLine] = []
            for row, raw in rows:
                cells = Cells(raw, [])
                if not log.fits(cells):
                    continue
                counts.read += 1
                name = _said(cells.get(paths.get("pipeline")))
                pipeline = self.find(name)
                if pipeline is None:
                    self.report.tell_elsewhere(name or "")
                    continue
                said = {
                    part: cells.json(path) if part == "data" else cells.get(path)
                    for part, path in paths.items()
                    if part not in ("pipeline", "key", "stage")
                }
                line = LogLine(
                    row, pipeline, _said(cells.get(paths.get("key"))), _said(cells.get(paths.get("stage"))), said
                )
                lines.append(line)
                self._note([(line, problem) for problem in cells.problems])
            if lines:
                yield lines

    def _paid(self, table: OldTable, line: LogLine, problems: list[tuple[LogLine, ImportProblem]]) -> OldPayment | None:
        found: list[ImportProblem] = []
        paid = read_payment(line.stage, line.said, found)
        problems += [(line, problem) for problem in found]
        return None if paid is None else OldPayment(f"{table.name} {line.row}", 0, 0, *paid)

    def _of_no_item(self, kind: str, lines: Sequence[LogLine]) -> list[tuple[LogLine, ImportProblem]]:
        there = self._ask(partial(_numbers, lines), {})
        return [
            (line, ImportProblem(kind, line.stage, line.key or ""))
            for line in lines
            if (line.pipeline, line.key) not in there and not self.has_item(line.pipeline, line.key or "")
        ]

    def _ask(self, question: Callable[[Transaction], Any], otherwise: Any) -> Any:
        return otherwise if self.store is None else self.store.read(question)

    def _write(self, write: Callable[[Transaction], Any], look: Callable[[Transaction], Any], those: Any) -> Any:
        """Write what is new or, in a dry run, find out what is new."""
        if self.store is None or not those:
            return those
        return self.store.read(look) if self.dry_run else self.store.write(write, exclusive=True)

    def _note(self, problems: Sequence[tuple[LogLine, ImportProblem]]) -> None:
        for line, problem in problems:
            self.report.tell(problem, line.row, line.key or "")


def _numbers(lines: Sequence[LogLine], tx: Transaction) -> dict[tuple[str, str | None], int]:
    """The ids of existing items, by pipeline and key."""
    found: dict[tuple[str, str | None], int] = {}
    for pipeline in {line.pipeline for line in lines}:
        keys = sorted({line.key for line in lines if line.pipeline == pipeline and line.key})
        rows = tx.run("numbers_of_keys", pipeline=pipeline, keys=keys) if keys else []
        found |= {(pipeline, key): id_ for key, id_ in rows}
    return found


def _stage(tx: Transaction, line: LogLine) -> int:
    row = None if line.stage is None else layout(tx).find(line.pipeline, line.stage)
    return 0 if row is None else row.id


def _placed(paid: Sequence[tuple[LogLine, OldPayment]], tx: Transaction) -> list[OldPayment]:
    """Payments with the ids of their items and stages."""
    items = _numbers([line for line, _ in paid], tx)
    return [one._replace(item=items.get((line.pipeline, line.key), 0), stage=_stage(tx, line)) for line, one in paid]


def _unknown(tx: Transaction, *, payments: Sequence[OldPayment]) -> list[OldPayment]:
    there = ledger.imported_among(tx, payments)
    return [one for one in payments if (one.at, one.name) not in there]


def _enter(tx: Transaction, *, payments: Sequence[OldPayment]) -> list[OldPayment]:
    new = ledger.enter_imported(tx, payments)
    tx.is_for_nothing = not new
    return new


def _event(table: OldTable, line: LogLine, at: int) -> EventRow:
    name, data = line.said.get("event"), line.said.get("data")
    facts: dict[str, Any] = {"event": "" if is_nothing(name) else storable(text_of(name), SHOWN)}
    facts |= {} if is_nothing(data) else {"data": data}
    facts |= {"key": line.key, "row": f"{table.name} {line.row}"}
    return (at, EVENT, None, None, None, None, None, msgspec.json.encode(redact_value(facts)).decode())


def _placed_events(lines: Sequence[LogLine], rows: Sequence[EventRow], tx: Transaction) -> list[EventRow]:
    """Events with the ids of their pipelines, items and stages."""
    items = _numbers(lines, tx)
    return [
        (
            at,
            event,
            layout(tx).number_of(line.pipeline),
            items.get((line.pipeline, line.key)),
            _stage(tx, line) or None,
            *rest,
        )
        for line, (at, event, _, _, _, *rest) in zip(lines, rows, strict=True)
    ]


def _new_events(tx: Transaction, *, events: Sequence[EventRow]) -> list[EventRow]:
    rows = tx.run("events_at", event=EVENT, times=sorted({event[0] for event in events}))
    there = {(at, msgspec.json.decode(data)["row"]) for at, data in rows}
    return [event for event in events if (event[0], msgspec.json.decode(event[-1])["row"]) not in there]


def _keep(tx: Transaction, *, events: Sequence[EventRow]) -> list[EventRow]:
    new = _new_events(tx, events=events)
    tx.run_rows("add_events", new)
    tx.is_for_nothing = not new
    return new


def _said(value: Any) -> str | None:
    return None if value is UNSET or value is None else text_of(value)
