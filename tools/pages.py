"""The Markdown pages of the repository: which there are, in which order they are read, and what they link to.

The order is that of docs/README.md, so that a reader of the files and a reader of the site see the same contents.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONTENTS = "docs/README.md"

_FENCE = re.compile(r"^(`{3,}|~{3,}).*?^\1`*[ \t]*$", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)
_LINK = re.compile(r"(?<!\\)\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"")
_ENTRY = re.compile(r"^- \[([^\]]+)\]\(([^)]+)\)")


@dataclass(frozen=True)
class Section:
    """A heading of the contents, with the pages and the sections below it."""

    title: str
    entries: list[tuple[str, str] | Section] = field(default_factory=list)

    def pages(self) -> Iterator[tuple[str, str]]:
        """The title and the path of every page, from the root of the repository."""
        for one in self.entries:
            if isinstance(one, Section):
                yield from one.pages()
            else:
                yield one


def contents(root: Path = ROOT) -> list[Section]:
    """The sections of docs/README.md."""
    sections: list[Section] = []
    for line in (root / CONTENTS).read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            sections.append(Section(line[3:]))
        elif line.startswith("### "):
            sections[-1].entries.append(Section(line[4:]))
        elif entry := _ENTRY.match(line):
            last = sections[-1].entries[-1] if sections[-1].entries else None
            section = last if isinstance(last, Section) else sections[-1]
            section.entries.append((entry[1], resolve(CONTENTS, entry[2])))
    return sections


def all_pages(root: Path = ROOT) -> list[str]:
    """Every page that readers may open: those of the root, of docs, of the examples and of the benchmarks."""
    found = [*root.glob("*.md"), *(root / "docs").rglob("*.md"), *(root / "benchmarks").glob("*.md")]
    found += (root / "examples").glob("*/*.md")
    return sorted(file.relative_to(root).as_posix() for file in found)


def resolve(page: str, target: str) -> str:
    """The path that a link of a page leads to, from the root of the repository."""
    parts: list[str] = []
    for part in [*page.split("/")[:-1], *target.split("/")]:
        if part == "..":
            # Beyond the root nothing can be found, and the link is reported.
            parts = parts[:-1] if parts else ["..", *parts]
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)


def prose(text: str) -> str:
    """A page without its fenced blocks and its code, in which brackets are not links."""
    return re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", _FENCE.sub("", text), flags=re.DOTALL)


def links(text: str) -> list[str]:
    """What a page links to, pictures included."""
    return [one or other for one, other in _LINK.findall(prose(text))]


def anchors(text: str) -> set[str]:
    """The anchors that a forge gives to the headings of a page."""
    found: dict[str, int] = {}
    for heading in _HEADING.findall(_FENCE.sub("", text)):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
        if found[slug]:
            found[f"{slug}-{found[slug]}"] = 0
    return set(found)
