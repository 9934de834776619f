"""Tables of a user's own, in the store's database, with SQLAlchemy.

own = OwnTables(url)
ctx.effect(own.save, item.key, "some text")      # a row in `notes`, with the stage or not at all
assert own.notes() == [("page-1", "some text")]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy import Column, Connection, Engine, ForeignKey, Integer, MetaData, Table, Text, create_engine, select
from sqlalchemy.engine import Row

from holdfast.store.postgres_address import read_url
from holdfast.store.sqlite_files import file_of
from tests.support.pooler import is_behind_a_pooler


def engine_of(url: str) -> tuple[Engine, str | None]:
    """An engine as a user would make it, and the schema in which the tables of the test lie."""
    if url.startswith("sqlite:"):
        return create_engine(f"sqlite:///{file_of(url)}"), None
    conninfo, schema, _ = read_url(url)
    # As the guide has it.
    threshold = None if is_behind_a_pooler() else 5
    return create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(conninfo, prepare_threshold=threshold)
    ), schema


class OwnTables:
    """`notes`, which anything may be written to, and `documents` with the `chunks` that belong to them."""

    def __init__(self, url: str) -> None:
        self.engine, self.schema = engine_of(url)
        if self.schema is not None:
            with psycopg.connect(read_url(url)[0], autocommit=True) as conn:
                conn.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(self.schema)))
        metadata = MetaData(schema=self.schema)
        document = f"{self.schema}.documents.key" if self.schema else "documents.key"
        self.note = Table("notes", metadata, *_columns("key", "text"))
        self.document = Table("documents", metadata, Column("key", Text, primary_key=True))
        self.chunk = Table(
            "chunks",
            metadata,
            Column("id", Integer, primary_key=True),
            Column("document", ForeignKey(document)),
            Column("text", Text),
        )
        #: Whose foreign key is looked at only when the transaction ends.
        self.late_chunk = Table(
            "late_chunks",
            metadata,
            Column("id", Integer, primary_key=True),
            Column("document", ForeignKey(document, deferrable=True, initially="DEFERRED")),
        )
        #: Numbers that effects count up.
        self.tally = Table("tallies", metadata, Column("name", Text, primary_key=True), Column("n", Integer))
        self.metadata = metadata
        metadata.create_all(self.engine)

    # Effects ----------------------------------------------------------------------------------------------------------

    def save(self, connection: Connection, key: str, text: str = "") -> None:
        connection.execute(self.note.insert().values(key=key, text=text))

    def save_and(self, error: BaseException) -> Any:
        """An effect that saves a note, and then raises."""

        def effect(connection: Connection, key: str, text: str = "") -> None:
            self.save(connection, key, text)
            raise error

        return effect

    # What is there ----------------------------------------------------------------------------------------------------

    def notes(self) -> list[tuple[str, str]]:
        return [(row.key, row.text) for row in self.rows(self.note)]

    def keys(self) -> list[str]:
        return sorted(key for key, _ in self.notes())

    def rows(self, table: Table) -> Sequence[Row[Any]]:
        with self.engine.connect() as connection:
            return connection.execute(select(table).order_by(*table.primary_key.columns)).all()

    def close(self) -> None:
        self.engine.dispose()


def _columns(*names: str) -> list[Column[Any]]:
    return [Column("id", Integer, primary_key=True), *(Column(name, Text) for name in names)]
