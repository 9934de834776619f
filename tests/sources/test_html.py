"""Links out of a page: those that a selector chooses, each an address written one way."""

from __future__ import annotations

import sys

import pytest

from holdfast.errors import UsageError
from holdfast.sources import SourceFailed

pytestmark = pytest.mark.req("J20")

PAGE = """<!doctype html><html><body><nav><a href="/about">About</a></nav>
<article><h2><a href="/Ferry%7Eone?b=1#comments">The <b>ferry</b>
  is late</a></h2><p><a href="/elsewhere">more</a></p></article>
<article><h2><a href="HTTPS://Example.org:443/two">Two</a></h2></article>
<article><h2><a href="mailto:desk@example.org">Write</a> <a href="javascript:void(0)">x</a> <a>nowhere</a></h2></article>
<article><h2><a href="http://[broken/">Broken</a> <a href="/Ferry~one?b=1">again</a></h2></article></body></html>"""


def html(url: str, **more):
    return {"html": url, "allow_private": True, **more}


def test_a_selector_chooses_the_links_of_a_page(look, site):
    looked = look(html(site.put("/news", PAGE), links="article h2 > a"))
    one = f"{site.url}/Ferry~one?b=1"
    assert [(found.key, found.data) for found in looked.all] == [
        (one, {"url": f"{site.url}/Ferry%7Eone?b=1#comments", "text": "The ferry is late"}),
        ("https://example.org/two", {"url": "HTTPS://Example.org:443/two", "text": "Two"}),
        (one, {"url": one, "text": "again"}),
    ]
    assert (looked.bad, looked.source.bad_example) == (2, f"{site.url}/news: <a> without an address: ''")


def test_without_a_selector_every_link_is_one(look, site):
    assert len(look(html(site.put("/news", PAGE))).items) == 4


def test_a_page_may_say_where_its_links_begin(look, site):
    page = '<head><base href="/archive/2026/"></head><a href="one">1</a><area href="../two">'
    assert list(look(html(site.put("/news", page), links="[href]:not(base)")).items) == [
        f"{site.url}/archive/2026/one",
        f"{site.url}/archive/two",
    ]


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        ('<a href="/ü">Fähre</a>'.encode(), {}),
        ('<a href="/ü">Fähre</a>'.encode("latin-1"), {"Content_Type": "text/html; charset=ISO-8859-1"}),
        ('<meta charset="latin-1"><a href="/ü">Fähre</a>'.encode("latin-1"), {}),
        ('<meta charset="rot13"><a href="/ü">Fähre</a>'.encode(), {"Content_Type": "text/html; charset=klingon"}),
    ],
)
def test_a_page_is_read_in_its_encoding(look, site, body, headers):
    looked = look(html(site.put("/news", body, **headers)))
    assert [(found.key, found.data["text"]) for found in looked.all] == [(f"{site.url}/%C3%BC", "Fähre")]


def test_a_page_that_has_not_changed_is_not_read(look, site):
    url = site.put("/news", PAGE, etag=True)
    look(html(url))
    assert look(html(url)).kept == [""]


@pytest.mark.parametrize("page", ["", "<h2>No links</h2>", "\0" * 1000, "nonsense", '{"a": 1}'])
def test_a_page_on_which_nothing_matches_has_failed(look, site, page):
    with pytest.raises(SourceFailed, match=r"/news has nothing that 'h2 a' matches$"):
        look(html(site.put("/news", page), links="h2 a"))


@pytest.mark.fault(80)
@pytest.mark.parametrize("element", ["<div>", "<b>", "<div></b>", "<DIV><i></I>"])
def test_a_page_that_is_nested_without_end_is_refused_before_it_is_parsed(look, site, element):
    """The parser would take hours, and nothing could interrupt it."""
    with pytest.raises(SourceFailed, match=r"/news is nested deeper than 2000 levels$"):
        look(html(site.put("/news", element * 300_000), links="a"))


def test_a_long_page_is_not_taken_for_a_deep_one(look, site):
    page = "<ul>" + "".join(f"<li><p><img><a href='/{n}'>{n}</a>" for n in range(5000)) + "</ul>"
    assert len(look(html(site.put("/news", page))).items) == 5000


@pytest.mark.parametrize("selector", ["h2 >", "[", "a::nothing", ":has("])
def test_a_selector_that_is_none_is_refused_when_it_is_read(look, selector):
    with pytest.raises(UsageError, match=r"^test: source 's': links: .* is no CSS selector, like 'article h2 a'$"):
        look.open(html("https://example.org/", links=selector))


def test_without_its_package_a_file_can_be_read_and_a_look_says_what_to_install(look, site, monkeypatch):
    monkeypatch.setitem(sys.modules, "selectolax.lexbor", None)
    given = html(site.put("/news", PAGE))
    look.open(given)
    with pytest.raises(SourceFailed, match=r"html needs a package that is not there: pip install selectolax$"):
        look(given)
