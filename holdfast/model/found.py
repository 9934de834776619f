"""What a source finds: items with a mark each, parts that it need not read again, and how many of which."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from holdfast.model import codec
from holdfast.model.item import check_key

#: Longer marks are replaced by their hash.
MARK_LENGTH = 200
PART_LENGTH = 8
#: Between a first mark and a second one; no first mark has it.
_THEN = "\x1f"


class Found(NamedTuple):
    """One item as a source found it.

    `mark` changes when the item has changed; without one it is a hash of the data. `content` gives a second mark that is
    costly to find, and is only asked for where the first one differs. `part` is the document it stood in, if there are several.
    """

    key: str
    data: dict[str, Any]
    mark: str = ""
    part: str = ""
    content: Callable[[], str] | None = None


class Kept(NamedTuple):
    """Whatever was found in this part before is still there, as it was; it was not read."""

    part: str = ""


class LookedUp(NamedTuple):
    """All that there was to look up for one of many was found; `mark` changes when it is to be looked up anew."""

    key: str
    mark: str


class Checked(NamedTuple):
    """A found item whose key can name an item and whose data fits into JSON."""

    key: str
    data: str
    mark: str
    part: str
    content: Callable[[], str] | None = None

    @property
    def stored(self) -> str:
        """The mark as it is kept: after the part that the item stood in."""
        return f"{self.part}:{self.mark}"

    def settled(self, stored: str | None) -> Checked:
        """With its second mark, which is only looked for if the first one differs from what is stored."""
        if self.content is None:
            return self
        before = (stored or "")[PART_LENGTH + 1 :]
        mark = before if before.partition(_THEN)[0] == self.mark else f"{self.mark}{_THEN}{self.content()}"
        return self._replace(mark=mark, content=None)

    def is_as(self, stored: str | None) -> bool:
        """Whether the item looks as it did when this mark was stored."""
        if stored is None:
            return False
        mine, its = (mark.rpartition(_THEN)[2] for mark in (self.mark, stored[PART_LENGTH + 1 :]))
        return mine == its


def check(found: Found) -> Checked:
    """Refuse what cannot be an item (UsageError, ValueRefused)."""
    key = check_key(found.key)
    data, form = codec.encoded(found.data)
    mark = found.mark or codec.digest(form)
    if len(mark) > MARK_LENGTH or not mark.isprintable():
        mark = short_hash(mark)
    return Checked(key, data, mark, label(found.part), found.content)


def label(part: str) -> str:
    """A part, as the marks of its items begin."""
    return short_hash(part)[:PART_LENGTH]


def short_hash(text: str) -> str:
    """Thirty-two characters that stand for a text."""
    return codec.digest_of(text.encode("utf-8", "surrogatepass"))


@dataclass(slots=True)
class LookCounts:
    """What became of the items of one look. `bad` rows were skipped."""

    found: int = 0
    new: int = 0
    changed: int = 0
    unchanged: int = 0
    vanished: int = 0
    bad: int = 0

    def __add__(self, other: LookCounts) -> LookCounts:
        mine, its = asdict(self), asdict(other)
        return LookCounts(**{name: mine[name] + its[name] for name in mine})

    def as_dict(self) -> dict[str, int]:
        return asdict(self)
