"""From a page to an article, with selectolax.lexbor; and from a text to its words."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from selectolax.lexbor import LexborHTMLParser, LexborNode

#: What is on a page beside its article.
_AROUND = "nav, aside, footer, script, style, .visits"
_WORD = re.compile(r"[^\W\d_]{3,}")
_COMMON = frozenset(
    word
    for line in (
        "the and for with that this from are was were has have had but not you all any can its his her their they them",
        "which will would there been into than then also more most over said says when who what where while about after",
    )
    for word in line.split()
)


@dataclass
class Article:
    title: str
    section: str
    published: str
    paragraphs: list[str]


def read_article(html: str) -> Article | None:
    """Title, section, date and paragraphs; None if there is no article on the page."""
    page = LexborHTMLParser(html)
    article = page.css_first("article")
    if article is None:
        return None
    for node in article.css(_AROUND):
        node.decompose()
    paragraphs = [text for node in article.css("p") if (text := _text(node))]
    if not paragraphs:
        return None
    time = article.css_first("time")
    return Article(
        _text(article.css_first("h1") or page.css_first("title")) or "(without a title)",
        str(article.attributes.get("data-section") or ""),
        str((time.attributes.get("datetime") if time is not None else "") or ""),
        paragraphs,
    )


def _text(node: LexborNode | None) -> str:
    return "" if node is None else " ".join(node.text(separator=" ").split())


def words_of(text: str) -> Counter[str]:
    """How often each word occurs that says something."""
    return Counter(word for word in _WORD.findall(text.lower()) if word not in _COMMON)
