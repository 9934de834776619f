"""The tables: numbered migrations, as text and in order.

A migration is a file `NNNN_name.sql` written once for both databases; the dialect of the store replaces words in braces, which
differ between them. Migrations only add. Statements end with a semicolon at the end of a line.
"""

from __future__ import annotations

from importlib import resources
from typing import NamedTuple


class Migration(NamedTuple):
    number: int
    name: str
    text: str


def migrations() -> list[Migration]:
    """Every migration, oldest first."""
    folder = resources.files(__name__) / "migrations"
    found = []
    for file in folder.iterdir():
        if file.name.endswith(".sql"):
            number, _, name = file.name.removesuffix(".sql").partition("_")
            found.append(Migration(int(number), name, file.read_text(encoding="utf-8")))
    return sorted(found)


def newest() -> int:
    """The schema version this code works with."""
    return migrations()[-1].number
