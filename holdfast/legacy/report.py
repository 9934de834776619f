"""What an import did, or would do: counts, and of each kind of problem the first few."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast.legacy.read_values import ImportProblem
from holdfast.model.money import decimal

#: Examples that a report keeps of each kind of problem.
EXAMPLES = 20
#: Names of other pipelines that a report keeps; the rest are counted together.
ELSEWHERE = 50


class Example(NamedTuple):
    row: int
    key: str
    stage: str | None
    found: str


@dataclass(slots=True)
class ProblemCount:
    """How often a kind of problem occurred, and the first few examples."""

    count: int = 0
    examples: list[Example] = field(default_factory=list)


@dataclass(slots=True)
class Again:
    """How often a finished stage runs again, and the expected cost; None without an estimate."""

    count: int = 0
    cost: int | None = None


@dataclass(slots=True)
class LogCounts:
    """Rows of a log: read, imported, already there; and their total amount."""

    read: int = 0
    imported: int = 0
    already_there: int = 0
    amount: int = 0


@dataclass(slots=True)
class ImportReport:
    """What an import did, or would do. It has the problems of all rows read, including items that existed already."""

    read: int = 0
    imported: int = 0
    already_there: int = 0
    repeated: int = 0
    #: Rows that a mapping function left out.
    left_out: int = 0
    #: Rows of pipelines that are not imported, by their old name.
    elsewhere: Counter[str] = field(default_factory=Counter)
    #: Of imported items: how many are in which state, by `pipeline/stage`.
    stages: dict[str, Counter[str]] = field(default_factory=dict)
    #: Of imported items: finished stages that run again, by `pipeline/stage`.
    again: dict[str, Again] = field(default_factory=dict)
    costs: LogCounts = field(default_factory=LogCounts)
    events: LogCounts = field(default_factory=LogCounts)
    problems: dict[str, ProblemCount] = field(default_factory=dict)
    #: Columns and tables that the mapping names and the old database does not have.
    missing: list[str] = field(default_factory=list)
    #: Columns that the mapping does not name, and in how many rows they have a value.
    not_taken: dict[str, int] = field(default_factory=dict)

    @property
    def changed(self) -> bool:
        return bool(self.imported or self.costs.imported or self.events.imported)

    def tell(self, problem: ImportProblem, row: int, key: str) -> None:
        trouble = self.problems.setdefault(problem.kind, ProblemCount())
        trouble.count += 1
        if len(trouble.examples) < EXAMPLES:
            trouble.examples.append(Example(row, key, problem.stage, problem.found))

    def tell_elsewhere(self, name: str) -> None:
        self.elsewhere[name if name in self.elsewhere or len(self.elsewhere) < ELSEWHERE else "…"] += 1

    def facts(self) -> dict[str, Any]:
        """The report in JSON form."""
        return {
            "read": self.read,
            "imported": self.imported,
            "already_there": self.already_there,
            "repeated": self.repeated,
            "left_out": self.left_out,
            "elsewhere": dict(self.elsewhere),
            "missing_columns": self.missing,
            "columns_not_taken": self.not_taken,
            "stages": {stage: dict(counts) for stage, counts in self.stages.items()},
            "run_again": {
                stage: {"count": one.count, "cost": None if one.cost is None else str(decimal(one.cost))}
                for stage, one in self.again.items()
            },
            **{
                name: {"read": log.read, "imported": log.imported, "already_there": log.already_there}
                for name, log in (("costs", self.costs), ("events", self.events))
            },
            "amount": str(decimal(self.costs.amount)),
            "problems": {
                kind: {"count": one.count, "examples": [example._asdict() for example in one.examples]}
                for kind, one in sorted(self.problems.items())
            },
        }
