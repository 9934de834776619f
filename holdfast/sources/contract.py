"""The one contract of all sources.

A source is built from checked settings, and looked at: `look(memory)` streams what it finds and holds no database
transaction open meanwhile. It may leave JSON in `memory` (etags, cursors). The memory is saved with every batch, so a source
notes how far it has come only once everything up to there was yielded. What it notes after its last item is saved when the
look has ended well. What cannot be read at all is SourceFailed, in one line; a single bad row is skipped and counted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from holdfast.errors import HoldfastError
from holdfast.model.found import Found, Kept, LookedUp

__all__ = ["Found", "Kept", "LookEnded", "LookedUp", "Reader", "Source", "SourceFailed", "ending", "said"]

T = TypeVar("T")

#: Checks a value and returns it as it is kept; the text says where it stands, for the error.
Reader = Callable[[Any, str], Any]


class SourceFailed(HoldfastError):
    """A source could not be looked at, or not to the end.

    `status` is what a server answered, if one did; `retry_after` is how many seconds it asked us to wait.
    """

    def __init__(self, message: str, *, status: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(" ".join(message.split()))
        self.status = status
        self.retry_after = retry_after


class LookEnded(HoldfastError):
    """Raised by `Source.check`: the look has to end here. A source lets it pass."""


class Source(ABC):
    """One kind of source, with the settings of one."""

    kind: ClassVar[str]
    #: What may be set, and how it is checked; first the key that names the kind.
    options: ClassVar[Mapping[str, Reader]]
    #: Options without which there is nothing to look at.
    needed: ClassVar[tuple[str, ...]] = ()
    #: Options in which `{value}` may stand for what is looked up.
    templates: ClassVar[tuple[str, ...]] = ()

    def __init__(self, settings: Mapping[str, Any], folder: Path) -> None:
        self.settings = settings
        #: Relative paths begin here.
        self.folder = folder
        #: Rows that were skipped, and what was wrong with the first of them.
        self.bad = 0
        self.bad_example: str | None = None
        #: Whether a look comes by everything there is, so that what it has not seen is gone; and whether this one, against
        #: that, has left something out.
        self.whole = True
        self.missed = False
        #: Called in between wherever a look may take long; raises LookEnded when it has to end.
        self.check: Callable[[], None] = _nothing

    @classmethod
    def agree(cls, settings: Mapping[str, Any], where: str, folder: Path) -> None:
        """Refuse settings that contradict one another (UsageError)."""
        return

    @abstractmethod
    def look(self, memory: dict[str, Any]) -> Iterator[Found | Kept | LookedUp]:
        """Find everything, or what is new since the last look, one by one."""

    def skip(self, what: str) -> None:
        """Count a row that cannot be read."""
        self.bad += 1
        if self.bad_example is None:
            self.bad_example = " ".join(what.split())


@contextmanager
def ending(stream: Iterator[T]) -> Iterator[Iterator[T]]:
    """A stream that ends with the block: a program that it runs, or a file that it has set aside, goes with it."""
    try:
        yield stream
    finally:
        close = getattr(stream, "close", None)
        if close is not None:
            close()


def _nothing() -> None:
    """Nothing has to end."""


def said(error: BaseException) -> str:
    """What an error says of itself, in one line."""
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = "(it cannot say what it is)"
    return f"{type(error).__name__}: {text[:500]}" if text else type(error).__name__
