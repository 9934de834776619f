"""A fake library to try things on: EPUBs of any size with chapters, notes and tables, a PDF, two HTML pages in odd
encodings, one broken file, one of 500 pages, and the book that has 61 chunks.

    python -m examples.documents library books
"""

from __future__ import annotations

import zipfile
from html import escape
from pathlib import Path
from xml.sax.saxutils import quoteattr

from examples.documents.chunking import split
from examples.documents.fakes.fake_prose import TRADES, FakeWriter
from examples.documents.fakes.fake_tidying import tidy
from examples.documents.model import joined
from examples.documents.reading import in_pages, markdown_of

BOOK_OF_61 = "v.epub"
LONG_BOOK = "long.epub"
BROKEN_BOOK = "broken.epub"
_CONTAINER = (
    '<?xml version="1.0"?><container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
    '<rootfile full-path="book.opf" media-type="application/oebps-package+xml"/></rootfiles></container>'
)


def write_fake_library(folder: Path, *, long_pages: int = 500, small: int = 10) -> list[Path]:
    """A small library; the paths of its files."""
    folder.mkdir(parents=True, exist_ok=True)
    trades = list(TRADES)
    written = []
    for n in range(small):
        trade = trades[n % len(trades)]
        path = folder / f"{trade}-{n // len(trades) + 1}.epub"
        encoding = "iso-8859-1" if n % 4 == 3 else "utf-8"
        written.append(write_epub(path, TRADES[trade].title, chapters(trade, seed=n, pages=12 + 5 * (n % 5)), encoding))
    written.append(write_epub(folder / LONG_BOOK, "A Long Voyage", chapters("harbours", seed=500, pages=long_pages)))
    written.append(write_book_of(61, folder / BOOK_OF_61))
    written.append(write_pdf(folder / "bridges.pdf", "How Bridges Stand", pdf_pages("bridges", seed=3, pages=9)))
    written.append(write_html(folder / "salt.html", "salt", seed=4, encoding="windows-1252"))
    written.append(write_html(folder / "stars.html", "stars", seed=5, encoding="utf-16"))
    whole = folder / "half.tmp"
    write_epub(whole, "Lost", chapters("clocks", seed=6, pages=5))
    written.append(folder / BROKEN_BOOK)
    written[-1].write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    whole.unlink()
    return written


# Text -----------------------------------------------------------------------------------------------------------------


def chapters(trade: str, *, seed: int, pages: int) -> list[str]:
    """Chapters as XHTML bodies, together about so many pages long."""
    writer = FakeWriter(trade, seed)
    made: list[str] = []
    left = pages * 1650
    while left > 0:
        body = chapter(writer, len(made) + 1, min(left, writer.chance.randint(9_000, 22_000)))
        left -= len(body)
        made.append(body)
    return made


def chapter(writer: FakeWriter, number: int, characters: int) -> str:
    chance = writer.chance
    parts = [f"<h1>{number}. {escape(writer.heading())}</h1>"]
    notes: list[str] = []
    size = 0
    while size < characters:
        what = chance.random()
        text = escape(writer.paragraph())
        if what < 0.06:
            parts.append(f"<h2>{escape(writer.heading())}</h2>")
        elif what < 0.10:
            rows = "".join(
                "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in writer.row()) + "</tr>" for _ in range(4)
            )
            head = f"<caption>{escape(writer.heading())}</caption><tr><th>what</th><th>how</th><th>number</th></tr>"
            parts.append(f"<table>{head}{rows}</table>")
        elif what < 0.13:
            parts.append(f"<figure><figcaption>{escape(writer.heading())}</figcaption></figure>")
        elif what < 0.17:
            items = "".join(f"<li>{escape(writer.sentence())}</li>" for _ in range(3))
            parts.append(f"<ul>{items}</ul>")
        elif what < 0.20:
            parts.append(f"<blockquote><p>{escape(writer.sentence())}</p></blockquote>")
        elif what < 0.27:
            mark = f"n{number}-{len(notes) + 1}"
            notes.append(f'<aside epub:type="footnote" id="{mark}"><p>{escape(writer.sentence())}</p></aside>')
            text += f'<a epub:type="noteref" href="#{mark}">{len(notes)}</a>'
        elif what > 0.95:
            text += " They call it <em>l’été fini</em>, the end of the caf&#233;’s year."
        parts.append(f"<p>{text}</p>")
        size = sum(map(len, parts))
    return "\n".join([*parts, *notes])


def chunks_in(bodies: list[str]) -> int:
    """How many chunks a book of these chapters comes to."""
    pages = in_pages("\n\n".join(markdown_of(page_of("", body)) for body in bodies))
    return len(split(joined([tidy(page) for page in pages])))


