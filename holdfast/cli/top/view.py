"""What a person looks at: the newest facts, the selected row, the filter, a question that waits for an answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from msgspec.structs import replace as changed

from holdfast.answers.overview import Overview
from holdfast.answers.status import PipelineStatus
from holdfast.cli.top.polling import Facts, ItemFacts

#: A pipeline, or one of its stages.
Row = tuple[str, str | None]

#: A text that is typed in is no longer than this.
LONGEST_TYPED = 1000


@dataclass(frozen=True)
class Prompt:
    """A question to the person: for a text or, with `is_yes_or_no`, for one key."""

    label: str
    #: Gets what was typed; not called if the person gives up.
    then: Callable[[str], None]
    is_yes_or_no: bool = False
    typed: str = ""

    def with_key(self, key: str) -> Prompt:
        """The same after a key that belongs to the text."""
        if key == "backspace":
            return replace(self, typed=self.typed[:-1])
        if key == "clear":
            return replace(self, typed="")
        fits = len(key) == 1 and len(self.typed) < LONGEST_TYPED
        return replace(self, typed=self.typed + key) if fits else self


@dataclass
class View:
    facts: Facts
    page: Literal["overview", "item", "help"] = "overview"
    #: Of the page `item`: its facts, once they are there.
    item: ItemFacts | None = None
    #: Only pipelines with this in their name.
    part_of_name: str = ""
    prompt: Prompt | None = None
    #: What became of the last key.
    message: str = ""
    #: Why the numbers are not new.
    trouble: str = ""
    #: How many lines of a long page are above the screen.
    scrolled: int = 0
    _selected: Row | None = None

    @property
    def overview(self) -> Overview:
        """The facts that the filter lets through."""
        given = self.facts.overview
        shown = tuple(one for one in given.status.pipelines if self.part_of_name in one.name)
        return Overview(changed(given.status, pipelines=shown), given.limits)

    @property
    def rows(self) -> list[Row]:
        """What can be selected, in order."""
        found: list[Row] = []
        for pipeline in self.overview.status.pipelines:
            found += [(pipeline.name, None), *((pipeline.name, stage.name) for stage in pipeline.stages)]
        return found

    @property
    def selected(self) -> Row | None:
        """The row that was selected last or, if it is gone, its pipeline or the first row."""
        rows = self.rows
        pipeline = self._selected and (self._selected[0], None)
        return next((one for one in (self._selected, pipeline) if one in rows), rows[0] if rows else None)

    @property
    def pipeline(self) -> PipelineStatus | None:
        """The pipeline of the selected row."""
        row = self.selected
        return None if row is None else self.facts.overview.status.pipeline(row[0])

    def move(self, by: int) -> None:
        """Select another row or, on a page of text, scroll."""
        if self.page != "overview":
            self.scrolled = max(0, self.scrolled + by)
        elif (selected := self.selected) is not None:
            rows = self.rows
            self._selected = rows[min(max(rows.index(selected) + by, 0), len(rows) - 1)]
