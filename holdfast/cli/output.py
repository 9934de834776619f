"""What goes to the terminal: texts that cannot steer it, times, tables, JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from holdfast.model.logs import printable as printable

Facts = dict[str, Any]

#: A column of text is not made narrower than this.
SHORTEST = 8

#: What instants are called.
TIMES = (
    "created_at",
    "updated_at",
    "started_at",
    "ended_at",
    "next_attempt_at",
    "beat_at",
    "at",
    "since",
    "until",
    "due_at",
    "looked_at",
    "next_look_at",
    "cool_until",
    "retry_after",
    "touched_at",
    "first_seen",
    "last_seen",
    "pending_since",
)


def shortened(text: object, width: int) -> str:
    shown = printable(text)
    return shown if len(shown) <= width else f"{shown[: width - 1]}…"


def iso(micros: int | None) -> str | None:
    """An instant in UTC, as text; the library counts microseconds since 1970."""
    if micros is None:
        return None
    whole, rest = divmod(micros, 1_000_000)
    return f"{datetime.fromtimestamp(whole, UTC):%Y-%m-%dT%H:%M:%S}.{rest:06d}Z"


def instant(micros: int | None) -> str:
    """The same for people, to the second."""
    return "-" if micros is None else f"{datetime.fromtimestamp(micros // 1_000_000, UTC):%Y-%m-%dT%H:%M:%SZ}"


def dated(facts: Mapping[str, Any], *names: str) -> Facts:
    """A copy in which the instants of these names are texts, and the microseconds it took are seconds."""
    told: Facts = {
        name: iso(value) if name in names and isinstance(value, int) else value for name, value in facts.items()
    }
    if "elapsed_us" in told:
        elapsed = told.pop("elapsed_us")
        told["elapsed_seconds"] = None if elapsed is None else elapsed / 1e6
    return told


def told_pipelines(pipelines: Iterable[Facts]) -> list[Facts]:
    """The answer of `status`, as JSON has it."""
    return [
        {**dated(one, *TIMES), "stages": [_dated_within(dated(stage, *TIMES), "held") for stage in one["stages"]]}
        for one in pipelines
    ]


def told_workers(workers: Iterable[Facts]) -> list[Facts]:
    """The answer of `workers`, as JSON has it."""
    return [_dated_within(dated(one, *TIMES), "guards") for one in workers]


def _dated_within(facts: Facts, name: str) -> Facts:
    """A copy in which what lies under a name, facts or a list of them, has its instants as texts."""
    within = facts.get(name)
    if isinstance(within, list):
        return {**facts, name: [dated(one, *TIMES) for one in within]}
    return {**facts, name: dated(within, *TIMES)} if within else facts


def length(seconds: float) -> str:
    """A length of time: `12 ms`, `3.4 s`, `5 m 20 s`."""
    from holdfast.model.durations import spoken

    if seconds >= 1:
        return spoken(seconds)
    return f"{seconds * 1000:.0f} ms" if seconds >= 0.001 else "< 1 ms"


def as_json(value: Any, *, indent: int | None = 2) -> str:
    """JSON in plain ASCII: safe on every terminal, the same in every locale."""
    return json.dumps(value, indent=indent, ensure_ascii=True).replace("\x7f", "\\u007f")


def print_json(value: Any) -> None:
    click.echo(as_json(value))


def compact(value: object) -> str:
    """A value as JSON in one line, cut where it is long."""
    return shortened(as_json(value, indent=None), 2000)


def details(facts: Facts) -> str:
    """`  name=value, …`, or nothing if there is nothing to tell."""
    told = ", ".join(
        f"{shortened(name, 40)}={shortened(value, 200)}" for name, value in facts.items() if value not in (None, "", [])
    )
    return f"  {told}" if told else ""


def print_table(
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    indent: str = "",
    right: Sequence[str] = (),
    least: Sequence[str] = (),
) -> None:
    """Columns side by side; those of numbers to the right, and those named. Texts are made printable here.

    On a narrow terminal the columns named in `least` go first, then texts are cut, and the last columns go at last.
    """
    given = [list(row) for row in rows]
    shown = [[printable("-" if cell is None else cell) for cell in row] for row in given]
    numbers = [name in right or all(isinstance(row[at], int) for row in given) for at, name in enumerate(head)]
    widths = [max([len(head[at]), *(len(row[at]) for row in shown)]) for at in range(len(head))]
    columns = _fitted(head, widths, numbers, least, None if (width := _width()) is None else width - len(indent))
    for row in [list(head), *shown]:
        cells = [
            (row[at].rjust if numbers[at] else shortened(row[at], wide).ljust)(wide) for at, wide in columns.items()
        ]
        click.echo(f"{indent}{'  '.join(cells)}".rstrip())


def _width() -> int | None:
    """How many characters fit into a line; None where nobody minds, as in a file or a pipe, or knows, as in some terminals."""
    if (given := os.environ.get("COLUMNS", "")).isdecimal() and int(given):
        return int(given)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except (OSError, ValueError, AttributeError):
        return None


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


def counted(counts: Mapping[str, int], names: Sequence[str] | None = None) -> str:
    """`3 failed, 1 exhausted`; what is zero is left out."""
    return ", ".join(f"{counts[name]:,} {name}" for name in names or sorted(counts) if counts.get(name))


def print_counts(
    done: str,
    counts: Mapping[str, int],
    actions: Sequence[int | None],
    *,
    dry_run: bool,
    as_json: bool,
    nothing: str = "Nothing matches.",
    more: Mapping[str, Any] | None = None,
) -> None:
    """How many were acted on, or would be, and by which actions: the answer of every act on many items at once. JSON has
    perhaps more."""
    total = sum(counts.values())
    numbers = [number for number in actions if number is not None]
    if as_json:
        print_json({"dry_run": dry_run, "total": total, "counts": counts, "actions": numbers, **(more or {})})
    elif not total:
        click.echo(nothing)
    else:
        by = f" by action {', '.join(map(str, numbers))}" if numbers else ""
        click.echo(f"{'would be ' if dry_run else ''}{done}{by}: {total:,} ({counted(counts)})")
