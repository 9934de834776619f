"""Load a job file: read, fill in variables, check all of it, and only then import what it names."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from holdfast.jobfile.building import build_merge, build_pipeline, finder, read_by
from holdfast.jobfile.checking import check
from holdfast.jobfile.environment import Secrets, fill
from holdfast.jobfile.handlers import Handlers
from holdfast.jobfile.job import AsWritten, JobDefinition
from holdfast.jobfile.problems import Problems, below
from holdfast.jobfile.reading import Node, read, read_file
from holdfast.model.tuning import Tuning

ReadSource = Callable[..., Any]
ReadAlert = Callable[..., Any]


def load(
    path: str | os.PathLike[str],
    *,
    read_source: ReadSource | None = None,
    read_alert: ReadAlert | None = None,
    environ: Mapping[str, str] = os.environ,
) -> JobDefinition:
    """The job that a file describes, or `JobFileError` with everything that is wrong with it.

    `read_source(name, given, *, where, folder)` and `read_alert(name, given, *, where)` make of a source or an alert
    what its user needs; a `UsageError` of theirs is a problem of the file. Nothing of the user's is run before the
    whole file is found to be in order.
    """
    secrets = Secrets()
    problems = Problems(os.fspath(path), secrets.mask)
    document = read(read_file(path), problems)
    fill(document, environ, secrets, problems)
    handlers = Handlers(Path(path).parent)
    handlers.look_here()
    check(document, problems)
    problems.raise_any()
    job = _build(document, Path(path), handlers, secrets, problems, read_source, read_alert)
    problems.raise_any()
    return job


def _build(
    document: Node,
    path: Path,
    handlers: Handlers,
    secrets: Secrets,
    problems: Problems,
    read_source: ReadSource | None,
    read_alert: ReadAlert | None,
) -> JobDefinition:
    find = finder(handlers, problems)
    specs, tunings, sources, merges = [], {}, {}, {}
    written: dict[str, Any] = {"sources": {}, "alerts": _plain(document.get("alerts"))}
    for name, node in document.value["pipelines"].items():
        where = below("pipelines", name)
        spec = build_pipeline(name, node, where, find, problems, str(path.resolve()))
        specs += [spec] if spec is not None else []
        merge, tuning, own = node.get("merge"), node.get("tuning"), node.get("sources")
        if merge is not None:
            merges[name] = build_merge(merge, f"{where}.merge", find, problems)
        tunings[name] = Tuning.read(name, [*node.value["stages"].value], _plain(tuning))
        _find_guards(tuning, f"{where}.tuning.guards.handler", find)
        written["sources"][name] = _plain(own)
        sources[name] = tuple(
            AsWritten(one, given.plain())
            if read_source is None
            else read_by(read_source, one, given, below(f"{where}.sources", one), problems, folder=path.parent)
            for one, given in _items(own)
        )
    alerts = tuple(
        AsWritten(one, given.plain())
        if read_alert is None
        else read_by(read_alert, one, given, below("alerts", one), problems)
        for one, given in _items(document.get("alerts"))
    )
    store = _plain(document.get("store")) or None
    if store is not None:
        secrets.add_passwords(store)
    blobs = _plain(document.get("blobs")) or None
    if blobs is not None:
        secrets.add_passwords(blobs)
    resources = _plain(document.get("resources"))
    return JobDefinition(
        path, store, tuple(specs), resources, tunings, sources, merges, alerts, secrets, written, blobs
    )


def _find_guards(tuning: Node | None, path: str, find: Any) -> None:
    """Check now that the functions of guards exist. Guards are stored by name."""
    guards = tuning.get("guards") if tuning is not None else None
    handler = guards.get("handler") if guards is not None else None
    if handler is not None:
        for one in handler.value if isinstance(handler.value, list) else [handler]:
            find(one, path)


def _plain(node: Node | None) -> Any:
    return {} if node is None else node.plain()


def _items(node: Node | None) -> list[tuple[str, Node]]:
    return [] if node is None else list(node.items())
