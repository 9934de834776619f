"""What another user does, who is not the owner of a store. Needs root, to become that user.

said, errors = Piped("tests.support.other_user", ["status"], environment).communicate()     # the command line

assert as_user(lambda: os.geteuid()) == "65534"
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib import import_module

import pytest

import holdfast.cli
from holdfast import schema
from holdfast.store import sqlite_reader
from holdfast.store.sqlite_dialect import SQLiteDialect
from holdfast.store.statements import Statements
from tests.support.forking import in_a_child

USER = 65534
#: How much the other user copies aside at most, if it is not what everybody does.
COPIED_VARIABLE = "OTHER_USER_COPIES_BYTES"

as_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="NOT PROVED HERE: only root can become another user; run as root"
)


def prepare() -> None:
    """Load everything now: the other user may not be able to read where Python is installed."""
    for home in {home for home, _ in holdfast.cli.COMMANDS.values()}:
        import_module(f"holdfast.cli.{home}")
    Statements.of(SQLiteDialect())
    schema.newest()


def become_user(user: int = USER, groups: Sequence[int] = ()) -> None:
    os.setgroups(list(groups))
    os.setgid(user)
    os.setuid(user)


def as_user(work: Callable[[], object], user: int = USER, groups: Sequence[int] = ()) -> str:
    """Run the work as that user; return what it returned, as text, or the error it raised."""

    def run() -> object:
        become_user(user, groups)
        return work()

    prepare()
    return in_a_child(run)


def main() -> None:
    become_user()
    sqlite_reader.COPIED_BYTES = int(os.environ.get(COPIED_VARIABLE, sqlite_reader.COPIED_BYTES))
    holdfast.cli.main()
