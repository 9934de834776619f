"""HTML to Markdown: headings, emphasis, links, images, lists, quotations, code, tables, notes. Everything else is text.

The tree is walked once. Blocks become paragraphs of Markdown, what stands inside them becomes one line.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

from selectolax.lexbor import LexborHTMLParser, LexborNode

_HEADINGS = {f"h{n}": "#" * n for n in range(1, 7)}
_DROPPED = {"head", "script", "style", "template", "nav", "noscript", "svg", "button", "form", "iframe", "math"}
_INLINE = {
    "-text", "a", "abbr", "b", "bdi", "bdo", "big", "br", "cite", "code", "data", "del", "dfn", "em", "font", "i", "img",
    "ins", "kbd", "label", "mark", "q", "rp", "rt", "ruby", "s", "samp", "small", "span", "strike", "strong", "sub", "sup",
    "time", "tt", "u", "var", "wbr",
}  # fmt: skip
_AROUND = {"b": "**", "strong": "**", "i": "*", "em": "*", "cite": "*", "dfn": "*", "var": "*", "del": "~~", "s": "~~"}
_CODE = {"code", "kbd", "samp", "tt"}
_SPACE = re.compile(r"[ \t\r\n\f\u00a0]+")
_SPECIAL = re.compile(r"([\\`*_\[\]])")
_DEEPEST = 200


def markdown_of(html: str) -> str:
    """The body of a page as Markdown, blocks parted by empty lines."""
    body = LexborHTMLParser(html).body
    return "" if body is None else "\n\n".join(_blocks(body, 0))


def title_of(html: str) -> str:
    """The page's title, or its first heading."""
    tree = LexborHTMLParser(html)
    for choice in ("title", "h1", "h2"):
        found = tree.css_first(choice)
        if found is not None and (text := _SPACE.sub(" ", found.text()).strip()):
            return text
    return ""


def _blocks(node: LexborNode, depth: int) -> Iterator[str]:
    """The blocks inside a node. Inline content that lies between blocks is a paragraph of its own."""
    if depth > _DEEPEST:
        text = _SPACE.sub(" ", node.text()).strip()
        if text:
            yield text
        return
    line: list[str] = []
    for child in _children(node):
        if child.tag in _INLINE and not _holds_blocks(child):
            line.append(_inline(child))
            continue
        yield from _paragraph(line)
        line = []
        if child.tag not in _DROPPED and not _is_special(child):
            yield from _block(child, depth + 1)
    yield from _paragraph(line)


def _block(node: LexborNode, depth: int) -> Iterator[str]:
    tag = node.tag
    if tag in _HEADINGS:
        text = _line(node).replace("\n", " ")
        if text:
            yield f"{_HEADINGS[tag]} {text}"
    elif tag == "hr":
        yield "---"
    elif tag == "pre":
        code = node.text().strip("\n")
        fence = "````" if "```" in code else "```"
        if code.strip():
            yield f"{fence}\n{code}\n{fence}"
    elif tag in ("ul", "ol"):
        yield from _list(node, depth)
    elif tag == "table":
        yield from _table(node, depth)
    elif tag == "blockquote" or (tag == "aside" and "footnote" not in _kind(node)):
        inner = "\n\n".join(_blocks(node, depth))
        if inner:
            yield "\n".join(f"> {line}".rstrip() for line in inner.split("\n"))
    elif tag == "aside":
        inner = " ".join(_blocks(node, depth)).replace("\n", " ")
        if inner:
            yield f"[^{_mark(node.attributes.get('id') or 'note')}]: {inner}"
    elif tag == "dt":
        yield f"**{_line(node).strip('*')}**"
    elif tag == "figcaption":
        yield f"*{_line(node).strip('*')}*"
    else:
        yield from _blocks(node, depth)


def _list(node: LexborNode, depth: int) -> Iterator[str]:
    items = []
    start = node.attributes.get("start") or "1"
    number = int(start) if start.isdigit() else 1
    for child in _children(node):
        if child.tag != "li":
            continue
        mark = f"{number}." if node.tag == "ol" else "-"
        number += 1
        inner = list(_blocks(child, depth))
        if inner:
            loose = any(not block.startswith(("- ", "1. ")) for block in inner[1:])
            body = ("\n\n" if loose else "\n").join(inner)
            items.append(f"{mark} " + textwrap.indent(body, " " * (len(mark) + 1)).lstrip(" "))
    if items:
        yield "\n".join(items)


