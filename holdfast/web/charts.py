"""Charts as inline SVG, without a script: stacked bars and lines, each with a table of the same numbers.

Layers of bars differ by pattern as well as by colour, lines by their dashes. Texts are escaped here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH, HEIGHT = 960, 170
#: What is left of the plot for the scale, above it, and below it for the times.
LEFT, TOP, BOTTOM = 56, 10, 20
GROUND = HEIGHT - BOTTOM
#: The share of its place that a bar fills.
BAR = 0.8
#: The side of a pattern's tile.
TILE = 6
#: How wide a point is that no line leads to.
POINT = 7
#: Of a scale of times, in seconds: each about ten times the one before.
TIMES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0, 36_000.0, 86_400.0, 864_000.0, 8_640_000.0)
MOST_TICKS = 6

#: A part of a strip is no narrower than this.
LEAST_SHARE = 0.03

SOLID = "M0 0h6v6h-6z"

Say = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Look:
    """A class of the stylesheet, which has the colour, and the path of a tile, filled or drawn."""

    colour: str
    tile: str
    filled: bool = False


#: By the name of a layer.
LOOKS: Mapping[str, Look] = {
    "done": Look("done", SOLID, filled=True),
    "skipped": Look("done", "M1.5 1.5h2v2h-2z", filled=True),
    "retried": Look("retry_later", "M0 6L6 0"),
    "failed": Look("failed", "M0 0L6 6M0 6L6 0"),
    "exhausted": Look("failed", "M0 2h6M0 5h6"),
    "handed_back": Look("in_progress", "M2 0v6M5 0v6"),
    "lost": Look("on_hold", "M3 0v6M0 3h6"),
    "charged": Look("in_progress", SOLID, filled=True),
    "in_doubt": Look("on_hold", "M0 6L6 0"),
}
#: The colours and dashes of lines, in their order.
STROKES = (("in_progress", "none"), ("in_progress", "7 4"), ("on_hold", "2 4"), ("on_hold", "9 3 2 3"))


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of stacked bars."""

    name: str
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class Line:
    """A line over the same places; None is a gap."""

    name: str
    values: Sequence[float | None]


def patterns() -> Markup:
    """What the layers are filled with: once in a page that has charts."""
    tiles = Markup("").join(
        Markup(
            '<pattern id="fill-{}" class="{}" width="6" height="6" patternUnits="userSpaceOnUse"><path d="{}" {}/></pattern>'
        ).format(
            name,
            look.colour,
            look.tile,
            Markup('fill="currentColor"' if look.filled else 'fill="none" stroke="currentColor" stroke-width="1.3"'),
        )
        for name, look in LOOKS.items()
    )
    return Markup('<svg class="hidden" aria-hidden="true"><defs>{}</defs></svg>').format(tiles)


def bar_chart(
    label: str, places: Sequence[str], layers: Sequence[Layer], say: Say, levels: Mapping[str, float] | None = None
) -> Markup:
    """Bars at the places, stacked; and level lines across them, a budget say, by name."""
    levels = levels or {}
    sums = [sum(values) for values in zip(*(layer.values for layer in layers), strict=True)]
    top = nice(max([0.0, *sums, *levels.values()]))
    step = (WIDTH - LEFT) / max(1, len(places))
    below = [0.0] * len(places)
    drawn = []
    for layer in layers:
        path = []
        for n, value in enumerate(layer.values):
            if value:
                base, height = below[n], value
                x, y = LEFT + n * step, _at(base + height, top)
                path.append(f"M{x:.1f} {y:.1f}V{_at(base, top):.1f}h{step * BAR:.1f}V{y:.1f}z")
                below[n] += value
        if path:
            drawn.append(
                Markup('<path class="{}" fill="url(#fill-{})" stroke="currentColor" stroke-width=".6" d="{}"/>').format(
                    LOOKS[layer.name].colour, layer.name, "".join(path)
                )
            )
    for name, value in levels.items():
        y = _at(value, top)
        drawn.append(
            Markup(
                '<path class="failed" stroke="currentColor" stroke-dasharray="6 3" d="M{} {:.1f}H{}"/>'
                '<text class="failed" x="{}" y="{:.1f}" text-anchor="end">{}</text>'
            ).format(LEFT, y, WIDTH, WIDTH - 2, y - 4 if y > TOP + 12 else y + 12, f"{name} {say(value)}")
        )
    ticks = {value: _at(value, top) for value in (0.0, top / 2, top)}
    return _chart(label, places, [*_scale(ticks, say), *drawn])


