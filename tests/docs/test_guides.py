"""What the pages show can be typed: commands exist with these options, and programs compile."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from holdfast.cli import commands
from holdfast.model.history import EVENTS
from holdfast.model.user_event import is_user_event

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]


def blocks(page: Path, *languages: str) -> list[str]:
    """The fenced blocks of a page in these languages."""
    found = re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [text for language, text in found if language in languages]


def typed(page: Path) -> list[list[str]]:
    """Every call of `holdfast` in a page, in its blocks and in its running text, as words."""
    lines = [line.removeprefix("$ ") for block in blocks(page, "sh", "console") for line in block.splitlines()]
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    lines += re.findall(r"`(holdfast [a-z][^`]*)`", prose)
    calls = []
    for line in lines:
        words = shlex.split(line, comments=True)
        while words and "=" in words[0]:
            words = words[1:]
        if words[:1] == ["holdfast"]:
            calls.append(words[1:])
    return calls


def check(words: list[str]) -> None:
    """Raise if a command or one of its options does not exist."""
    command: click.Command = commands
    context = click.Context(commands, info_name="holdfast")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(context, words[0])
        assert found is not None, f"there is no command {words[0]!r}"
        command, words = found, words[1:]
        context = click.Context(command, parent=context)
    command.make_parser(context).parse_args(list(words))


@pytest.mark.req("D11", "J9")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_event_that_the_page_names_exists(page: Path):
    text = page.read_text(encoding="utf-8")
    # A mapping of an old database says where the names of its events are.
    text = re.sub(r"^events: \{.*\}$", "", text, flags=re.MULTILINE)
    found = re.findall(r"events? `([a-z_.]+)`|`([a-z_]+)` events?\b|\bevent: ([a-z_.]+)|--event ([a-z_.]+)", text)
    lists = re.findall(r"^Useful events: ([^.]*)\.", text, re.MULTILINE)
    named = {name for names in found for name in names if name} | {
        name for one in lists for name in re.findall("`(.*?)`", one)
    }
    assert {name for name in named if name not in EVENTS and not is_user_event(name)} == set()
    assert lists and len(named) > 8 if page.name == "alerts.md" else True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_on_the_page_exists_with_its_options(page: Path):
    for words in typed(page):
        try:
            check(words)
        except (click.ClickException, AssertionError) as error:
            pytest.fail(f"holdfast {shlex.join(words)}: {error}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_program_on_the_page_compiles(page: Path):
    for block in blocks(page, "python"):
        # A decorator may be shown without its function.
        text = f"{block}\ndef handler(item, ctx): ..." if block.rstrip().splitlines()[-1].startswith("@") else block
        compile(text, str(page), "exec")


def test_no_line_installs_from_an_index_by_a_name_that_is_not_ours_there():
    """Somebody else may own the name on an index: in a clone, `pip install -e .` is the way."""
    places = [ROOT / "CHANGELOG.md", *PAGES, *(ROOT / "holdfast").rglob("*.py")]
    found = re.compile(r"""pip install [^`\n]*(?<![\w.-])holdfast(?![\w.-])""")
    lines = [(page.name, line) for page in places for line in found.findall(page.read_text(encoding="utf-8"))]
    assert lines == []
