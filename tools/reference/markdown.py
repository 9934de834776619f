"""How reference pages write Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

MADE = "<!-- Made by `make reference` from the code. Changes belong there. -->"


def head(title: str, *paragraphs: str) -> list[str]:
    """The beginning of a page. Paragraphs may be written over several lines."""
    return [f"# {title}", "", MADE, "", *(line for text in paragraphs for line in (" ".join(text.split()), ""))]


def table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table, with an empty line behind it."""
    lines = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    return [*lines, *(f"| {' | '.join(cell(text) for text in row)} |" for row in rows), ""]


def cell(text: str) -> str:
    """A text within one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def first_sentence(text: str | None) -> str:
    """The beginning of a docstring, on one line."""
    paragraph = (text or "").strip().split("\n\n")[0]
    line = " ".join(paragraph.split())
    sentence = re.match(r"(.+?[^.](?:\.|:$))(?=\s[A-Z`]|$)", line)
    return (sentence[1] if sentence else line).removesuffix(":")


def finished(lines: Sequence[str]) -> str:
    """A page from its lines, with one newline at its end."""
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip("\n") + "\n"
