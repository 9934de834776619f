"""The reference is what the code gives: nothing that users can name is missing in it, and nothing is left over."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from holdfast.jobfile.schema import schema
from holdfast.model.history import EVENTS
from tests.examples.test_public_names import PUBLIC
from tools import reference
from tools.reference import api, command_line, exit_codes, settings, words
from tools.reference.markdown import first_sentence

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "reference"


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


def test_every_variable_that_the_package_reads_is_described() -> None:
    assert first_cells("settings.md") == settings.variables() == words.SETTINGS.keys()


def test_every_public_name_is_in_the_api() -> None:
    sections = dict(re.findall(r"^## (holdfast\S*)\n(.*?)(?=^## |\Z)", page("api.md"), re.DOTALL | re.MULTILINE))
    assert sections.keys() == api.MODULES.keys() >= set(PUBLIC)
    for module, text in sections.items():
        listed = set(re.findall(r"^\| `(\w+)", text.partition("\n### ")[0], re.MULTILINE))
        assert listed == set(api.names_of(import_module(module))), module


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
