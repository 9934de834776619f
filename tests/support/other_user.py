"""The command line as another user runs it, who may only read. Needs root, to become that user.

    said, errors = Piped("tests.support.other_user", ["status"], environment).communicate()
"""

from __future__ import annotations

import os
from importlib import import_module

import pytest

import holdfast.cli
from holdfast import schema
from holdfast.store import sqlite_reader
from holdfast.store.sqlite_dialect import SQLiteDialect
from holdfast.store.statements import Statements

USER = 65534
#: How much the other user copies aside at most, if it is not what everybody does.
COPIED_VARIABLE = "OTHER_USER_COPIES_BYTES"

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="NOT PROVED HERE: only root can become another user; run as root")


def prepare() -> None:
    """Load everything now: the other user may not be able to read where Python is installed."""
    for home in {home for home, _ in holdfast.cli.COMMANDS.values()}:
        import_module(f"holdfast.cli.{home}")
    Statements.of(SQLiteDialect())
    schema.newest()


def main() -> None:
    os.setgroups([])
    os.setgid(USER)
    os.setuid(USER)
    sqlite_reader.COPIED_BYTES = int(os.environ.get(COPIED_VARIABLE, sqlite_reader.COPIED_BYTES))
    holdfast.cli.main()
