"""examples.documents reads EPUB, PDF and HTML: those of its own library, odd ones, and ones that nobody here wrote."""

from __future__ import annotations

import importlib
import io
import pydoc
import re
from contextlib import redirect_stdout
from html import unescape
from pathlib import Path

import pytest

from examples.documents.chunking import CHARACTERS, split
from examples.documents.fakes.fake_library import (
    BROKEN_BOOK,
    LONG_BOOK,
    chapters,
    chunks_in,
    pdf_pages,
    write_book_of,
    write_epub,
    write_fake_library,
    write_html,
    write_pdf,
)
from examples.documents.fakes.fake_tidying import tidy
from examples.documents.model import joined
from examples.documents.reading import Unreadable, decode, in_pages, markdown_of, read, title_of
from examples.documents.search import search
from examples.documents.stages import where_is

#: Modules of the standard library whose documentation pydoc writes as HTML, at the time of the test.
DOCUMENTED = ("argparse", "logging", "sqlite3", "email.message")
#: HTML that Python or a package of the development tools may bring along.
BROUGHT = (("idlelib", "help.html"), ("importlinter", "ui/static/index.html"))


def pages_of(path: Path) -> str:
    return "\n\n".join(read(path).pages)


# Markdown -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("html", "markdown"),
    [
        ("<h2>One <em>two</em></h2><p>three<br>four</p>", "## One two\n\nthree four"),
        ("loose <b>words</b><p>and</p>more", "loose words\n\nand\n\nmore"),
        ("<ul><li>a<ul><li>b</li></ul></li><li><p>c</p></li></ul>", "- a\n\n- b\n\n- c"),
        ("<table><tr><th>x<th>y<tr><td>1<td>2</table>", "| x | y\n\n| 1 | 2"),
        ("<blockquote><p>a</p></blockquote>", "> a"),
        ("<script>no</script><style>no</style><nav>no</nav><p>yes</p>", "yes"),
        ("<font><p>old</p><p>pages</p></font>", "old\n\npages"),
        ("", ""),
    ],
)
def test_html_becomes_rough_markdown(html, markdown):
    assert markdown_of(html) == markdown


def test_a_page_nested_deeper_than_any_stack_is_read_all_the_same():
    assert "at the bottom" in markdown_of("<div>" * 5000 + "at the bottom" + "</div>" * 5000)


def test_a_title_is_that_of_the_head_or_the_first_heading():
    assert title_of("<title> A\n title </title><h1>no</h1>") == "A title"
    assert title_of("<h2>Only <i>this</i></h2>") == "Only this"
    assert title_of("<p>none</p>") == ""


def test_a_tidy_page_has_no_page_number_and_no_hyphen_at_a_line_end_and_its_code_is_untouched():
    rough = "The ﬁrst   har-\nbour\n\n- 12 -\n\n\n\n```\na  = 1\n12\n```\n"
    assert tidy(rough) == "The first harbour\n\n```\na  = 1\n12\n```"
    assert tidy("- a\n  - b") == "- a\n  - b"


def test_a_sentence_that_runs_over_a_page_stays_one():
    assert joined(["They went on", "and on.", "", "Then home."]) == "They went on and on.\n\nThen home."


# Files ----------------------------------------------------------------------------------------------------------------


def test_the_library_has_a_book_of_61_chunks_a_long_one_and_a_broken_one(tmp_path):
    written = {path.name: path for path in write_fake_library(tmp_path, small=4)}
    assert len(read(written[LONG_BOOK]).pages) >= 500
    assert len(split("\n\n".join(tidy(page) for page in read(written["v.epub"]).pages))) == 61
    with pytest.raises(Unreadable, match="no EPUB"):
        read(written[BROKEN_BOOK])
    for name, path in written.items():
        if name != BROKEN_BOOK:
            rough = read(path)
            assert rough.title and rough.pages, name


def test_the_same_seed_writes_the_same_bytes(tmp_path):
    written = []
    for _ in range(2):
        written.append(write_epub(tmp_path / "a.epub", "A", chapters("bees", seed=1, pages=3)).read_bytes())
    assert written[0] == written[1]


@pytest.mark.parametrize("chunks", [1, 7, 30])
def test_a_book_of_any_number_of_chunks_can_be_written(tmp_path, chunks):
    rough = read(write_book_of(chunks, tmp_path / "book.epub"))
    assert len(split(joined([tidy(page) for page in rough.pages]))) == chunks


@pytest.mark.parametrize("encoding", ["utf-8", "iso-8859-1", "utf-16"])
def test_a_chapter_is_read_in_the_encoding_it_declares(tmp_path, encoding):
    path = write_epub(tmp_path / "a.epub", "Été", ["<h1>Été</h1><p>Straße, façade, naïve</p>"], encoding)
    assert pages_of(path) == "# Été\n\nStraße, façade, naïve"
    assert read(path).title == "Été"


