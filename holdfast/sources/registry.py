"""The kinds of sources, and how what a person wrote becomes one: checked in full before anything is looked at."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.engine.discover import Wanted
from holdfast.errors import UsageError
from holdfast.model import codec, schedule
from holdfast.model.found import short_hash
from holdfast.model.names import there_are
from holdfast.model.schedule import NEVER, Schedule
from holdfast.sources import readers
from holdfast.sources.contract import Reader, Source
from holdfast.sources.dotted import load

#: Every kind, by the key that names it, and where it lives. They are imported when they are first used.
KINDS: Mapping[str, str] = {
    "list": "list_.List",
    "files": "files.Files",
    "csv": "csv_.Csv",
    "jsonl": "jsonl.Jsonl",
    "lines": "lines.Lines",
    "sql": "sql.Sql",
    "sitemap": "sitemap.Sitemap",
    "feed": "feed.Feed",
    "html": "html.Html",
    "http_json": "http_json.HttpJson",
    "media": "media.Media",
    "python": "python_.Python",
}

LOOK_SECONDS = 600.0
MOST_ITEMS = 1_000_000
NAME_LENGTH = 200

#: What every source may set, beside its schedule.
COMMON: Mapping[str, Reader] = {
    "merge": readers.dotted,
    "timeout": readers.some_time,
    "most": readers.whole_number,
    "whole": readers.flag,
    "data": readers.json_mapping,
}


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """A source as its author wrote it, checked. Two that were written equally are equal."""

    name: str
    kind: str
    #: The kind's own settings; they may hold secrets and are not shown.
    settings: Mapping[str, Any] = field(repr=False)
    #: Without one it is looked at once, and again when it is defined otherwise or somebody asks for it.
    schedule: Schedule | None = None
    #: The full name of a function of old and new data; without one the newest data stands.
    merge: str | None = None
    timeout_seconds: float = LOOK_SECONDS
    most: int = MOST_ITEMS
    #: Whether a look comes by everything there is, where the author knows better than the kind.
    whole: bool | None = None
    #: What every item it finds is given, unless the item itself says otherwise.
    data: Mapping[str, Any] = field(default_factory=dict)
    folder: Path = field(default_factory=Path, compare=False)
    #: Changes when what the source remembers from earlier looks is of no use any more.
    definition: str = field(default="", repr=False)

    def open(self) -> Source:
        """The source, ready for one look."""
        return _class(self.kind)(self.settings, self.folder)

    def merge_function(self) -> Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]] | None:
        return load(self.merge, f"source {self.name!r}: merge") if self.merge else None

    def wanted(self, now_us: int) -> Wanted:
        """What the database is told: an interval begins at once, a cron schedule with its first tick."""
        if self.schedule is None:
            return Wanted(self.definition, now_us, NEVER)
        next_at = self.schedule.next_after(now_us)
        return Wanted(self.definition, next_at if self.schedule.cron else now_us, next_at)


def read_source(name: str, given: Mapping[str, Any], *, where: str, folder: Path) -> SourceSpec:
    """Read one source: a mapping with one key that names its kind, the options of that kind, and a schedule."""
    if not isinstance(name, str) or not name.strip() or len(name) > NAME_LENGTH or not name.isprintable():
        raise UsageError(f"{where}: {name!r} cannot be the name of a source")
    where = f"{where}: source {name!r}"
    if not isinstance(given, Mapping):
        raise UsageError(
            f"{where}: {given!r} is not a mapping; write it like {{'files': 'inbox/*.epub', 'every': '10m'}}"
        )
    given = {key: value for key, value in given.items() if value is not None}
    kinds = [key for key in given if key in KINDS]
    if len(kinds) != 1:
        trouble = f"{' and '.join(map(repr, kinds))} are two kinds" if kinds else "no kind is named"
        raise UsageError(f"{where}: {trouble}; write exactly one of: {', '.join(KINDS)}")
    [kind] = kinds
    found = _class(kind)
    allowed = {**found.options, **COMMON}
    for key in given:
        if key not in allowed and key not in schedule.KEYS:
            there = (*found.options, *COMMON, *schedule.KEYS)
            raise UsageError(f"{where}: {key!r} is unknown to {kind}; {there_are(key, there)}")
    for key in found.needed:
        if key not in given:
            raise UsageError(f"{where}: {kind} needs {key!r}")
    values = {key: allowed[key](value, f"{where}: {key}") for key, value in given.items() if key in allowed}
    common = {key: values.pop(key) for key in COMMON if key in values}
    found.agree(values, where, folder)
    times = {key: value for key, value in given.items() if key in schedule.KEYS}
    return SourceSpec(
        name, kind, values,
        schedule=Schedule.read(times, where=where) if times else None, merge=common.get("merge"),
        timeout_seconds=common.get("timeout", LOOK_SECONDS), most=common.get("most", MOST_ITEMS),
        whole=common.get("whole"), data=common.get("data", {}), folder=folder, definition=_definition(kind, values, common),
    )  # fmt: skip


def _definition(kind: str, values: Mapping[str, Any], common: Mapping[str, Any]) -> str:
    said = f"{kind} {codec.digest(values)}"
    return short_hash(f"{said} {codec.digest(common['data'])}" if common.get("data") else said)


def _class(kind: str) -> type[Source]:
    module, _, name = KINDS[kind].partition(".")
    found: type[Source] = getattr(importlib.import_module(f"holdfast.sources.{module}"), name)
    return found
