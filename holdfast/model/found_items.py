"""What a source finds: items with a mark each, parts that need not be read again, and counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated, Any, NamedTuple

import msgspec

from holdfast.model import codec
from holdfast.model.item import check_key

#: Far from what a column cannot hold.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
#: Longer marks are replaced by their hash.
MARK_LENGTH = 200
PART_LENGTH = 8
#: Separates the first mark from the second; no first mark contains it.
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
    """What was found in this part before is unchanged; the part was not read again."""

    part: str = ""


class LookedUp(NamedTuple):
    """Everything was looked up for one item of `for_each`. It is looked up again when `mark` changes."""

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
        """With its second mark, which is only computed if the first differs from the stored one."""
        if self.content is None:
            return self
        before = (stored or "")[PART_LENGTH + 1 :]
        mark = before if before.partition(_THEN)[0] == self.mark else f"{self.mark}{_THEN}{self.content()}"
        return self._replace(mark=mark, content=None)

    def is_as(self, stored: str | None) -> bool:
        """Whether the item is the same as when this mark was stored."""
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
    """The prefix of the marks of all items of a part."""
    return short_hash(part)[:PART_LENGTH]


def short_hash(text: str) -> str:
    """Thirty-two characters that stand for a text."""
    return codec.digest_of(text.encode("utf-8", "surrogatepass"))


@dataclass(slots=True)
class LookCounts:
    """The items of one look, counted. `bad` rows were skipped."""

    found: Count = 0
    new: Count = 0
    changed: Count = 0
    unchanged: Count = 0
    vanished: Count = 0
    bad: Count = 0

    def __add__(self, other: LookCounts) -> LookCounts:
        mine, its = asdict(self), asdict(other)
        return LookCounts(**{name: mine[name] + its[name] for name in mine})

    def as_dict(self) -> dict[str, int]:
        return asdict(self)
