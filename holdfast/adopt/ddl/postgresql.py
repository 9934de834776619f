"""The migration for PostgreSQL: each statement checks what exists, and marks what it adds with a comment."""

from __future__ import annotations

from holdfast.adopt.ddl.missing_columns import MARK, Quote, TableMigration, WantedColumns

_TYPES = {
    "heartbeat": "timestamp with time zone",
    "started": "timestamp with time zone",
    "attempts": "integer NOT NULL DEFAULT 0",
    "next_attempt": "timestamp with time zone",
    "version": "integer NOT NULL DEFAULT 0",
    "holder": "text",
}


def write_postgresql(wanted: WantedColumns) -> TableMigration:
    text = _Text(wanted)
    up = ["BEGIN;", *(text.add_column(role, name) for role, name in wanted.columns.items())]
    up += [text.add_index(of, columns) for of, columns in text.indexes.items()]
    up += [text.add_function(), "COMMIT;"]
    down = ["BEGIN;", text.drop_function(), *(text.drop_index(of) for of in reversed(text.indexes))]
    down += [text.drop_column(name) for name in reversed(wanted.columns.values())]
    return TableMigration(tuple(up), (*down, "COMMIT;"))


class _Text:
    def __init__(self, wanted: WantedColumns) -> None:
        self._wanted = wanted
        self._quote = Quote("postgresql")
        self._table = self._quote.name(wanted.schema, wanted.table)
        #: For lookups in the catalogue: the quoted name as a string literal.
        self._regclass = f"{self._quote.text(self._table)}::regclass"
        self._mark = self._quote.text(MARK)
        # The dollar-quote tag must not occur in any name: it ends the body of a block.
        everything = "".join(
            [wanted.table, wanted.schema or "", wanted.status, wanted.queued, wanted.processing, *wanted.key]
        )
        everything += "".join(wanted.columns.values())
        self._tag = next(tag for number in range(100) if (tag := f"$hf{number}$") not in everything)
        self.indexes = {"processing": (wanted.columns["heartbeat"],), "queued": tuple(wanted.key)}

    def _block(self, *lines: str) -> str:
        tag = self._tag
        return "\n".join([f"DO {tag} BEGIN", *(f"  {line}" for line in lines), f"END {tag};"])

    def add_column(self, role: str, name: str) -> str:
        column = self._quote.name(name)
        return self._block(
            f"IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = {self._regclass}",
            f"    AND attname = {self._quote.text(name)} AND NOT attisdropped) THEN",
            f"  ALTER TABLE {self._table} ADD COLUMN {column} {_TYPES[role]};",
            f"  COMMENT ON COLUMN {self._table}.{column} IS {self._mark};",
            "END IF;",
        )

    def drop_column(self, name: str) -> str:
        return self._block(
            f"IF EXISTS (SELECT FROM pg_attribute WHERE attrelid = {self._regclass}",
            f"    AND attname = {self._quote.text(name)} AND NOT attisdropped",
            f"    AND col_description(attrelid, attnum) = {self._mark}) THEN",
            f"  ALTER TABLE {self._table} DROP COLUMN {self._quote.name(name)};",
            "END IF;",
        )

    def _index(self, of: str) -> str:
        return self._quote.name(self._wanted.schema, self._wanted.index(of))

    def add_index(self, of: str, columns: tuple[str, ...]) -> str:
        wanted, quote = self._wanted, self._quote
        word = {"processing": wanted.processing, "queued": wanted.queued}[of]
        return self._block(
            f"IF to_regclass({quote.text(self._index(of))}) IS NULL THEN",
            f"  CREATE INDEX {quote.name(wanted.index(of))} ON {self._table} ({quote.names(columns)})",
            f"    WHERE {quote.name(wanted.status)} = {quote.text(word)};",
            f"  COMMENT ON INDEX {self._index(of)} IS {self._mark};",
            "END IF;",
        )

    def drop_index(self, of: str) -> str:
        found = f"to_regclass({self._quote.text(self._index(of))})"
        return self._block(
            f"IF obj_description({found}, 'pg_class') = {self._mark} THEN",
            f"  DROP INDEX {self._index(of)};",
            "END IF;",
        )

    @property
    def _function(self) -> str:
        return f"{self._quote.name(self._wanted.schema, 'is_job_stale')}({self._table}, interval)"

    def add_function(self) -> str:
        """`is_job_stale(row, older_than)`. A time without a time zone is read as UTC: as its epoch, which is that of UTC.

        A row without any time is stale: every claim writes a heartbeat, so no loop holds it, and a row that never becomes
        stale is never found.
        """
        wanted, quote = self._wanted, self._quote
        times = [quote.name(wanted.columns[role]) for role in ("heartbeat", "started") if role in wanted.columns]
        since = ", ".join(f"to_timestamp(extract(epoch FROM (job).{time}))" for time in times)
        limit = f"interval {quote.text(f'{wanted.stale_seconds:g} seconds')}"
        name = quote.name(wanted.schema, "is_job_stale")
        found = f"to_regprocedure({quote.text(self._function)})"
        check = self._block(
            f"IF {found} IS NOT NULL AND coalesce(obj_description({found}, 'pg_proc'), '') <> {self._mark} THEN",
            "  RAISE EXCEPTION 'there is a function is_job_stale for this table already, which is not holdfast''s';",
            "END IF;",
        )
        return (
            f"{check}\n"
            f"CREATE OR REPLACE FUNCTION {name}(job {self._table}, older_than interval DEFAULT {limit})\n"
            f"RETURNS boolean LANGUAGE sql STABLE AS {self._tag}\n"
            f"  SELECT (job).{quote.name(wanted.status)} = {quote.text(wanted.processing)}\n"
            f"    AND coalesce(coalesce({since}) < now() - older_than, true)\n"
            f"{self._tag};\n"
            f"COMMENT ON FUNCTION {self._function} IS {self._mark};"
        )

    def drop_function(self) -> str:
        found = f"to_regprocedure({self._quote.text(self._function)})"
        return self._block(
            f"IF obj_description({found}, 'pg_proc') = {self._mark} THEN",
            f"  DROP FUNCTION {self._function};",
            "END IF;",
        )
