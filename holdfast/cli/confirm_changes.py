"""Says what has changed in the pipelines of a file since the store last saw them, and asks whether new work may cost that."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from holdfast.app import Approve
from holdfast.cli.output import printable
from holdfast.model.definition_changes import Changes
from holdfast.model.money import spoken


def approval(*, yes: bool, may_ask: bool = True) -> Approve:
    """Says what changes, and whether new work that has a price may run: by `--yes`, or by a person at a terminal."""

    def decide(change: Changes) -> bool:
        asked = bool(change.on_hold) and not yes and may_ask and at_a_terminal()
        tell(change)
        if not asked:
            _tell_held(change.held_lines() if not yes else [])
            return yes
        price = f" for {spoken(change.price)}" if change.price else ""
        if click.confirm(f"Let the new work of {', '.join(sorted(change.on_hold))} run{price}?", err=True):
            return True
        _tell_held(change.held_lines())
        return False

    return decide


def tell_before(change: Changes) -> None:
    """What registering it would change, and what would be put on hold."""
    tell(change)
    _tell_held(change.held_lines(yet_to_come=True))


def tell(change: Changes) -> None:
    """On stderr, in one block."""
    click.echo(f"{change.pipeline} has changed since this store last saw it:", err=True)
    for line in change.lines():
        click.echo(f"  {printable(line)}", err=True)


def _tell_held(lines: Sequence[str]) -> None:
    for line in lines:
        click.echo(printable(line), err=True)


def at_a_terminal() -> bool:
    return sys.stdin.isatty()
