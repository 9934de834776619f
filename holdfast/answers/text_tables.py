"""Answers in words: instants, lengths of time, amounts, counts, and tables whose columns line up."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from holdfast.model.durations import spoken as spoken_length
from holdfast.model.log_lines import printable

#: A column of text is not made narrower than this.
SHORTEST = 8


def shortened(text: object, width: int) -> str:
    shown = printable(text)
    return shown if len(shown) <= width else f"{shown[: width - 1]}…"


def iso(at: datetime) -> str:
    """An instant in UTC as ISO 8601, always as long as any other."""
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}Z"


def to_the_second(at: datetime | None) -> str:
    return "-" if at is None else f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def spoken(length: timedelta) -> str:
    """A length of time: `12 ms`, `3.4 s`, `5 m 20 s`."""
    seconds = length.total_seconds()
    if seconds >= 1:
        return spoken_length(seconds)
    return f"{seconds * 1000:.0f} ms" if seconds >= 0.001 else "< 1 ms"


def exact(amount: Decimal) -> str:
    """`0.4`, `12`, `0.000001`: every digit, and no more."""
    return f"{amount:f}"


def aligned(amounts: Sequence[Decimal]) -> list[str]:
    """A column of amounts: as many digits after the point in each as the finest needs, but two at least."""
    finest = max(map(_digits, amounts), default=0)
    return [f"{one:,.{max(2, finest)}f}" for one in amounts]


def _digits(amount: Decimal) -> int:
    """How many digits after the point there are, without zeros at the end."""
    return len(f"{amount:f}".partition(".")[2].rstrip("0"))


def as_text(value: Any, *, indent: int | None = None) -> str:
    """JSON in plain ASCII: safe on every terminal, the same in every locale."""
    return json.dumps(value, indent=indent, ensure_ascii=True).replace("\x7f", "\\u007f")


def compact(value: object) -> str:
    """A value as JSON in one line, cut where it is long."""
    return shortened(as_text(value), 2000)


def counted(counts: Mapping[str, int], names: Sequence[str] | None = None) -> str:
    """`3 failed, 1 exhausted`; what is zero is left out."""
    return ", ".join(f"{counts[name]:,} {name}" for name in names or sorted(counts) if counts.get(name))


def details(facts: Mapping[str, Any]) -> str:
    """`  name=value, …`, or nothing if there are none."""
    shown = ", ".join(
        f"{shortened(name, 40)}={shortened(in_words(value), 200)}"
        for name, value in facts.items()
        if value not in (None, "", [], ())
    )
    return f"  {shown}" if shown else ""


def in_words(value: object) -> str:
    """One value for people."""
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return spoken(value)
    if isinstance(value, Decimal):
        return exact(value)
    if isinstance(value, (tuple, list)):
        return ", ".join(map(in_words, value))
    return str(value)


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    width: int | None = None,
    indent: str = "",
    right: Sequence[str] = (),
    least: Sequence[str] = (),
) -> list[str]:
    """Lines with columns side by side; numbers, and the columns named in `right`, to the right. Texts are made printable here.

    If the lines would be longer than `width`, the columns named in `least` are left out, then texts are cut, then the last
    columns are left out.
    """
    given = [list(row) for row in rows]
    shown = [[printable("-" if cell is None else cell) for cell in row] for row in given]
    numbers = [name in right or all(isinstance(row[at], int) for row in given) for at, name in enumerate(head)]
    widths = [max([len(head[at]), *(len(row[at]) for row in shown)]) for at in range(len(head))]
    columns = _fitted(head, widths, numbers, least, None if width is None else width - len(indent))
    lines = []
    for row in [list(head), *shown]:
        cells = [
            (row[at].rjust if numbers[at] else shortened(row[at], wide).ljust)(wide) for at, wide in columns.items()
        ]
        lines.append(f"{indent}{'  '.join(cells)}".rstrip())
    return lines


def _fitted(
    head: Sequence[str], widths: Sequence[int], numbers: Sequence[bool], least: Sequence[str], room: int | None
) -> dict[int, int]:
    """The columns that are shown, by their place, and how wide each is."""
    columns = dict(enumerate(widths))

    def over() -> int:
        return 0 if room is None else sum(columns.values()) + 2 * (len(columns) - 1) - room

    for name in least:
        if over() > 0 and name in head:
            columns.pop(list(head).index(name))
    while over() > 0:
        wide = max((at for at in columns if not numbers[at]), key=columns.__getitem__, default=0)
        if not numbers[wide] and columns[wide] > SHORTEST:
            columns[wide] = max(columns[wide] - over(), SHORTEST)
        elif len(columns) > 1:
            columns.popitem()
        else:
            break
    return columns
