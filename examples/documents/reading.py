"""Opening a document: its title, and its text as rough Markdown, page by page.

A PDF has pages. An EPUB or an HTML file has none, so a page there is about 1,800 characters, cut between paragraphs.
A file that cannot be read is `Unreadable`, with the reason; no money has been spent on it by then.
"""

from __future__ import annotations

import re
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selectolax.lexbor import LexborHTMLParser

PAGE_CHARACTERS = 1800
FORMATS = {".epub": "EPUB", ".pdf": "PDF", ".html": "HTML", ".htm": "HTML", ".xhtml": "HTML"}

#: Told after each part of the file: how many of how many are read.
Progress = Callable[[int, int], None]


class Unreadable(Exception):
    """The file is not what its name says, or has no text."""


@dataclass(frozen=True)
class Rough:
    title: str
    format: str
    pages: list[str]


def read(path: Path, progress: Progress = lambda done, total: None) -> Rough:
    """The document in a file, whatever of the three it is."""
    format = FORMATS.get(path.suffix.lower())
    if format is None:
        raise Unreadable(f"{path.name}: {path.suffix or 'a file without suffix'} is none of {', '.join(FORMATS)}")
    if not path.is_file():
        raise Unreadable(f"{path} does not exist")
    read_format = {"EPUB": _epub, "PDF": _pdf, "HTML": _html}[format]
    try:
        title, pages = read_format(path, progress)
    except Unreadable:
        raise
    except Exception as error:
        # Three parsers, and files that nobody has checked: whatever they raise is about the file.
        raise Unreadable(f"{path.name} is no readable {format}: {type(error).__name__}: {error}") from error
    pages = [page for page in pages if page.strip()]
    if not pages:
        raise Unreadable(f"{path.name}: there is no text in it")
    return Rough(_SPACES.sub(" ", title).strip() or path.stem, format, pages)


def _epub(path: Path, progress: Progress) -> tuple[str, list[str]]:
    from ebooklib import epub

    if not zipfile.is_zipfile(path):
        raise Unreadable(f"{path.name} is no EPUB: it is no zip archive, or its end is missing")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        book = epub.read_epub(str(path), options={"ignore_ncx": True})
    chapters = [book.get_item_with_id(name) for name, *_ in book.spine]
    texts = []
    for n, chapter in enumerate(chapters, start=1):
        if chapter is not None and not isinstance(chapter, epub.EpubNav):
            texts.append(markdown_of(decode(_content(chapter))))
        progress(n, len(chapters))
    titles = book.get_metadata("DC", "title")
    return (titles[0][0] if titles else ""), in_pages("\n\n".join(filter(None, texts)))


def _content(chapter: Any) -> bytes:
    """The file as it is in the archive: `get_content` of a chapter would have parsed it, and guessed its encoding."""
    content = chapter.content
    return content if isinstance(content, bytes) else str(content).encode()


def _pdf(path: Path, progress: Progress) -> tuple[str, list[str]]:
    import logging

    from pypdf import PdfReader

    logging.getLogger("pypdf").setLevel(logging.ERROR)
    reader = PdfReader(path)
    pages = []
    for n, page in enumerate(reader.pages, start=1):
        pages.append(page.extract_text())
        progress(n, len(reader.pages))
    title = reader.metadata.title if reader.metadata else None
    return str(title or ""), pages


def _html(path: Path, progress: Progress) -> tuple[str, list[str]]:
    html = decode(path.read_bytes())
    pages = in_pages(markdown_of(html))
    progress(1, 1)
    return title_of(html), pages


# Parts ----------------------------------------------------------------------------------------------------------------

_SPACES = re.compile(r"\s+")
_DECLARED = re.compile(rb"""<\?xml[^>]*encoding=["']([\w.:-]+)|<meta[^>]+charset=["']?([\w.:-]+)""", re.IGNORECASE)
_BYTE_ORDER = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_DROPPED = "head, script, style, template, nav, noscript, svg, button, form, iframe, math"
#: What is a paragraph of its own, and how Markdown begins it.
_BLOCKS = {
    **{f"h{n}": "#" * n + " " for n in range(1, 7)},
    "li": "- ",
    "blockquote": "> ",
    "p, div, pre, table, caption, tr, ul, ol, dt, dd, hr, aside, section, article, figure, figcaption": "",
}
#: A character that no text has: it stands where a paragraph begins or ends.
_BREAK = "\ue000"


def markdown_of(html: str) -> str:
    """The text of a page as rough Markdown: paragraphs, headings, items of lists, cells of tables. To do better is what the
    model is paid for."""
    body = LexborHTMLParser(html).body
    if body is None:
        return ""
    for node in body.css(_DROPPED):
        node.decompose()
    for node in body.css("td, th, br"):
        node.insert_before(" " if node.tag == "br" else " | ")
    for tags, mark in _BLOCKS.items():
        for node in body.css(tags):
            node.insert_before(_BREAK + mark)
            node.insert_after(_BREAK)
    # A mark belongs to the first words behind it, in however many blocks they lie.
    text = re.sub(rf"((?:#+|-|>) )[\s{_BREAK}]+", r"\1", body.text())
    return "\n\n".join(filter(None, (_SPACES.sub(" ", part).strip() for part in text.split(_BREAK))))


def title_of(html: str) -> str:
    """The page's title, or its first heading."""
    tree = LexborHTMLParser(html)
    found = [node.text() for node in map(tree.css_first, ("title", "h1", "h2")) if node is not None]
    return next((text for one in found if (text := _SPACES.sub(" ", one).strip())), "")


def decode(content: bytes) -> str:
    """Bytes of a page as text: by its mark, by what it declares, as UTF-8, or as the encoding of old pages."""
    for mark, encoding in _BYTE_ORDER.items():
        if content.startswith(mark):
            return content.decode(encoding, errors="replace")
    declared = _DECLARED.search(content[:2048])
    names = [(declared.group(1) or declared.group(2)).decode("ascii")] if declared else []
    for encoding in [*names, "utf-8"]:
        try:
            return content.decode(encoding)
        except (UnicodeDecodeError, LookupError):
            continue
    return content.decode("windows-1252", errors="replace")


def in_pages(text: str, characters: int = PAGE_CHARACTERS) -> list[str]:
    """Cut a text into pages, between paragraphs where possible."""
    pages: list[str] = []
    page: list[str] = []
    size = 0
    for block in text.split("\n\n"):
        if page and size + len(block) > characters:
            pages.append("\n\n".join(page))
            page, size = [], 0
        page.append(block)
        size += len(block) + 2
    return [*pages, "\n\n".join(page)] if page else pages
