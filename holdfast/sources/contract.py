"""The contract of all sources.

A source is built from checked settings. `look(memory)` streams what it finds, without a database transaction. It may leave JSON
in `memory` (ETags, cursors). The memory is saved with every batch, so a source records its progress only once everything up to
there was yielded. What it records after its last item is saved when the look has succeeded. A source that cannot be read raises
SourceFailed, with one line; a single bad row is skipped and counted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from holdfast.errors import HoldfastError
from holdfast.model.found_items import Found, Kept, LookedUp

__all__ = ["Found", "Kept", "LookEnded", "LookedUp", "Reader", "Source", "SourceFailed", "ending", "said"]

T = TypeVar("T")

#: Checks a value and returns it as it is stored. The text is its location, for the error.
Reader = Callable[[Any, str], Any]


class SourceFailed(HoldfastError):
    """A source could not be read, or not to the end.

    `status` is the answer of a server, if there was one; `retry_after` is how many seconds it asked us to wait.
    """

    def __init__(self, message: str, *, status: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(" ".join(message.split()))
        self.status = status
        self.retry_after = retry_after


class LookEnded(HoldfastError):
    """Raised by `Source.check` if the look has to end. A source must not catch it."""


class Source(ABC):
    """Base class of all kinds of sources."""

    kind: ClassVar[str]
    #: The options and their readers; the first is the key that names the kind.
    options: ClassVar[Mapping[str, Reader]]
    #: Required options.
    needed: ClassVar[tuple[str, ...]] = ()
    #: Options in which `{value}` of `for_each` may be used.
    templates: ClassVar[tuple[str, ...]] = ()

    def __init__(self, settings: Mapping[str, Any], folder: Path) -> None:
        self.settings = settings
        #: Relative paths start here.
        self.folder = folder
        #: Rows that were skipped, and what was wrong with the first of them.
        self.bad = 0
        self.bad_example: str | None = None
        #: Whether a look finds everything there is, so that items not found have vanished; and whether this look, as an
        #: exception, left something out.
        self.whole = True
        self.missed = False
        #: To be called wherever a look may take long; raises LookEnded if it has to end.
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
    """A stream that is closed with the block, along with the programs and files it uses."""
    try:
        yield stream
    finally:
        close = getattr(stream, "close", None)
        if close is not None:
            close()


def _nothing() -> None:
    """Does nothing: by default no look has to end."""


def said(error: BaseException) -> str:
    """The message of an error, in one line."""
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = "(it cannot say what it is)"
    return f"{type(error).__name__}: {text[:500]}" if text else type(error).__name__
