"""The page, the code and the tables know the same states and the same moves."""

from __future__ import annotations

import re
from pathlib import Path

from holdfast.model.states import FINISHED, MOVES, State
from holdfast.schema import migrations

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "states.md").read_text(encoding="utf-8")


def table(*head: str) -> list[list[str]]:
    """The rows of the table of the page with this head."""
    lines = iter(PAGE.splitlines())
    for line in lines:
        if cells(line) == list(head):
            next(lines)
            break
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append(cells(line))
    return rows


def cells(line: str) -> list[str]:
    return [cell.strip().strip("`") for cell in line.strip().strip("|").split("|")]


def checked_states() -> dict[str, set[str]]:
    """The states that the CHECK of each table allows, after the newest migration."""
    tables = re.compile(r"CREATE TABLE holdfast_(\w+) \((.*?)^\)", re.DOTALL | re.MULTILINE)
    found = {}
    for migration in migrations():
        for name, body in tables.findall(migration.text):
            for states in re.findall(r"CHECK \(state IN \((.*?)\)\)", body, re.DOTALL):
                found[name] = set(re.findall(r"'(\w+)'", states))
    return found


def test_the_page_lists_exactly_the_moves_of_the_code():
    listed = [(before, after) for before, after, _ in table("from", "to", "what does it")]
    assert sorted(listed) == sorted((before, after) for before, all_of in MOVES.items() for after in all_of)


def test_the_page_describes_every_state_and_where_it_lies():
    places = {state: place for state, place, _ in table("state", "row in", "means")}
    assert places.keys() == set(State)
    assert {state for state, place in places.items() if place == "outcomes"} == FINISHED


def test_the_drawing_names_every_state():
    [drawing] = re.findall(r"```\n(.*?)```", PAGE, re.DOTALL)
    assert set(State) <= set(re.findall(r"\w+", drawing))


def test_every_state_has_its_moves():
    assert MOVES.keys() == set(State)


def test_the_tables_allow_exactly_the_states_of_the_code():
    of_stages = {name: states for name, states in checked_states().items() if name not in ("memos", "calls", "actions")}
    assert of_stages == {"outcomes": FINISHED, "counts": set(State)}


def test_the_view_shows_every_open_state():
    *_, view = [
        body
        for migration in migrations()
        for body in re.findall(r"CREATE VIEW holdfast_item_stages AS(.*?);", migration.text, re.DOTALL)
    ]
    assert set(re.findall(r"'(\w+)'", view)) == set(State) - FINISHED
