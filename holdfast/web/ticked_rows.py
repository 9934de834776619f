"""Rows of a list of items that somebody has ticked. Each names its item by its number, which is never used again: so an act is
for the items that were ticked, whatever became of the list behind them, and a form stays small however long keys are.

Beside the number a row has the beginning of its key, by which an action names an item that was deleted after its preview.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from holdfast.answers.item import ListedItem
from holdfast.answers.text_tables import shortened
from holdfast.app import Holdfast
from holdfast.model.key_pattern import exactly
from holdfast.web.filters import WrongQuery
from holdfast.web.json_and_csv import readable

#: So many characters of a key are in a row.
LONGEST_LABEL = 60
#: So many items that are gone are named in an error.
MOST_NAMED = 3

#: The number of the item, the stage if the list is one of stages, and the beginning of the key.
_Row = tuple[Annotated[int, msgspec.Meta(ge=0, le=2**62)], str | None, str]


@dataclass(frozen=True)
class Ticked:
    """The items of these rows."""

    #: None if none of them exists any more.
    pipeline: str | None
    keys: tuple[str, ...]
    #: Of the rows, each once; None for a row that is a whole item.
    stages: tuple[str | None, ...]
    #: The keys, or their beginnings, of those that do not exist any more.
    gone: tuple[str, ...]

    def require_all(self) -> None:
        """Refuse rows of items that do not exist."""
        if self.gone:
            named = ", ".join(map(repr, self.gone[:MOST_NAMED])) + (", …" if len(self.gone) > MOST_NAMED else "")
            raise WrongQuery(
                f"{len(self.gone)} of the selected items were deleted or never there ({named}): load the list again"
            )


def row_of(one: ListedItem) -> str:
    """What the checkbox of a row sends."""
    return readable([one.id, one.stage, shortened(one.key, LONGEST_LABEL)])


def look_up(app: Holdfast, rows: Sequence[str]) -> Ticked:
    """The items of rows as forms send them."""
    try:
        found = msgspec.json.decode(f"[{','.join(rows)}]", type=list[_Row])
    except (msgspec.DecodeError, UnicodeEncodeError):
        raise WrongQuery(
            "a selected row names its item by its number, its stage and its key: load the list again"
        ) from None
    names = app.names_of_items([number for number, _, _ in found])
    pipelines = {pipeline for pipeline, _ in names.values()}
    if len(pipelines) > 1:
        raise WrongQuery("the selected items are of several pipelines: select those of one")
    gone = dict.fromkeys(label for number, _, label in found if number not in names)
    keys = dict.fromkeys(key for _, key in names.values())
    return Ticked(
        pipelines.pop() if pipelines else None,
        tuple(keys),
        tuple(dict.fromkeys(stage for _, stage, _ in found)),
        tuple(gone),
    )


def keys_to_follow(app: Holdfast, ticked: Ticked) -> tuple[str, ...]:
    """The keys that an action is asked for: those that exist, and of the others those that no other item has meanwhile."""
    if not ticked.gone or ticked.pipeline is None:
        return ticked.keys
    named = [exactly(key) for key in ticked.gone]
    taken = {one.key for one in app.items(pipeline=ticked.pipeline, key=named, most=len(named))}
    return (*ticked.keys, *(key for key in ticked.gone if key not in taken))
