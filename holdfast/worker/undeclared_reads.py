"""For tests: reports what handlers use although their stages do not declare it.

Such a use is not an error, but results do not become stale when what was used changes. `holdfast.testing` and crash
tests use this.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, ValuesView
from contextlib import contextmanager
from typing import Any

from holdfast.model.stage import StageSpec

#: Called with a sentence about each undeclared use.
ReadListener = Callable[[str], None]

#: None outside tests.
listener: ReadListener | None = None


@contextmanager
def listening(new: ReadListener) -> Iterator[None]:
    """Watch the handlers of this process within this context."""
    global listener
    old, listener = listener, new
    try:
        yield
    finally:
        listener = old


def watched(data: Any, spec: StageSpec) -> Any:
    """The data of an item, in a form that reports the use of anything that the stage does not declare in `reads`."""
    if listener is None or spec.reads is None or not isinstance(data, dict):
        return data
    return _Watched(data, "", {path: path.split(".") for path in spec.reads}, spec.name)


def used_result(stage: str, spec: StageSpec) -> None:
    """Report that a handler uses the result of a stage that is not in its `after`."""
    if listener is not None and stage not in spec.after:
        listener(
            f"stage {spec.name!r} uses the result of {stage!r}, which does not come directly before it: when that changes, "
            f"what {spec.name!r} made of it is not stale; write after= with {stage!r} in it, too"
        )


class _Watched(dict[str, Any]):
    """An object within the data. A lookup uses one name; an iteration uses all of them."""

    def __init__(self, data: dict[str, Any], at: str, reads: dict[str, list[str]], stage: str) -> None:
        super().__init__(data)
        self._at, self._reads, self._stage = at, reads, stage

    def _use(self, name: Any) -> None:
        below = {path: rest[1:] for path, rest in self._reads.items() if rest[0] == name}
        if below and not all(below.values()):
            return  # declared as a whole
        value = dict.get(self, name)
        if below and isinstance(value, dict):
            if not isinstance(value, _Watched):
                dict.__setitem__(self, name, _Watched(value, f"{self._at}{name}.", below, self._stage))
        elif not below and listener is not None:
            listener(
                f"stage {self._stage!r} uses {self._at + str(name)!r} of the item's data and does not say so: when that "
                f"changes, its results are not stale; add it to reads="
            )

    def __getitem__(self, name: str) -> Any:
        self._use(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self._use(name)
        return super().get(name, default)

    def __contains__(self, name: object) -> bool:
        self._use(name)
        return super().__contains__(name)

    def __iter__(self) -> Iterator[str]:
        # Copying and encoding go this way, too.
        for name in super().__iter__():
            self._use(name)
            yield name

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        return ItemsView(self)

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        return ValuesView(self)

    def __eq__(self, other: object) -> bool:
        for name in self:
            self._use(name)
        return super().__eq__(other)

    __hash__ = None
