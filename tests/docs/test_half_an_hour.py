"""The tutorial works as it is printed, from an empty folder with the wheel in it to its last command."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_example_readmes import INSTALL_SECONDS, NO_NETWORK, clean_environment
from tests.docs.test_guides import ROOT, blocks
from tests.support.effort import effort
from tests.support.environments import make_environment
from tests.support.typist import Command, Page, Typist

PAGE = ROOT / "docs" / "guide" / "half-an-hour.md"
#: How the page begins: it makes an environment, enters it, and installs the wheel by its name.
MAKE, ENTER, PIP = "python3 -m venv venv", ". venv/bin/activate", "pip install "


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A newcomer's folder after the first block. What pip would install beside the wheel is linked from the environment of
    these tests; `make testall` types the block."""
    folder = tmp_path / "folder"
    folder.mkdir()
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [wheel] = folder.iterdir()
    first = Page(PAGE).commands[:3]
    assert [one.text for one in first] == [MAKE, ENTER, PIP + wheel.name]
    if effort(0, 1):
        install(folder, first)
    else:
        make_environment(folder / "venv", ROOT, wheel=wheel)
    return folder


def install(folder: Path, commands: list[Command]) -> None:
    if importlib.util.find_spec("ensurepip") is None:
        pytest.skip("this Python cannot make an environment with pip: it has no ensurepip")
    last = Typist(folder, clean_environment()).type(commands, INSTALL_SECONDS)[-1]
    if last.code and NO_NETWORK.search("\n".join(last.printed)):
        pytest.skip("there is no network to install packages from")
    assert last.command == commands[-1] and last.code == 0, last


def test_every_command_prints_what_the_page_shows(folder: Path) -> None:
    [program] = blocks(PAGE, "python")
    (folder / "digest.py").write_text(program)
    where = Command("python -c 'import holdfast; print(holdfast.__file__)'")
    commands = [Command(ENTER), where, *Page(PAGE).commands[3:]]
    typed = Typist(folder, clean_environment()).type(commands)
    assert [(one.command.text, one.printed) for one in typed if not one.is_as_printed] == []
    assert len(typed) == len(commands) > 17
    [installed] = typed[1].printed
    assert Path(installed).is_relative_to(folder / "venv"), "not what is in the wheel"


def test_the_page_has_about_as_many_words_as_it_says() -> None:
    text = PAGE.read_text(encoding="utf-8")
    [said] = re.findall(r"about (\d+) words", text)
    assert int(said) == round(len(text.split()), -2)
