"""The columns that a migration adds to a table, and what both dialects need to write it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.errors import UsageError
from holdfast.model.durations import Duration, seconds

#: Marks what a migration added, so that down removes nothing else.
MARK = "added by holdfast adopt-sql"

#: Default column names, in the order in which the columns are added.
NAMES: Mapping[str, str] = {
    "heartbeat": "last_heartbeat",
    "started": "started_at",
    "attempts": "attempts",
    "next_attempt": "next_attempt_at",
    "version": "version",
    "holder": "holder",
}
_LONGEST_NAME = 63


@dataclass(frozen=True)
class WantedColumns:
    """A table, and the columns it should have. A column with an empty name is left out."""

    table: str
    status: str
    schema: str | None = None
    key: Sequence[str] = ("id",)
    queued: str = "queued"
    processing: str = "processing"
    names: Mapping[str, str] = field(default_factory=lambda: dict(NAMES))
    older_than: Duration = "30m"

    def __post_init__(self) -> None:
        unknown = sorted(self.names.keys() - NAMES.keys())
        if unknown:
            raise UsageError(
                f"adopt-sql: {unknown[0]!r} is not a column that can be added; there are: {', '.join(NAMES)}"
            )
        needed = [self.table, self.status, *self.key, *([] if self.schema is None else [self.schema])]
        for name in [*needed, *self.names.values()]:
            if "\0" in name:
                raise UsageError(f"adopt-sql: {name!r} is not a name: it has a zero byte")
        if not all(needed) or not self.key:
            raise UsageError("adopt-sql: table, status and key need a name")
        if not self.names.get("heartbeat"):
            raise UsageError("adopt-sql: without a heartbeat column there is nothing to add")
        used = [self.status, *self.key, *self.columns.values()]
        twice = sorted({name for name in used if used.count(name) > 1})
        if twice:
            raise UsageError(f"adopt-sql: the column {twice[0]!r} cannot have two roles")

    @property
    def columns(self) -> dict[str, str]:
        """The names of the wanted columns, by role."""
        return {role: self.names[role] for role in NAMES if self.names.get(role)}

    @property
    def stale_seconds(self) -> float:
        return seconds(self.older_than, what="adopt-sql: older_than")

    @property
    def indexes(self) -> dict[str, tuple[str, Sequence[str]]]:
        """The indexes of the processing and of the queued rows: the status word of their rows, and their columns."""
        return {"processing": (self.processing, (self.columns["heartbeat"],)), "queued": (self.queued, self.key)}

    @property
    def times(self) -> list[str]:
        """The columns that show a row's age, quoted; the first that has a value counts."""
        return [quoted(self.columns[role]) for role in ("heartbeat", "started") if role in self.columns]

    def index(self, of: str) -> str:
        """The name of an index; never longer than PostgreSQL allows."""
        end = f"_{of}"
        start = f"ix_{self.table}".encode()[: _LONGEST_NAME - len(end)].decode(errors="ignore")
        return start + end


@dataclass(frozen=True)
class TableMigration:
    """The statements of both directions, each complete in itself."""

    up: tuple[str, ...]
    down: tuple[str, ...]

    @staticmethod
    def script(statements: Sequence[str]) -> str:
        return "".join(f"{one}\n" for one in statements)


def quoted(*parts: str | None) -> str:
    """`"schema"."table"`, as both databases read it; parts that are None are left out."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in parts if part is not None)


def quoted_list(names: Sequence[str]) -> str:
    return ", ".join(map(quoted, names))


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