def write_book_of(chunks: int, path: Path, trade: str = "mountains") -> Path:
    """A book that comes to exactly so many chunks: it grows by a chapter, and the last by a paragraph, until it does."""
    writer = FakeWriter(trade, chunks)
    bodies: list[str] = []
    while (now := chunks_in(bodies) if bodies else 0) < chunks:
        if not bodies or chunks - now > 12:
            bodies.append(chapter(writer, len(bodies) + 1, min(6_000, 500 * chunks)))
        else:
            bodies[-1] += f"\n<p>{escape(writer.paragraph(6))}</p>"
    if now != chunks:
        raise RuntimeError(f"a book of {chunks} chunks cannot be made: it came to {now}")
    return write_epub(path, TRADES[trade].title, bodies)


# Files ----------------------------------------------------------------------------------------------------------------


def page_of(title: str, body: str, encoding: str = "utf-8") -> str:
    return (
        f'<?xml version="1.0" encoding="{encoding}"?>\n<html xmlns="http://www.w3.org/1999/xhtml" '
        f'xmlns:epub="http://www.idpf.org/2007/ops"><head><title>{escape(title)}</title></head><body>{body}</body></html>'
    )


def write_epub(path: Path, title: str, bodies: list[str], encoding: str = "utf-8") -> Path:
    """An EPUB 3, every byte of which is the same for the same text."""
    names = [f"chapter-{n}.xhtml" for n in range(1, len(bodies) + 1)]
    items = "".join(
        f'<item id="c{n}" href={quoteattr(name)} media-type="application/xhtml+xml"/>' for n, name in enumerate(names)
    )
    spine = "".join(f'<itemref idref="c{n}"/>' for n in range(len(names)))
    links = "".join(f"<li><a href={quoteattr(name)}>{n}</a></li>" for n, name in enumerate(names, start=1))
    package = (
        '<?xml version="1.0" encoding="utf-8"?>'
        '<package xmlns="http://www.idpf.org/2007/opf" version="3.0" unique-identifier="id">'
        f'<metadata xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:identifier id="id">{path.stem}</dc:identifier>'
        f"<dc:title>{escape(title)}</dc:title><dc:language>en</dc:language></metadata><manifest>"
        '<item id="nav" href="nav.xhtml" media-type="application/xhtml+xml" properties="nav"/>'
        f"{items}</manifest><spine>{spine}</spine></package>"
    )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        files: dict[str, bytes] = {
            "mimetype": b"application/epub+zip",
            "META-INF/container.xml": _CONTAINER.encode(),
            "book.opf": package.encode(),
            "nav.xhtml": page_of(title, f'<nav epub:type="toc"><ol>{links}</ol></nav>').encode(),
        }
        for name, body in zip(names, bodies, strict=True):
            files[name] = page_of(title, body, encoding).encode(encoding, errors="xmlcharrefreplace")
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content, None if name == "mimetype" else zipfile.ZIP_DEFLATED)
    return path


def write_html(path: Path, trade: str, *, seed: int, encoding: str) -> Path:
    body = "".join(chapters(trade, seed=seed, pages=8))
    quoted = "<p>“Café”, “Straße” and “dépôt” are words that an old page spells in an encoding of its own.</p>"
    declared = "" if encoding == "utf-16" else f'<meta charset="{encoding}">'
    html = f"<!DOCTYPE html><html><head>{declared}<title>{TRADES[trade].title}</title></head><body>{quoted}{body}</body></html>"
    path.write_bytes(html.encode(encoding, errors="xmlcharrefreplace"))
    return path


def pdf_pages(trade: str, *, seed: int, pages: int) -> list[list[str]]:
    """Pages of lines, broken in the middle of sentences, each with its number below."""
    writer = FakeWriter(trade, seed)
    words: list[str] = []
    made = []
    for number in range(1, pages + 1):
        lines: list[str] = []
        while len(lines) < 38:
            line = ""
            while len(line) < 78:
                words = words or writer.paragraph().split()
                line = f"{line} {words.pop(0)}".strip()
            lines.append(line)
        made.append([*lines, "", f"- {number} -"])
    return made


def write_pdf(path: Path, title: str, pages: list[list[str]]) -> Path:
    """A PDF with one font and nothing but lines of text."""

    def text(line: str) -> str:
        return line.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")

    objects = [b"<< /Type /Catalog /Pages 2 0 R >>", b"", b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"]
    objects.append(f"<< /Title ({text(title)}) >>".encode("latin-1"))
    kids = []
    for lines in pages:
        drawn = "\n".join(f"({text(line)}) Tj T*" for line in lines)
        stream = f"BT /F1 10 Tf 50 790 Td 14 TL\n{drawn}\nET".encode("latin-1", errors="replace")
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream))
        fonts = "/Resources << /Font << /F1 3 0 R >> >>"
        page = f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents {len(objects)} 0 R {fonts} >>"
        objects.append(page.encode())
        kids.append(f"{len(objects)} 0 R")
    objects[1] = f"<< /Type /Pages /Kids [{' '.join(kids)}] /Count {len(kids)} >>".encode()
    out = bytearray(b"%PDF-1.4\n")
    places = []
    for number, body in enumerate(objects, start=1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    start = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % place for place in places)
    out += b"trailer\n<< /Size %d /Root 1 0 R /Info 4 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, start)
    path.write_bytes(out)
    return path
