"""The crash test: run an item undisturbed, then again, killed at every durable boundary, and compare the results.

    report = crashtest("books.py", item="v.epub")
    report.assert_ok()

Everything happens in copies of a store made for the test, in processes of their own. See docs/guide/crash-tests.md.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.crashtest.boundary import Boundary, boundaries
from holdfast.crashtest.compare import Ignored
from holdfast.crashtest.copies import copies_for
from holdfast.crashtest.kill_everywhere import CrashTest
from holdfast.crashtest.report import CrashReport, Kill
from holdfast.crashtest.subject import choose, file_of, function_of
from holdfast.crashtest.subject_client import SubjectServer
from holdfast.errors import UsageError
from holdfast.model.durations import Duration, seconds
from holdfast.model.money import decimal
from holdfast.model.redact import redact
from holdfast.pipeline import Pipeline


def crashtest(
    subject: str | Path | Pipeline[Any],
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
    on_begin: Callable[[CrashReport], None] = lambda report: None,
    on_kill: Callable[[Kill], None] = lambda kill: None,
) -> CrashReport:
    """Take one item through the pipelines of a file, kill its worker at every durable boundary, and report differences.

    `subject` is a file, a dotted module, or a pipeline at the top level of one. `item` is a key, or a mapping with a `key`.
    `store` decides what the copies are: SQLite files, or databases on the PostgreSQL server at this address.
    `tables` are your tables to compare (default: all). `ignore` names what to leave out: `table`, `table.column`, or
    `pipeline/stage` for a result. `setup` is a function that creates your tables, given the address of the copy.
    `template` is a SQLite file, or a PostgreSQL database, that every copy starts from. `variables` are environment
    variables that receive the address of the copy, in addition to HOLDFAST_URL. `only` selects boundaries by number.
    `at_random` adds kills at random points, drawn with `seed`. Without `kill` the boundaries are only listed.
    """
    began = time.monotonic()
    file = file_of(subject)
    given: Mapping[str, Any] = {"key": item} if isinstance(item, str) else item
    patience = seconds(timeout, what="timeout")
    with tempfile.TemporaryDirectory(prefix="holdfast-crashtest-") as name:
        folder = Path(name)
        with (
            copies_for(store, folder, None if template is None else str(template)) as copies,
            SubjectServer(
                file,
                copies.url,
                folder,
                variables=variables,
                # What a template refers to is where it was kept.
                blobs=str(folder / "blobs") if template is None else None,
                timeout_seconds=patience,
            ) as server,
        ):
            chosen = choose(pipeline, subject, server.pipelines, file)
            server.prepare({chosen: [given]}, function_of(setup, file), alone=True)
            copies.keep()
            test = CrashTest(server, copies, folder, tables, Ignored(frozenset(ignore)))
            places, report = _undisturbed(test, file, chosen, str(given.get("key")), seed)
            report.seconds = time.monotonic() - began
            on_begin(report)
            if kill and not report.unsteady:
                test.kill_everywhere(report, places, only, at_random, on_kill)
            return report


def _undisturbed(
    test: CrashTest, file: str, pipeline: str, key: str, seed: int | None
) -> tuple[list[Boundary], CrashReport]:
    """Run the item twice without a kill: find the boundaries, and whether the two runs already differ."""
    first = test.undisturbed()
    places, notes = boundaries(first.told.points)
    if not places:
        raise UsageError(f"item {key!r} of {pipeline} has nothing to do: the template has it already")
    return places, CrashReport(
        file,
        key,
        pipeline,
        first.told.starts.total(),
        first.told.paid.total(),
        decimal(first.end.costs.total()),
        sorted(first.end.tables),
        [one.text for one in places],
        unsteady=test.compare(test.undisturbed()),
        notes=[*_notes(test.server), *notes, *first.told.undeclared],
        seed=seed,
    )


def _notes(server: SubjectServer) -> list[str]:
    notes = []
    if server.named is not None:
        notes.append(
            f"the file names a store of its own ({redact(server.named)}), which was not touched; a handler that opens it "
            f"by itself would: take the address from HOLDFAST_URL instead"
        )
    if server.left:
        notes.append(f"every run loads the file anew, which takes time: loading it leaves {server.left} behind")
    return notes