def test_bytes_that_declare_the_wrong_encoding_or_none_are_read_as_what_they_are_likely_to_be():
    assert decode("<p>café".encode()) == "<p>café"
    assert decode("<p>“café”".encode("windows-1252")) == "<p>“café”"
    assert decode(b'<meta charset="no-such-thing">' + "é".encode()) == '<meta charset="no-such-thing">é'
    assert decode(b'<?xml version="1.0" encoding="utf-8"?>\xe9') == '<?xml version="1.0" encoding="utf-8"?>é'


def test_headings_notes_tables_and_lists_of_a_book_arrive(tmp_path):
    text = pages_of(write_epub(tmp_path / "a.epub", "A", chapters("bread", seed=1, pages=30)))
    notes = re.findall(r'epub:type="footnote"[^>]*><p>(.*?)</p>', "".join(chapters("bread", seed=1, pages=30)))
    assert notes and all(f"\n\n{unescape(note)}" in text for note in notes)
    for part in ("| what | how | number", "\n- ", "\n> ", "\n## "):
        assert part in text, part


def test_a_pdf_has_the_pages_it_has(tmp_path):
    seen = []
    rough = read(
        write_pdf(tmp_path / "a.pdf", "A (B)", pdf_pages("clocks", seed=1, pages=3)), lambda *now: seen.append(now)
    )
    assert (rough.title, rough.format, len(rough.pages)) == ("A (B)", "PDF", 3)
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert "- 1 -" in rough.pages[0] and "- 1 -" not in tidy(rough.pages[0])


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.epub", b"", "no zip archive"),
        ("a.epub", b"PK\x05\x06" + 18 * b"\0", "no readable EPUB"),
        ("a.pdf", b"%PDF-1.4 and no more", "no readable PDF"),
        ("a.html", b"<p> </p>", "no text"),
        ("a.doc", b"x", "none of"),
        ("a.html", None, "does not exist"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(tmp_path, name, content, why):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(Unreadable, match=why):
        read(tmp_path / name)


def test_pages_are_cut_between_paragraphs_and_lose_nothing():
    text = "\n\n".join(f"paragraph {n} " + "x" * (n * 37 % 900) for n in range(60))
    pages = in_pages(text, 1000)
    assert "\n\n".join(pages) == text
    assert all(len(page) <= 1000 for page in pages)


def test_no_chunk_is_longer_than_allowed(tmp_path):
    text = markdown_of("".join(chapters("stars", seed=1, pages=20)))
    assert all(0 < len(chunk) <= CHARACTERS[1] for chunk in split(text))
    assert chunks_in(chapters("stars", seed=1, pages=20)) == len(split(tidy(text)))


# What nobody here wrote -----------------------------------------------------------------------------------------------


@pytest.fixture
def foreign(tmp_path) -> Path:
    """The documentation of some modules as pydoc writes it, and pages that installed packages bring along."""
    books = tmp_path / "foreign"
    books.mkdir()
    for name in DOCUMENTED:
        module = importlib.import_module(name)
        with redirect_stdout(io.StringIO()):
            body = pydoc.html.page(pydoc.describe(module), pydoc.html.document(module, name))
        (books / f"{name}.html").write_text(body, encoding="utf-8")
    for package, path in BROUGHT:
        try:
            found = Path(str(importlib.import_module(package).__file__)).parent / path
        except ImportError:
            continue
        if found.is_file():
            (books / f"{package}.html").write_bytes(found.read_bytes())
    return books


@pytest.mark.req("D3", "D5")
def test_documents_that_nobody_here_wrote_go_all_the_way(scene_on, foreign):
    scene = scene_on(books=foreign)
    scene.add()
    scene.run()
    names = sorted(path.name for path in foreign.iterdir())
    assert len(names) >= len(DOCUMENTED) >= 3
    for name in names:
        where = where_is(scene.app, name)
        assert where.stage == "complete", (name, where.error)
        assert scene.chunks(name)
    assert len(scene.chunks("argparse.html")) > 20
    for key, title, _format, pages, markdown, _ready in scene.rows()["documents"]:
        assert title and pages >= 1 and len(markdown) > 100, key
        prose = re.sub(r"```.*?```|`[^`]*`", "", markdown, flags=re.DOTALL)
        assert not re.search(r"</?(?:div|span|td|tr|table|font|body)\b", prose), key
    best = search(scene.url, "parsing command line options and arguments", 3)
    assert best[0].document == "argparse.html"


def test_one_folder_of_html_in_three_encodings_comes_to_the_same_words(tmp_path):
    texts = set()
    for encoding in ("utf-8", "windows-1252", "utf-16"):
        texts.add(pages_of(write_html(tmp_path / f"{encoding}.html", "salt", seed=1, encoding=encoding)))
    assert len(texts) == 1 and "Straße" in texts.pop()