def line_chart(label: str, places: Sequence[str], lines: Sequence[Line], say: Say, least: float) -> Markup:
    """Lines of seconds on a logarithmic scale: what takes a millisecond and what takes an hour are both visible. Values below
    `least` are drawn as `least`."""
    found = [max(least, value) for line in lines for value in line.values if value is not None]
    ticks = times_around(min(found, default=least), max(found, default=least))
    low, high = math.log10(ticks[0]), math.log10(ticks[-1])

    def at(value: float) -> float:
        return GROUND - (math.log10(max(least, value)) - low) / (high - low) * (GROUND - TOP)

    step = (WIDTH - LEFT) / max(1, len(places))
    drawn = []
    for line, (colour, dashes) in zip(lines, STROKES, strict=False):
        path, alone = [], []
        for n, value in enumerate(line.values):
            if value is None:
                continue
            x, y = LEFT + (n + BAR / 2) * step, at(value)
            before, after = line.values[max(0, n - 1)], line.values[min(n + 1, len(line.values) - 1)]
            is_first, is_last = n == 0 or before is None, n == len(line.values) - 1 or after is None
            if is_first and is_last:
                # Between two gaps: a line without length, whose ends are round.
                alone.append(f"M{x:.1f} {y:.1f}h0")
            else:
                path.append(f"{'M' if is_first else 'L'}{x:.1f} {y:.1f}")
        for width, dash, parts in ((2, dashes, path), (POINT, "none", alone)):
            if parts:
                drawn.append(
                    Markup(
                        '<path class="{}" fill="none" stroke="currentColor" stroke-linecap="round" stroke-width="{}" '
                        'stroke-dasharray="{}" d="{}"/>'
                    ).format(colour, width, dash, "".join(parts))
                )
    every = -(-len(ticks) // MOST_TICKS)
    return _chart(label, places, [*_scale({tick: at(tick) for tick in ticks[::every]}, say), *drawn])


def strip(label: str, parts: Sequence[tuple[str, int]]) -> Markup:
    """One bar, divided: how much of a whole is in which class of the stylesheet. What there is at all can be seen."""
    whole = sum(n for _, n in parts)
    shares = [max(LEAST_SHARE, n / whole) if n else 0.0 for _, n in parts]
    drawn, x = Markup(""), 0.0
    for (colour, _), share in zip(parts, shares, strict=True):
        width = share and 100 * share / sum(shares)
        if width:
            drawn += Markup('<rect class="{}" x="{:.1f}" width="{:.1f}" height="8"/>').format(colour, x, width)
        x += width
    return Markup(
        '<svg class="strip" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
    ).format(label, drawn)


def sparkline(label: str, values: Sequence[int]) -> Markup:
    """Small bars within a line of text, which the label says in words."""
    top = max([1, *values])
    path = "".join(f"M{4 * n}.5 18V{18 - max(2, round(17 * value / top))}" for n, value in enumerate(values) if value)
    return Markup(
        '<svg width="{}" height="19" role="img" aria-label="{}"><path class="failed" stroke="currentColor" stroke-width="3" '
        'd="{}"/><path stroke="currentColor" stroke-width=".5" d="M0 18.5h{}"/></svg>'
    ).format(4 * len(values), label, path, 4 * len(values))


def legend(layers: Iterable[str], lines: Iterable[str] = ()) -> Markup:
    """Which pattern, and which dashes, stand for what."""
    entries = [
        Markup(
            '<li><svg width="14" height="12" aria-hidden="true"><rect class="{}" width="14" height="12" '
            'fill="url(#fill-{})" stroke="currentColor"/></svg> {}</li>'
        ).format(LOOKS[name].colour, name, said(name))
        for name in layers
    ]
    entries += [
        Markup(
            '<li><svg width="30" height="12" aria-hidden="true"><path class="{}" d="M0 6h30" stroke="currentColor" '
            'stroke-width="2" stroke-dasharray="{}"/></svg> {}</li>'
        ).format(colour, dashes, name)
        for name, (colour, dashes) in zip(lines, STROKES, strict=False)
    ]
    return Markup('<ul class="legend">{}</ul>').format(Markup("").join(entries))


def numbers(name: str, label: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    """The numbers of a chart as a table that opens; the first of each row says where it belongs. End tags that HTML does not
    need are left out: there may be hundreds of rows."""
    titles = Markup("").join(Markup('<th scope="col"{}>{}').format(_right(n), one) for n, one in enumerate(head))
    body = Markup("").join(
        Markup('<tr><th scope="row">{}').format(first)
        + Markup("").join(Markup('<td class="n">') + escape(one) for one in rest)
        for first, *rest in rows
    )
    return Markup(
        '<details id="{}"><summary>The same as numbers</summary><div class="box" tabindex="0" role="region" aria-label="{}">'
        "<table><thead><tr>{}</thead><tbody>{}</tbody></table></div></details>"
    ).format(name, label, titles, body)


def said(name: str) -> str:
    return name.replace("_", " ")


def nice(most: float) -> float:
    """A round number that is no less: the top of a scale."""
    if most <= 0:
        return 1.0
    size = 10.0 ** math.floor(math.log10(most))
    return next(n * size for n in (1, 2, 5, 10, 20) if n * size >= most * 0.999999)


def times_around(low: float, high: float) -> list[float]:
    """Round lengths of time, in seconds: the last one that is no more, and so on to the first that is no less."""
    begin = max([n for n, time in enumerate(TIMES) if time <= low], default=0)
    end = min([n for n, time in enumerate(TIMES) if time >= high], default=len(TIMES) - 1)
    return list(TIMES[begin : max(end, begin + 1) + 1] if begin < len(TIMES) - 1 else TIMES[-2:])


def first_shown(counts: Sequence[float], least: int) -> int:
    """The place at which a chart begins: the first with something in it, so that a young store does not look empty; but at
    least so many places are shown."""
    found = next((n for n, count in enumerate(counts) if count), len(counts))
    return max(0, min(found, len(counts) - least))


def _at(value: float, top: float) -> float:
    return GROUND - value / top * (GROUND - TOP)


def _right(column: int) -> Markup:
    return Markup(' class="n"' if column else "")


def _scale(ticks: Mapping[float, float], say: Say) -> list[Markup]:
    return [
        Markup('<path class="rule" d="M{} {:.1f}H{}"/><text x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(
            LEFT, y, WIDTH, LEFT - 6, y + 4, say(value)
        )
        for value, y in ticks.items()
    ]


def _chart(label: str, places: Sequence[str], drawn: Iterable[Markup]) -> Markup:
    step = (WIDTH - LEFT) / max(1, len(places))
    shown = sorted({0, len(places) // 2, len(places) - 1}) if places else []
    times = [
        Markup('<text x="{:.1f}" y="{}" text-anchor="{}">{}</text>').format(
            LEFT + n * step + (step * BAR if n and n == len(places) - 1 else 0),
            HEIGHT - 4,
            "end" if n and n == len(places) - 1 else "start",
            places[n],
        )
        for n in shown
    ]
    return Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, HEIGHT, label, Markup("").join([*drawn, *times])
    )
