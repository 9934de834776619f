"""Every environment variable that the package reads."""

from __future__ import annotations

import re
from pathlib import Path

import holdfast
from tools.reference import words
from tools.reference.markdown import code, finished, head, table


def variables() -> set[str]:
    """The names of the variables, as they are written in the code."""
    files = Path(holdfast.__file__).parent.rglob("*.py")
    found = {
        name
        for file in files
        for name in re.findall(r'"((?:HOLDFAST|OTEL)_[A-Z_]+)"', file.read_text(encoding="utf-8"))
    }
    return found - words.INTERNAL_SETTINGS


def page() -> str:
    lines = head(
        "Settings",
        """What is set from outside. Options of commands are in [the command line](command-line.md), keys of a file in
        [the job file](job-file.md), and arguments in [the API](api.md). These environment variables apply to all of them; an
        option or an argument comes first. Variables that a job file uses are its own
        ([variables](../guide/job-file.md#variables)).""",
    )
    rows = ((code(name), *words.SETTINGS[name]) for name in sorted(variables()))
    lines += table(("variable", "meaning", "default"), rows)
    return finished(lines)
