"""Shapes of a drawing: boxes, arrows and texts in the colours of the scheme."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

STYLE = """
  .paper { fill: #ffffff; stroke: #d0d4dc } text { font: 14px system-ui, sans-serif; fill: #1b1f27 }
  .small { font-size: 12px; fill: #4d5563 } .line { stroke: #4d5563; fill: none; stroke-width: 1.5 } .head { fill: #4d5563 }
  .open { fill: #e6eefc; stroke: #2f62c4 } .good { fill: #e2f4e6; stroke: #23803a }
  .bad { fill: #fde8e6; stroke: #c03221 } .still { fill: #eef0f3; stroke: #6b7280 }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #14171d; stroke: #394150 } text { fill: #e8eaef } .small { fill: #a9b1bf }
    .line { stroke: #a9b1bf } .head { fill: #a9b1bf }
    .open { fill: #1b2c4d; stroke: #7aa5f7 } .good { fill: #16351f; stroke: #5cc27a }
    .bad { fill: #46201c; stroke: #f08a7d } .still { fill: #262b34; stroke: #8b94a3 }
  }
"""


def drawing(width: int, height: int, title: str, shapes: Iterable[str]) -> str:
    head = '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}</style>",
            f'<defs>{head}<path class="head" d="M0 0L8 4L0 8z"/></marker></defs>',
            f'<rect class="paper" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>',
            *shapes,
            "</svg>\n",
        ]
    )


def box(x: float, y: float, width: float, height: float, words: str, kind: str) -> str:
    """A box around a point, with a word in it."""
    return (
        f'<rect class="{kind}" x="{x - width / 2:g}" y="{y - height / 2:g}" width="{width:g}" height="{height:g}" rx="6"/>'
        + text(x, y + 5, words, anchor="middle")
    )


def text(x: float, y: float, words: str, *, kind: str = "", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'


def arrow(points: list[tuple[float, float]]) -> str:
    """A line with a head, through two points, or curved towards the middle one of three."""
    (x, y), *between, (to_x, to_y) = points
    way = f"Q{between[0][0]:g} {between[0][1]:g} " if between else "L"
    return f'<path class="line" d="M{x:g} {y:g}{way}{to_x:g} {to_y:g}" marker-end="url(#head)"/>'
