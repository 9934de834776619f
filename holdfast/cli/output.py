"""What goes to the terminal: answers, tables, JSON, and texts that cannot steer it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from holdfast.answers.answer import Answer, Answers
from holdfast.answers.text_tables import as_text, counted, table
from holdfast.answers.text_tables import shortened as shortened
from holdfast.model.log_lines import printable as printable


def as_json(value: Any, *, indent: int | None = 2) -> str:
    """JSON in plain ASCII: safe on every terminal, the same in every locale."""
    return as_text(value, indent=indent)


def print_json(value: Any) -> None:
    click.echo(as_json(value))


def print_answer(answer: Answer | Answers[Any], *, as_json: bool) -> None:
    """An answer as every command gives it: in JSON, or in lines that fit the terminal."""
    if as_json:
        print_json(answer.json())
    else:
        for line in answer.lines(terminal_width()):
            click.echo(line)


def print_table(
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    indent: str = "",
    right: Sequence[str] = (),
    least: Sequence[str] = (),
) -> None:
    """Columns side by side, as wide as the terminal is; see `answers.text_tables`."""
    for line in table(head, rows, width=terminal_width(), indent=indent, right=right, least=least):
        click.echo(line)


def terminal_width() -> int | None:
    """How many characters fit into a line; None where nobody minds, as in a file or a pipe, or knows, as in some terminals."""
    if (given := os.environ.get("COLUMNS", "")).isdecimal() and int(given):
        return int(given)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except (OSError, ValueError, AttributeError):
        return None


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
