"""What the fake model does with a page: ligatures, hyphens at line ends, page numbers, spaces. Standard library only."""

from __future__ import annotations

import re

_LIGATURES = str.maketrans(
    {"ﬁ": "fi", "ﬂ": "fl", "ﬀ": "ff", "ﬃ": "ffi", "ﬄ": "ffl", "\u00ad": "", "\u200b": "", "\u00a0": " "}
)
#: A line that is nothing but a page number, with or without dashes.
_NUMBER = re.compile(r"^[\s–—-]*(?:page\s+)?\d{1,4}[\s–—-]*$", re.IGNORECASE)
_HYPHEN = re.compile(r"(?<=[a-zà-ÿ])-\n(?=[a-zà-ÿ])")
_SPACES = re.compile(r"[ \t]{2,}")
_EMPTY = re.compile(r"\n{3,}")
_FENCE = re.compile(r"(^```.*?^```[ ]*$)", re.DOTALL | re.MULTILINE)


def tidy(page: str) -> str:
    """A page of rough Markdown as a careful reader would have typed it. Code stays as it is."""
    return "".join(part if part.startswith("```") else _tidy(part) for part in _FENCE.split(page)).strip()


def _tidy(text: str) -> str:
    text = text.translate(_LIGATURES)
    lines = [line.rstrip() for line in text.split("\n") if not _NUMBER.match(line)]
    return _EMPTY.sub("\n\n", _HYPHEN.sub("", "\n".join(_spaced(line) for line in lines)))


def _spaced(line: str) -> str:
    """Spaces at the start of a line are the nesting of a list."""
    inner = line.lstrip(" ")
    return line[: len(line) - len(inner)] + _SPACES.sub(" ", inner)
