"""The migration for PostgreSQL: each statement checks what exists, and marks what it adds with a comment."""

from __future__ import annotations

from holdfast.adopt.ddl.missing_columns import MARK, TableMigration, WantedColumns, literal, quoted, quoted_list

_TYPES = {
    "heartbeat": "timestamp with time zone",
    "started": "timestamp with time zone",
    "attempts": "integer NOT NULL DEFAULT 0",
    "next_attempt": "timestamp with time zone",
    "version": "integer NOT NULL DEFAULT 0",
    "holder": "text",
}
_MARK = literal(MARK)


def write_postgresql(wanted: WantedColumns) -> TableMigration:
    write = _Writer(wanted)
    parts = [write.column(role, name) for role, name in wanted.columns.items()]
    parts += [write.index(of) for of in wanted.indexes]
    parts += [write.function()]
    up, down = [add for add, _ in parts], [drop for _, drop in reversed(parts)]
    return TableMigration(("BEGIN;", *up, "COMMIT;"), ("BEGIN;", *down, "COMMIT;"))


class _Writer:
    """Writes what adds each part of a migration, and what drops it again."""

    def __init__(self, wanted: WantedColumns) -> None:
        self._wanted = wanted
        self._table = quoted(wanted.schema, wanted.table)
        # The dollar-quote tag must not occur in any name: it ends the body of a block.
        names = [wanted.table, wanted.schema or "", wanted.status, wanted.queued, wanted.processing, *wanted.key]
        everything = "".join([*names, *wanted.columns.values()])
        self._tag = next(tag for number in range(100) if (tag := f"$hf{number}$") not in everything)

    def _only_if(self, condition: str, *statements: str) -> str:
        lines = [f"DO {self._tag} BEGIN", f"  IF {condition} THEN", *(f"    {one};" for one in statements)]
        return "\n".join([*lines, "  END IF;", f"END {self._tag};"])

    def column(self, role: str, name: str) -> tuple[str, str]:
        column = quoted(name)
        exists = (
            f"EXISTS (SELECT FROM pg_attribute WHERE attrelid = {literal(self._table)}::regclass\n"
            f"      AND attname = {literal(name)} AND NOT attisdropped"
        )
        add = self._only_if(
            f"NOT {exists})",
            f"ALTER TABLE {self._table} ADD COLUMN {column} {_TYPES[role]}",
            f"COMMENT ON COLUMN {self._table}.{column} IS {_MARK}",
        )
        is_ours = f"{exists}\n      AND col_description(attrelid, attnum) = {_MARK})"
        return add, self._only_if(is_ours, f"ALTER TABLE {self._table} DROP COLUMN {column}")

    def index(self, of: str) -> tuple[str, str]:
        word, columns = self._wanted.indexes[of]
        name = quoted(self._wanted.schema, self._wanted.index(of))
        found = f"to_regclass({literal(name)})"
        add = self._only_if(
            f"{found} IS NULL",
            f"CREATE INDEX {quoted(self._wanted.index(of))} ON {self._table} ({quoted_list(columns)})\n"
            f"      WHERE {quoted(self._wanted.status)} = {literal(word)}",
            f"COMMENT ON INDEX {name} IS {_MARK}",
        )
        return add, self._only_if(f"obj_description({found}, 'pg_class') = {_MARK}", f"DROP INDEX {name}")

    def function(self) -> tuple[str, str]:
        """`is_job_stale(row, older_than)`. A time without a time zone is read as UTC: as its epoch, which is that of UTC.

        A row without any time is stale: every claim writes a heartbeat, so no loop holds it, and a row that never becomes
        stale is never found.
        """
        wanted, name = self._wanted, quoted(self._wanted.schema, "is_job_stale")
        signature = f"{name}({self._table}, interval)"
        found = f"to_regprocedure({literal(signature)})"
        since = ", ".join(f"to_timestamp(extract(epoch FROM (job).{time}))" for time in wanted.times)
        limit = f"interval {literal(f'{wanted.stale_seconds:g} seconds')}"
        check = self._only_if(
            f"{found} IS NOT NULL AND coalesce(obj_description({found}, 'pg_proc'), '') <> {_MARK}",
            "RAISE EXCEPTION 'there is a function is_job_stale for this table already, which is not holdfast''s'",
        )
        add = (
            f"{check}\n"
            f"CREATE OR REPLACE FUNCTION {name}(job {self._table}, older_than interval DEFAULT {limit})\n"
            f"RETURNS boolean LANGUAGE sql STABLE AS {self._tag}\n"
            f"  SELECT (job).{quoted(wanted.status)} = {literal(wanted.processing)}\n"
            f"    AND coalesce(coalesce({since}) < now() - older_than, true)\n"
            f"{self._tag};\n"
            f"COMMENT ON FUNCTION {signature} IS {_MARK};"
        )
        return add, self._only_if(f"obj_description({found}, 'pg_proc') = {_MARK}", f"DROP FUNCTION {signature}")
