"""Figures as a person reads them: medians, from low to high, and ratios between figures of one round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from benchmarks.contenders import ASYNC, POSTGRES, RAW, RAW_IN_BULK, REDIS, SQLITE, Contender
from benchmarks.databases import Database
from benchmarks.workload import Case, Figure, Figures, Workload, ratio


@dataclass
class Row:
    """One contender in one case on one database: what every round found, or why there is nothing."""

    workload: Workload
    case: Case
    database: Database
    contender: Contender
    rounds: dict[int, Figures] = field(default_factory=dict)
    failed: str = ""

    def values(self, key: str) -> list[float]:
        found = [figures.get(key) for figures in self.rounds.values()]
        return [value for value in found if value is not None]

    def against(self, other: Row | None, key: str) -> list[float]:
        """This row's figure over the other's, for every round that has both."""
        if other is None:
            return []
        pairs = [(self.rounds[n].get(key), other.rounds[n].get(key)) for n in self.rounds.keys() & other.rounds.keys()]
        return [mine / its for mine, its in pairs if mine is not None and its]

    @property
    def main(self) -> Figure:
        return self.workload.figures[0]


class Rows:
    """All rows of one workload, in the order they are measured."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = list(rows)
        self._by = {(row.database.title, row.case.name, row.contender.name): row for row in rows}

    def against_raw(self, row: Row, raw: Contender = RAW) -> list[float]:
        """How this row compares with the raw one beside it, by the main figure."""
        beside = self._by.get((row.database.title, row.case.name, raw.name))
        return [] if row.contender == raw else row.against(beside, row.main.key)

    def base_of(self, row: Row) -> Row | None:
        return self._by.get((row.database.title, row.case.base or "", row.contender.name))

    def ours_beside(self, row: Row) -> Row | None:
        """holdfast in the same case on the same database; for Redis, on PostgreSQL or else on SQLite."""
        kinds = (POSTGRES, SQLITE) if row.database.kind == REDIS else (row.database.kind,)
        for kind in kinds:
            for one in self.rows:
                if (one.database.kind, one.case, one.contender) == (kind, row.case, ASYNC):
                    return one
        return None

    def times_better(self, row: Row) -> list[float]:
        """How many times better than this peer holdfast is, by the main figure."""
        ours = self.ours_beside(row)
        if ours is None or not row.contender.is_peer:
            return []
        return ours.against(row, row.main.key) if row.main.rises else row.against(ours, row.main.key)


def spread(values: Sequence[float], show: Callable[[float], str]) -> str:
    if not values:
        return ""
    if len(values) == 1:
        return show(values[0])
    return f"{show(median(values))} ({show(min(values))}–{show(max(values))})"


def table(workload: Workload, rows: Rows) -> str:
    """One table per workload: a block per database and case, a line per contender."""
    figures = [one for one in workload.figures if any(row.values(one.key) for row in rows.rows)]
    raws = [raw for raw in (RAW, RAW_IN_BULK) if any(row.contender == raw for row in rows.rows)]
    with_peers = any(row.contender.is_peer for row in rows.rows)
    head = [f"{workload.name}: {workload.title}", *(one.title for one in figures)]
    head += [f"against {raw.name}" for raw in raws]
    with_base = any(row.case.base for row in rows.rows)
    head += [workload.base_title] if with_base else []
    head += ["holdfast is × better"] if with_peers else []
    lines = [head]
    for before, row in zip([None, *rows.rows], rows.rows, strict=False):
        if before is None or before.database is not row.database:
            lines.append([row.database.title])
        if before is None or (before.database, before.case) != (row.database, row.case):
            lines.append([f"  {row.case.name}"])
        name = f"    {row.contender.title}"
        if row.failed:
            lines.append([name, f"— {row.failed}"])
            continue
        cells = [spread(row.values(one.key), one.show) for one in figures]
        key = row.main.key
        cells += [spread(rows.against_raw(row, raw), ratio) for raw in raws]
        if with_base:
            cells.append(spread(row.against(rows.base_of(row), key), ratio) if row.case.base else "")
        if with_peers:
            cells.append(spread(rows.times_better(row), ratio))
        lines.append([name, *cells])
    return _aligned(lines)


def _aligned(lines: list[list[str]]) -> str:
    full = [line for line in lines if len(line) == len(lines[0])]
    widths = [max(len(line[column]) for line in full) for column in range(len(lines[0]))]
    widths[0] = max(widths[0], *(len(line[0]) for line in lines if len(line) < len(lines[0]) and len(line) > 1), 0)
    shown = []
    for number, line in enumerate(lines):
        if len(line) == len(widths):
            cells = [
                line[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)),
            ]
            shown.append("  ".join(cells).rstrip())
        else:
            shown.append("  ".join([line[0].ljust(widths[0]) if len(line) > 1 else line[0], *line[1:]]))
        if number == 0:
            shown.append("-" * len(shown[0]))
    return "\n".join(shown)


def as_json(rows: Rows) -> list[dict[str, object]]:
    """Every figure of every round, with the ratios that the table shows."""
    return [
        {
            "workload": row.workload.name,
            "database": row.database.title,
            "case": row.case.name,
            "contender": row.contender.name,
            "version": row.contender.version,
            "settings": row.contender.settings,
            "figure": row.main.title,
            "rounds": row.rounds,
            "failed": row.failed or None,
            "against_raw": rows.against_raw(row),
            "against_raw_in_bulk": rows.against_raw(row, RAW_IN_BULK),
            "against_base": row.against(rows.base_of(row), row.main.key) if row.case.base else [],
            "holdfast_times_better": rows.times_better(row),
        }
        for row in rows.rows
    ]
