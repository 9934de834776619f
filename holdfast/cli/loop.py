"""`holdfast loop`: run a loop over a table of the user's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from holdfast.cli import options
from holdfast.cli.exit_codes import SOME_FAILED, SOME_LEFT
from holdfast.errors import DefinitionError, StoreBroken, StoreUnavailable
from holdfast.program_file import all_of, load_module

if TYPE_CHECKING:
    from holdfast.adopt.loop.counters import Counters
    from holdfast.adopt.loop.loop import Loop


@click.command("loop", short_help="Run a loop over your own table.")
@click.argument("loop", metavar="MODULE:OBJECT", type=options.text)
@click.option("--drain", is_flag=True, help="Exit when no work is left.")
@options.logs(1, formats=True)
def loop(loop: str, drain: bool) -> None:
    """Run the Loop that MODULE:OBJECT names until stopped.

    MODULE is a Python file or a dotted module name; OBJECT is a Loop, a list of them, or a function that returns
    either. Without :OBJECT, every Loop of the module runs. SIGTERM or Ctrl-C ends it once running handlers are done,
    within their grace; a second one hands their rows back at once.

    With --drain it ends when nothing is left to do. It waits for rows that others hold, until they are finished or
    stale, and for rows that are due within a minute. Exit code 6: rows were left, because they are due later, because
    it is unknown whether their holder is alive, or because the database refused them. Exit code 3: rows failed.
    """
    import sqlalchemy.exc

    from holdfast.adopt.loop.loop import run_together
    from holdfast.adopt.sqlalchemy_errors import passes

    loops = find_loops(loop)
    try:
        stopped_by = run_together(loops, drain=drain)
    except sqlalchemy.exc.DBAPIError as error:
        raise (StoreUnavailable if passes(error) else StoreBroken)(str(error.orig)) from error
    if drain and stopped_by is not None:
        options.finish(128 + stopped_by)
    options.finish(_exit_code([one.counters for one in loops]) if drain else 0)


def _exit_code(counters: list[Counters]) -> int:
    if any(one.left for one in counters):
        return SOME_LEFT
    return SOME_FAILED if any(one.failed or one.exhausted for one in counters) else 0


def find_loops(named: str) -> list[Loop]:
    """The loops that `module:object` or `module` names."""
    from holdfast.adopt.loop.loop import Loop

    file, colon, name = named.rpartition(":")
    module = load_module(file if colon else named)
    if not colon:
        found: Any = all_of(module, Loop)
    else:
        if not hasattr(module, name):
            raise DefinitionError(f"{file} has no {name!r}")
        found = getattr(module, name)
        if callable(found) and not isinstance(found, Loop):
            found = found()
    loops = [found] if isinstance(found, Loop) else list(found) if isinstance(found, (list, tuple)) else []
    if not loops or not all(isinstance(one, Loop) for one in loops):
        raise DefinitionError(f"{named} is neither a Loop nor a list of Loops; write one like jobs = Loop(engine, …)")
    return loops
