"""Tables of a user's own: one with every column that can be mapped, and smaller ones.

jobs = Jobs(engine)                 # every column
jobs.add(10)
rows = claim(engine, jobs.mapping, 5)
assert jobs.statuses() == {"processing": 5, "queued": 5}
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Column, DateTime, Engine, Integer, MetaData, String, Table, Text
from sqlalchemy.dialects.mysql import DATETIME

from holdfast.adopt import TableMapping

EVERY = ("error", "attempts", "next_attempt", "holder", "version", "heartbeat", "started", "updated", "created")
#: MySQL and MariaDB keep whole seconds unless they are told otherwise.
INSTANT = DateTime(timezone=True).with_variant(DATETIME(fsp=6), "mysql", "mariadb")
_TYPES: dict[str, Any] = {
    "error": Text,
    "attempts": Integer,
    "next_attempt": INSTANT,
    "holder": String(64),
    "version": Integer,
    "heartbeat": INSTANT,
    "started": INSTANT,
    "updated": INSTANT,
    "created": INSTANT,
}


class Jobs:
    """A table `jobs` with the columns that a test names, beside key, status, and two that belong to people."""

    def __init__(
        self,
        engine: Engine,
        columns: Iterable[str] = EVERY,
        *,
        name: str = "jobs",
        schema: str | None = None,
        key: Any = None,
        status_type: Any = None,
        **mapping: Any,
    ) -> None:
        self.engine = engine
        self.metadata = MetaData(schema=schema)
        own = key or [Column("id", Integer, primary_key=True)]
        self.table = Table(
            name,
            self.metadata,
            *own,
            Column("status", status_type or Text, nullable=False),
            *(Column(role, _TYPES[role]) for role in columns),
            #: What a row was when it was made, whatever its key becomes.
            Column("created_as", Text),
            Column("title", Text),
            Column("note", Text, onupdate="the model's own default"),
        )
        #: One row for each execution, or each completion, whatever a test writes there.
        own = [Column("id", Integer, primary_key=True), Column("job", Text), Column("by", Text)]
        self.mark = Table("marks", self.metadata, *own)
        self.metadata.create_all(engine)
        self.mapping = TableMapping(self.table, **{role: role for role in columns}, **mapping)

    def add(self, count: int = 0, *rows: dict[str, Any]) -> None:
        """So many plain queued rows, and these."""
        given = [{"title": f"job {number}"} for number in range(1, count + 1)] + list(rows)
        queued = self.mapping.words["queued"]
        with self.engine.begin() as connection:
            for row in given:
                connection.execute(self.table.insert().values({"status": queued, **row}))

    def set(self, where: Any = None, **values: Any) -> None:
        """What another session does to the rows."""
        with self.engine.begin() as connection:
            changing = sa.update(self.table).values({"note": self.table.c.note, **values})
            connection.execute(changing if where is None else changing.where(where))

    def row(self, key: Any) -> Any:
        with self.engine.connect() as connection:
            return connection.execute(sa.select(self.table).where(self.mapping.key[0] == key)).one()

    def rows(self, *columns: str) -> list[Any]:
        chosen = [self.table.c[name] for name in columns] or [self.table]
        with self.engine.connect() as connection:
            return list(connection.execute(sa.select(*chosen).order_by(*self.mapping.key)))

    def statuses(self) -> dict[Any, int]:
        return dict(Counter(row[0] for row in self.rows("status")))

    def save_mark(self, connection: Any, job: Any, by: str = "") -> None:
        connection.execute(self.mark.insert().values(job=str(job), by=by))

    def marks(self) -> Counter[str]:
        with self.engine.connect() as connection:
            return Counter(connection.execute(sa.select(self.mark.c.job)).scalars())
