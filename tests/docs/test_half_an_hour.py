"""The tutorial works as it is printed, from an empty folder to its last command."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.docs.test_guides import ROOT, blocks
from tests.support.typist import Page, Typist

PAGE = ROOT / "docs" / "guide" / "half-an-hour.md"


def test_every_command_prints_what_the_page_shows(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    holdfast = programs / "holdfast"
    holdfast.write_text(f'#!/bin/sh\nexec {sys.executable} -m holdfast "$@"\n')
    holdfast.chmod(0o755)
    folder = tmp_path / "folder"
    folder.mkdir()
    [program] = blocks(PAGE, "python")
    (folder / "digest.py").write_text(program)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    environment = {**clean, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}

    commands = Page(PAGE).commands
    typed = Typist(folder, environment).type(commands)
    assert [(one.command.text, one.printed) for one in typed if not one.is_as_printed] == []
    assert len(typed) == len(commands) > 15
