"""The main figure of every row as an SVG drawing: a bar for the median, a whisker from the lowest to the highest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from statistics import median
from xml.sax.saxutils import escape

from benchmarks.contenders import RAW, RAW_IN_BULK
from benchmarks.report import Row, Rows

WIDTH, LEFT, BAR, LINE = 900, 230, 420, 20
COLOURS = {"raw": "#9aa0a6", "ours": "#1a73e8", "peer": "#e8a33d"}


def draw(title: str, drawn: Sequence[Rows]) -> str:
    """All workloads below each other. Every block has a scale of its own, from zero."""
    parts: list[str] = []
    y = 50
    for rows in drawn:
        if not rows.rows:
            continue
        workload = rows.rows[0].workload
        aim = "more is better" if workload.figures[0].rises else "less is better"
        parts.append(
            _text(20, y, f"{workload.name}: {workload.title} ({workload.figures[0].title}; {aim})", 15, bold=True)
        )
        y += 24
        for (database, case), block in groupby(rows.rows, key=lambda row: (row.database.title, row.case.name)):
            there = [row for row in block if row.values(row.main.key)]
            if not there:
                continue
            parts.append(_text(20, y, f"{database}: {case}", 12, colour="#5f6368"))
            y += 8
            parts += _block(there, y)
            y += LINE * len(there) + 20
        y += 14
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" viewBox="0 0 {WIDTH} {y}" '
        'font-family="sans-serif">'
        f'<rect width="{WIDTH}" height="{y}" fill="white"/>{_text(20, 26, title, 13, colour="#5f6368")}'
    )
    return "\n".join([head, *parts, "</svg>", ""])


def _block(rows: Sequence[Row], y: int) -> Iterator[str]:
    most = max(max(row.values(row.main.key)) for row in rows) or 1.0
    for row in rows:
        values = row.values(row.main.key)
        low, middle, high = (BAR * value / most for value in (min(values), median(values), max(values)))
        kind = "raw" if row.contender in (RAW, RAW_IN_BULK) else "peer" if row.contender.is_peer else "ours"
        yield (
            _text(LEFT - 8, y + 12, row.contender.title, 12, anchor="end")
            + f'<rect x="{LEFT}" y="{y + 2}" width="{max(middle, 1):.1f}" height="13" fill="{COLOURS[kind]}"/>'
            + f'<path d="M{LEFT + low:.1f} {y + 8.5}H{LEFT + high:.1f}" stroke="#202124"/>'
            + _text(round(LEFT + max(middle, high) + 8), y + 12, row.main.show(median(values)), 12)
        )
        y += LINE


def _text(
    x: int, y: int, text: str, size: int, *, colour: str = "#202124", anchor: str = "start", bold: bool = False
) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" fill="{colour}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'
    )
