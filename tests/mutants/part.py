"""pytest, in a fork of a process that has loaded it and what all parts need (`tests.support.mother`)."""

from __future__ import annotations

import sys

import hypothesis  # noqa: F401
import pytest
import sqlalchemy  # noqa: F401

import holdfast.crashtest
import holdfast.testing  # noqa: F401


def main() -> None:
    sys.exit(pytest.main(sys.argv[1:]))
