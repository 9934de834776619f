"""One workload: rounds, and in every round each contender right after the other, so that noise meets them alike."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.children import Failed
from benchmarks.contenders import Contender
from benchmarks.databases import Database
from benchmarks.report import Row, Rows
from benchmarks.workload import Options, Workload


def measure(
    workload: Workload, contenders: Sequence[Contender], databases: Sequence[Database], options: Options
) -> Rows:
    """What every round found. A contender that fails says why in its row, and stops nobody else."""
    rows = [
        Row(workload, case, database, contender)
        for database in databases
        for case in workload.cases(options)
        for contender in contenders
        if workload.takes_part(contender, database, case)
    ]
    try:
        for turn in range(1, options.rounds + 1):
            for row in rows:
                if row.failed:
                    continue
                say(
                    f"{workload.name}, round {turn} of {options.rounds}: {row.case.name}, {row.database.kind}, "
                    f"{row.contender.title}"
                )
                try:
                    row.rounds[turn] = workload.measure(row.contender, row.database, row.case, options)
                except Failed as reason:
                    row.failed = str(reason)
    finally:
        workload.close()
        say("")
    return Rows(rows)


def say(text: str) -> None:
    """What is going on, in one line that the next one replaces."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
