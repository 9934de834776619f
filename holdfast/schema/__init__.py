"""The tables: numbered migrations, as text and in order.

A migration is a file `NNNN_name.sql` written once for both databases; the dialect of the store replaces words in braces, which
differ between them. Migrations only add. Statements end with a semicolon at the end of a line. `{later}` before a CREATE INDEX
leaves it to PostgreSQL to build the index after the migration, beside the work of others. SQLite cannot do that, and has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import resources
from typing import NamedTuple

LATER = "{later}"
_INDEX = re.compile(re.escape(LATER) + r"CREATE INDEX (\w+) ON (.+)", re.DOTALL)


class Migration(NamedTuple):
    number: int
    name: str
    text: str


class LaterIndex(NamedTuple):
    """An index that may be built after its migration; `on` has its table, its columns and its condition."""

    name: str
    on: str


def migrations() -> list[Migration]:
    """Every migration, oldest first."""
    folder = resources.files(__name__) / "migrations"
    found = []
    for file in folder.iterdir():
        if file.name.endswith(".sql"):
            number, _, name = file.name.removesuffix(".sql").partition("_")
            found.append(Migration(int(number), name, file.read_text(encoding="utf-8")))
    return sorted(found)


def statements(migration: Migration) -> Iterator[str]:
    """The statements of a migration, without comments."""
    lines = [line for line in migration.text.splitlines() if not line.lstrip().startswith("--")]
    for part in "\n".join(lines).split(";\n"):
        if part.strip(";\n "):
            yield part.strip(";\n ")


def later_indexes() -> list[LaterIndex]:
    """The indexes that may be built after their migrations."""
    texts = [text for migration in migrations() for text in statements(migration)]
    return [LaterIndex(*match.groups()) for text in texts if (match := _INDEX.fullmatch(text))]


def newest() -> int:
    """The schema version this code works with."""
    return migrations()[-1].number
