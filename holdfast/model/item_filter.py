"""A filter: which items, or which stages of items, a person means."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.model.states import State


@dataclass(frozen=True, slots=True)
class Which:
    """All conditions must hold; what is None or empty is not asked for."""

    pipeline: str | None = None
    stage: str | None = None
    states: frozenset[State] = frozenset()
    #: Patterns, of which one must fit.
    key: str | tuple[str, ...] | None = None
    #: A part of the error's text.
    error: str | None = None
    older_than_us: int | None = None
    #: The id of an error group.
    group: str | None = None

    @property
    def is_of_items(self) -> bool:
        """Whether what it selects are items, and not stages of items."""
        return not self.states and self.stage is None and self.error is None and self.group is None
