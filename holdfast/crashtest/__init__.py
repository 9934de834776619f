"""Crash tests for the user's own pipelines: an item is run undisturbed, then again and again, killed at every durable
boundary and resumed, and must come to the same each time. See docs/guide/crash-tests.md.

    report = crashtest("books.py", item="v.epub")
    report.assert_ok()

Everything takes place in copies of a store that are made for it, in processes of their own.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.crashtest.report import Kill, Report
    from holdfast.model.durations import Duration
    from holdfast.pipeline import Pipeline

__all__ = ["crashtest"]


def crashtest(
    subject: str | Path | Pipeline,
    *,
    item: str | Mapping[str, Any],
    pipeline: str | None = None,
    store: str | None = None,
    tables: Sequence[str] | None = None,
    ignore: Sequence[str] = (),
    setup: str | Callable[[str], Any] | None = None,
    template: str | Path | None = None,
    variables: Sequence[str] = (),
    only: Sequence[int] = (),
    at_random: int = 0,
    seed: int | None = None,
    kill: bool = True,
    timeout: Duration = 60,
    on_begin: Callable[[Report], None] = lambda report: None,
    on_kill: Callable[[Kill], None] = lambda kill: None,
) -> Report:
    """Take one item through the pipelines of a file, killed at every durable boundary, and say whether it ever matters.

    `subject` is a file, a dotted module, or a pipeline at the top level of one; `item` a key, or a mapping with a `key`.
    `store` says of which kind the copies are: SQLite files, or databases on the PostgreSQL server of an address.
    `tables` are the user's tables that are compared (all), `ignore` what is not: `table`, `table.column`,
    `pipeline/stage` for a result. `setup` is a function that makes the user's tables, given the address of the copy;
    `template` a SQLite file, or a PostgreSQL database, that copies begin as. `variables` are environment variables that
    get the copy's address beside HOLDFAST_URL. `only` names boundaries by number; `at_random` adds kills at points drawn
    with `seed`; without `kill` the boundaries are only listed.
    """
    from holdfast.crashtest.boundary import boundaries
    from holdfast.crashtest.compare import Ignored
    from holdfast.crashtest.copies import copies_for
    from holdfast.crashtest.mother import Mother
    from holdfast.crashtest.report import Report
    from holdfast.crashtest.running import CrashTest
    from holdfast.crashtest.subject import choose, file_of, function_of
    from holdfast.errors import UsageError
    from holdfast.model.durations import seconds

    began = time.monotonic()
    file = file_of(subject)
    given: Mapping[str, Any] = {"key": item} if isinstance(item, str) else item
    with tempfile.TemporaryDirectory(prefix="holdfast-crashtest-") as name:
        folder = Path(name)
        with copies_for(store, folder, None if template is None else str(template)) as copies:
            mother = Mother(
                file, copies.url, folder, variables=variables, timeout_seconds=seconds(timeout, what="timeout")
            )
            with mother:
                chosen = choose(pipeline, subject, mother.pipelines, file)
                mother.prepare({chosen: [given]}, function_of(setup, file), alone=True)
                copies.keep()
                test = CrashTest(mother, copies, folder, tables, Ignored(frozenset(ignore)))
                first = test.undisturbed()
                places, notes = boundaries(first.told.points)
                if not places:
                    raise UsageError(
                        f"item {given.get('key')!r} of {chosen} has nothing to do: the template has it already"
                    )
                report = Report(
                    file,
                    str(given.get("key")),
                    chosen,
                    first.told.starts.total(),
                    first.told.paid.total(),
                    first.end.costs.total(),
                    sorted(first.end.tables),
                    [one.text for one in places],
                    unsteady=test.compare(test.undisturbed()),
                    notes=[*_notes(mother), *notes, *first.told.undeclared],
                    seed=seed,
                )
                report.seconds = time.monotonic() - began
                on_begin(report)
                if kill and not report.unsteady:
                    test.kill_everywhere(report, places, only, at_random, on_kill)
                return report


def _notes(mother: Any) -> list[str]:
    notes = []
    if mother.named is not None:
        from holdfast.model.redact import redact

        notes.append(
            f"the file names a store of its own ({redact(mother.named)}), which was not touched; a handler that opens it "
            f"by itself would: take the address from HOLDFAST_URL instead"
        )
    if mother.left:
        notes.append(f"every run loads the file anew, which takes time: loading it leaves {mother.left} behind")
    return notes
