"""The life of an item at one stage: its states, and the moves between them."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.model.states import State
from tools.pictures.svg import arrow, box, drawing, text

WIDTH, HEIGHT = 860, 400


class Place(NamedTuple):
    x: float
    y: float
    kind: str


class Move(NamedTuple):
    """An arrow from one state to another, with its words and where they stand."""

    before: State
    after: State
    points: list[tuple[float, float]]
    words: str = ""
    at: tuple[float, float] = (0, 0)
    anchor: str = "start"


PLACES = {
    State.PENDING: Place(150, 200, "open"),
    State.IN_PROGRESS: Place(430, 200, "open"),
    State.ON_HOLD: Place(290, 80, "still"),
    State.RETRY_LATER: Place(290, 320, "still"),
    State.DONE: Place(740, 60, "good"),
    State.SKIPPED: Place(740, 120, "good"),
    State.FAILED: Place(740, 200, "bad"),
    State.EXHAUSTED: Place(740, 260, "bad"),
    State.CANCELLED: Place(740, 330, "still"),
}
MOVES = [
    Move(State.PENDING, State.IN_PROGRESS, [(210, 192), (368, 192)], "claim", (289, 184), "middle"),
    Move(State.IN_PROGRESS, State.PENDING, [(370, 212), (212, 212)], "worker died, handed back", (289, 230), "middle"),
    Move(
        State.IN_PROGRESS,
        State.RETRY_LATER,
        [(430, 220), (430, 320), (352, 320)],
        "attempt failed, snoozed",
        (395, 345),
    ),
    Move(State.RETRY_LATER, State.PENDING, [(228, 320), (150, 320), (150, 222)], "due", (150, 345), "middle"),
    Move(State.IN_PROGRESS, State.ON_HOLD, [(430, 180), (430, 80), (352, 80)], "a call in doubt", (395, 62)),
    Move(State.PENDING, State.ON_HOLD, [(130, 180), (120, 80), (228, 74)], "a price, a version", (40, 62)),
    Move(State.ON_HOLD, State.PENDING, [(240, 102), (172, 178)], "released", (224, 146)),
    Move(State.IN_PROGRESS, State.DONE, [(492, 186), (676, 66)], "a result", (520, 128)),
    Move(State.IN_PROGRESS, State.SKIPPED, [(492, 194), (676, 124)], "Skip", (596, 141)),
    Move(State.IN_PROGRESS, State.FAILED, [(492, 200), (676, 200)], "Permanent", (582, 194)),
    Move(State.IN_PROGRESS, State.EXHAUSTED, [(492, 208), (676, 256)], "last attempt failed", (560, 220)),
    Move(State.IN_PROGRESS, State.CANCELLED, [(480, 222), (676, 324)], "cancel, from any open state", (452, 318)),
]


def draw() -> str:
    states = [box(one.x, one.y, 124, 38, state.value, one.kind) for state, one in PLACES.items()]
    moves = [arrow(one.points) + text(*one.at, one.words, kind="small", anchor=one.anchor) for one in MOVES]
    start = [arrow([(24, 200), (86, 200)]), text(24, 190, "added", kind="small")]
    foot = text(
        24,
        384,
        "A finished stage becomes pending again by retry, reprocess, a follow-on item that asks for it, or a changed input.",
        kind="small",
    )
    return drawing(
        WIDTH, HEIGHT, "The states of a stage of an item, and the moves between them", [*start, *moves, *states, foot]
    )
