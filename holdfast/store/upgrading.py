"""Brings the tables of a store up to date: all missing migrations in one transaction, then the indexes of large tables.

The transaction changes definitions, not rows, so that it is over before anybody's lease ends. It waits for the tables for a few
seconds at most, since every other program waits behind it; then it lets the others go first, and tries again. An index that
reads every row is marked `{later}` in its migration: PostgreSQL builds it afterwards, beside the work of others.
"""

from __future__ import annotations

import time

from holdfast import schema
from holdfast.errors import StoreBroken, StoreConflict, StoreUnavailable
from holdfast.model.log_lines import logger
from holdfast.store.commit_once import CONFLICT_TRIES
from holdfast.store.database_errors import sqlstate_of
from holdfast.store.driver import Driver

log = logger(__name__)

#: How long one try waits for a lock that another transaction holds: much less than a lease, which usually lasts 30 s.
LOCK_SECONDS = 3.0
#: Between two tries: the others go first.
PAUSE_SECONDS = 1.0
#: How long transactions of others may keep the tables in use before the upgrade gives up.
PATIENCE_SECONDS = 60.0

_NO_LOCK = "55P03"


def version_of(driver: Driver) -> int:
    """The schema version of the tables; 0 if there are none."""
    exists = driver.run_text(driver.dialect.words["has_schema"])
    if not exists or not exists[0][0]:
        return 0
    statement = driver.dialect.render("version", "SELECT COALESCE(MAX(version), 0) FROM holdfast_schema_version")
    return int(driver.run(statement, {})[0][0])


def migrate(driver: Driver, where: str) -> list[str]:
    """Run the missing migrations, exclusively, and return their names."""
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    deadlocks = 0
    while True:
        try:
            return _migrate(driver, where)
        except StoreConflict:
            # Writers queue behind an upgrade, readers do not: a reader that holds one table and needs another may deadlock.
            deadlocks += 1
            if deadlocks == CONFLICT_TRIES:
                raise
        except StoreUnavailable as error:
            if error.__cause__ is None or sqlstate_of(error.__cause__) != _NO_LOCK:
                raise
            if time.monotonic() > give_up_at:
                raise StoreUnavailable(
                    f"{where}: transactions of others have kept its tables in use for {PATIENCE_SECONDS:.0f} s "
                    "(`holdfast doctor` shows how old the oldest is): nothing was changed; run the upgrade again when they "
                    "have ended"
                ) from error
            log.info("%s: its tables are in use, the upgrade waits", where)
            time.sleep(PAUSE_SECONDS)


def too_new(where: str, version: int) -> str:
    return (
        f"{where} has schema {version}, this holdfast knows {schema.newest()}: it belongs to a newer holdfast; "
        "install that version"
    )


def _migrate(driver: Driver, where: str) -> list[str]:
    done: list[str] = []
    try:
        now = driver.begin_bare(LOCK_SECONDS)
        version = version_of(driver)
        if version > schema.newest():
            raise StoreBroken(too_new(where, version))
        for migration in schema.migrations():
            if migration.number > version:
                _run(driver, migration, now, is_new=version == 0)
                done.append(f"{migration.number:04d} {migration.name}")
        driver.commit()
    except BaseException:
        driver.rollback()
        raise
    return done


def _run(driver: Driver, migration: schema.Migration, now: int, *, is_new: bool) -> None:
    for text in schema.statements(migration):
        # Tables without a row need no patience.
        now_or_later = text.replace(schema.LATER, "{on_postgres}") if is_new else text
        driver.run(driver.dialect.render("migration", now_or_later), {})
    record = driver.dialect.render(
        "record_migration",
        "INSERT INTO holdfast_schema_version (version, name, migrated_at) VALUES (:version, :name, :now)",
    )
    driver.run(record, {"version": migration.number, "name": migration.name, "now": now})
