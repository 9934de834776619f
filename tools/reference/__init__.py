"""The reference pages that are made from the code: command line, job file, events, exit codes, settings, API.

`python -m tools.reference` (`make reference`) writes them into docs/reference. Names, options, defaults and signatures are
read from the code; words that the code does not have are in `words.py`, and a name without words is an error. A test
compares the pages with what the code gives today.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from tools.pages import ROOT
from tools.reference import api, command_line, events, exit_codes, job_file, settings

FOLDER = ROOT / "docs" / "reference"
PAGES: dict[str, Callable[[], str]] = {
    "api.md": api.page,
    "command-line.md": command_line.page,
    "events.md": events.page,
    "exit-codes.md": exit_codes.page,
    "job-file.md": job_file.page,
    "settings.md": settings.page,
}


def write(folder: Path = FOLDER) -> Iterator[Path]:
    """Write the pages that differ from the code; yield them."""
    for name, make in PAGES.items():
        text = make()
        file = folder / name
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")
            yield file
