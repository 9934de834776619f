"""The drawings show what the code does, and are those of the repository."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from holdfast.model.states import FINISHED, MOVES, State
from tools import pictures
from tools.pictures import life


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_the_picture_is_what_its_data_gives(name: str) -> None:
    kept = (pictures.FOLDER / name).read_text(encoding="utf-8")
    assert kept == pictures.PICTURES[name](), "run `make reference`"
    assert ElementTree.fromstring(kept).tag.endswith("svg")


def test_the_life_of_an_item_has_every_state_and_only_moves_that_exist() -> None:
    assert life.PLACES.keys() == set(State)
    drawn = [(one.before, one.after) for one in life.MOVES]
    assert len(drawn) == len(set(drawn))
    assert all(after in MOVES[before] for before, after in drawn)


def test_every_move_between_open_states_and_every_end_of_an_attempt_is_drawn() -> None:
    drawn = {(one.before, one.after) for one in life.MOVES}
    open_ = set(State) - FINISHED
    wanted = {(before, after) for before in open_ for after in MOVES[before] if after in open_}
    wanted |= {(State.IN_PROGRESS, after) for after in MOVES[State.IN_PROGRESS]}
    assert drawn == wanted