def _table(node: LexborNode, depth: int) -> Iterator[str]:
    rows = []
    for row in node.css("tr"):
        cells = [cell for cell in _children(row) if cell.tag in ("td", "th")]
        texts = [" ".join(_blocks(cell, depth)).replace("\n", " ").replace("|", "\\|") for cell in cells]
        if any(texts):
            rows.append(texts)
    if not rows:
        return
    width = max(len(row) for row in rows)
    if width == 1:
        # A table of one column only lays the page out.
        yield from (row[0] for row in rows)
        return
    lines = ["| " + " | ".join(row + [""] * (width - len(row))) + " |" for row in rows]
    caption = node.css_first("caption")
    if caption is not None and (text := _line(caption)):
        yield f"*{text.strip('*')}*"
    yield "\n".join([lines[0], "|" + " --- |" * width, *lines[1:]])


def _paragraph(parts: list[str]) -> Iterator[str]:
    text = re.sub(r"[ ]*\n[ ]*", "\n", re.sub(r" {2,}", " ", "".join(parts))).strip()
    if text:
        # What would be read as a heading, a list or a quotation at the start of a line is none.
        yield re.sub(r"^(#{1,6} |[-+>] |\d+[.)] )", r"\\\1", text)


def _line(node: LexborNode) -> str:
    return re.sub(r" {2,}", " ", "".join(_inline(child) for child in _children(node))).strip()


def _inline(node: LexborNode) -> str:
    tag = node.tag
    if tag == "-text":
        return _SPECIAL.sub(r"\\\1", _SPACE.sub(" ", node.text_content or ""))
    if tag == "br":
        return "\n"
    if tag == "img":
        alt = _SPACE.sub(" ", node.attributes.get("alt") or "").strip()
        source = node.attributes.get("src") or ""
        return f"![{alt}]({source})" if alt and not source.startswith("data:") else alt
    if tag in _DROPPED or _is_special(node):
        return ""
    if tag in _CODE:
        code = _SPACE.sub(" ", node.text()).strip()
        return f"`{code}`" if code and "`" not in code else code
    inner = "".join(_inline(child) for child in _children(node))
    if tag == "a":
        return _link(node, inner)
    if tag in _AROUND and inner.strip():
        before = " " if inner[0].isspace() else ""
        after = " " if inner[-1].isspace() else ""
        mark = _AROUND[tag]
        # Marks do not nest in themselves: <b><strong>…</strong></b> is bold once.
        core = inner.strip()
        return inner if core.startswith(mark) else f"{before}{mark}{core}{mark}{after}"
    return inner


def _link(node: LexborNode, inner: str) -> str:
    target = node.attributes.get("href") or ""
    text = inner.strip()
    if "noteref" in _kind(node):
        return f"[^{_mark(target.rpartition('#')[2])}]"
    if not text or not target or target.startswith(("#", "javascript:", "data:")):
        return inner
    return f"[{text}]({target})"


def _kind(node: LexborNode) -> str:
    attributes = node.attributes
    return f"{attributes.get('epub:type') or ''} {attributes.get('role') or ''}"


def _mark(text: str) -> str:
    return re.sub(r"[^\w-]+", "-", text) or "note"


def _holds_blocks(node: LexborNode) -> bool:
    """Old pages put paragraphs into <font> and <a>."""
    if node.tag in ("-text", "br", "img"):
        return False
    return any(
        not _is_special(inner) and inner.tag not in _INLINE and inner.tag not in _DROPPED
        for inner in node.traverse()
        if inner.mem_id != node.mem_id
    )


def _is_special(node: LexborNode) -> bool:
    """Text, a comment, a declaration: no element."""
    return (node.tag or "-").startswith("-")


def _children(node: LexborNode) -> Iterator[LexborNode]:
    child = node.child
    while child is not None:
        yield child
        child = child.next
