"""Indexes that PostgreSQL builds while others go on writing. This takes several transactions, and cannot be part of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from psycopg import sql

from holdfast.errors import StoreConflict, StoreUnavailable
from holdfast.schema import LaterIndex
from holdfast.store.driver import Row
from holdfast.store.postgres_dialect import PostgresDialect

Ask = Callable[[str], Sequence[Row]]

#: So often is an index begun before the error is reported.
TRIES = 5


def unbuilt(ask: Ask, dialect: PostgresDialect, indexes: Sequence[LaterIndex]) -> list[LaterIndex]:
    """Those of these indexes that are not there, or were given up half-built; not those that another process is building."""
    return [one for one in indexes if not _is_there(ask, dialect, one, f"AND (i.indisvalid OR EXISTS ({_BUILDING}))")]


def build(ask: Ask, dialect: PostgresDialect, index: LaterIndex) -> None:
    """Build one, beside the work of others. What an interrupted process has left of it is removed first.

    No lock keeps two processes from this: a transaction that held one would be waited for. The second one finds the index,
    or the server ends one of them, because each waits for the other or both remove the same; that one tries again.
    """
    for left in reversed(range(TRIES)):
        try:
            if _is_there(ask, dialect, index, f"AND NOT i.indisvalid AND NOT EXISTS ({_BUILDING})"):
                ask(f"DROP INDEX CONCURRENTLY IF EXISTS {dialect.schema}.{index.name}")
            on = dialect.render("migration", index.on).text.replace("%%", "%")
            ask(f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {index.name} ON {on}")
            return
        except (StoreConflict, StoreUnavailable):
            if not left:
                raise


#: These statements run outside of a transaction, under the search path of the role. An operator of somebody else for exactly
#: these types would be taken even from a schema behind pg_catalog.
_IS = "OPERATOR(pg_catalog.=)"
_BUILDING = f"SELECT 1 FROM pg_catalog.pg_stat_progress_create_index p WHERE p.index_relid {_IS} i.indexrelid"


def _is_there(ask: Ask, dialect: PostgresDialect, index: LaterIndex, condition: str) -> bool:
    named = sql.Literal(f"{dialect.schema}.{index.name}").as_string(None)
    number = f"CAST(pg_catalog.to_regclass({named}) AS pg_catalog.oid)"
    text = f"SELECT 1 FROM pg_catalog.pg_index i WHERE i.indexrelid {_IS} {number} {condition}"
    return bool(ask(text))
