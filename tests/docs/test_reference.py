"""The reference is what the code gives: nothing that users can name is missing in it, and nothing is left over."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import pytest

import holdfast
from holdfast.errors import HoldfastError
from holdfast.jobfile.schema import schema
from holdfast.model.history import EVENTS
from tests.examples.test_public_names import PUBLIC
from tools import reference
from tools.reference import api, command_line, exit_codes, settings, words
from tools.reference.markdown import first_sentence

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "reference"
CLI = ROOT / "holdfast" / "cli"


def page(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def first_cells(name: str) -> set[str]:
    """The code in the first cell of every row of a page."""
    return {
        found
        for line in page(name).splitlines()
        if line.startswith("| ")
        for found in re.findall("`([^`]+)`", line.split(" | ")[0])
    }


@pytest.mark.parametrize("name", reference.PAGES)
def test_the_page_is_what_the_code_gives(name: str) -> None:
    assert page(name) == reference.PAGES[name](), "run `make reference`"


def test_every_command_has_a_section_with_all_of_its_options() -> None:
    sections = dict(
        re.findall(r"^## holdfast (.+?)\n(.*?)(?=^## |\Z)", page("command-line.md"), re.DOTALL | re.MULTILINE)
    )
    everything = dict(command_line.every_command())
    assert sections.keys() == everything.keys()
    for name, command in everything.items():
        missing = [
            one
            for option in command_line.options_of(command)
            for one in option.opts
            if f"`{one}`" not in sections[name]
        ]
        assert missing == [], name


def test_every_event_is_described() -> None:
    assert first_cells("events.md") == EVENTS == words.EVENTS.keys()


def test_every_exit_code_is_described_and_no_other() -> None:
    codes = {int(found) for found in re.findall(r"^\| (\d+) \|", page("exit-codes.md"), re.MULTILINE)}
    assert codes == exit_codes.all_codes() == words.EXIT_CODES.keys()


@pytest.mark.parametrize(
    ("command", "codes"),
    [
        ("run", {3, 4, 5, 7, 143}),
        ("loop", {3, 4, 5, 6, 143}),
        ("db check", {5}),
        ("check", {4, 5}),
        ("schema", set()),
        ("export", {3, 4, 5}),
    ],
)
def test_the_exit_codes_of_a_command_are_found_in_its_code(command: str, codes: set[int]) -> None:
    assert exit_codes.of_command(command) - exit_codes.OF_ALL == codes


#: What ends a process, as the command line says it, and where: with the code of an error, or of `finish`.
ENDS = {
    ("__init__.py", "ctx.exit"),
    ("exit_codes.py", "click.Abort"),
    ("exit_codes.py", "click.exceptions.Exit"),
    ("options.py", "click.get_current_context().exit"),
}
ENDING = {"Abort", "Exit", "SystemExit", "_exit", "abort", "exit", "quit"}


def test_no_command_ends_in_a_way_that_the_page_is_not_made_from() -> None:
    ends, finishing = set(), set()
    for file in [*CLI.rglob("*.py"), CLI.parent / "__main__.py"]:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            name = getattr(node, "attr", getattr(node, "id", "")) if isinstance(node, ast.Attribute | ast.Name) else ""
            if name in ENDING:
                ends.add((file.name, ast.unparse(node)))
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("options.finish", "finish"):
                finishing.add((str(file), node.lineno))
    assert ends == ENDS, "end a command with options.finish"
    understood = {place for name, _ in command_line.every_command() for place in exit_codes.understood(name)}
    assert finishing == understood, "the page does not say the code that is given to finish there"


def test_no_error_has_an_exit_code_that_is_not_described() -> None:
    def kinds(of: type[HoldfastError]) -> Iterator[type[HoldfastError]]:
        yield of
        for one in of.__subclasses__():
            yield from kinds(one)

    for module in walk_packages(holdfast.__path__, "holdfast."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    assert {
        one.exit_code for one in kinds(HoldfastError) if one.__module__.startswith("holdfast")
    } <= exit_codes.all_codes()


def test_every_variable_that_the_package_reads_is_described() -> None:
    assert first_cells("settings.md") == settings.variables() == words.SETTINGS.keys()


def test_every_public_name_is_in_the_api() -> None:
    sections = dict(re.findall(r"^## (holdfast\S*)\n(.*?)(?=^## |\Z)", page("api.md"), re.DOTALL | re.MULTILINE))
    assert sections.keys() == api.MODULES.keys() >= set(PUBLIC)
    for module, text in sections.items():
        listed = set(re.findall(r"^\| `(\w+)", text.partition("\n### ")[0], re.MULTILINE))
        assert listed == set(api.names_of(import_module(module))), module


def test_every_fixture_of_the_pytest_plugin_is_in_the_api(tmp_path: Path) -> None:
    """Those that pytest itself lists in a project that has none of its own."""
    asked = [sys.executable, "-m", "pytest", "-q", "--fixtures", "--color=no", "-p", "no:cacheprovider"]
    listed = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True).stdout
    ours = set(re.findall(r"^(\w+).* -- .*holdfast/pytest_plugin\.py:\d+$", listed, re.MULTILINE))
    section = page("api.md").partition("## pytest fixtures\n")[2].partition("\n### ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == ours != set(), listed


def test_every_key_of_the_job_file_is_in_its_reference() -> None:
    def keys(part: object) -> set[str]:
        if isinstance(part, list):
            return set().union(*map(keys, part)) if part else set()
        if not isinstance(part, dict):
            return set()
        own = set(part.get("properties", ()))
        return own.union(*(keys(one) for one in part.values()))

    assert keys(schema()) <= first_cells("job-file.md")


def test_the_first_sentence_of_a_docstring_is_its_first_sentence() -> None:
    assert (
        first_sentence("Adds items: keys, or\nmappings (e.g. 1.5). And more.\n\nText.")
        == "Adds items: keys, or mappings (e.g. 1.5)."
    )
    assert first_sentence(None) == ""
