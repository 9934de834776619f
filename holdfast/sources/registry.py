"""The kinds of sources, and how to read one: it is checked completely before it is used."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.engine.poll_sources import Wanted
from holdfast.errors import UsageError
from holdfast.model import codec, schedule
from holdfast.model.did_you_mean import nearest, there_are
from holdfast.model.found_items import short_hash
from holdfast.model.schedule import NEVER, Schedule
from holdfast.sources import readers
from holdfast.sources.contract import Reader, Source, said
from holdfast.sources.dotted import load
from holdfast.sources.value_templates import VALUE, fill, has_value, names_its_host

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

#: Every kind, by the key that names it, and its class. They are imported when first used.
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

#: Entry points of kinds in other packages: `[project.entry-points."holdfast.sources"]`, `shelf = "my_package:Shelf"`.
GROUP = "holdfast.sources"

LOOK_SECONDS = 600.0
MOST_ITEMS = 1_000_000
NAME_LENGTH = 200

FOR_EACH = "for_each"
#: A sample value to check settings with: valid as an address and within one.
_SAMPLE = "https://example.org/"

#: The options of every source, in addition to its schedule.
COMMON: Mapping[str, Reader] = {
    "merge": readers.dotted,
    "timeout": readers.some_time,
    "most": readers.whole_number,
    "whole": readers.flag,
    "data": readers.json_mapping,
}


#: The options of `for_each`.
EACH: Mapping[str, Reader] = {
    "pipeline": readers.text,
    "stage": readers.text,
    "value": readers.path,
    "again": readers.some_time,
}


@dataclass(frozen=True, slots=True)
class Each:
    """What `for_each` goes through: the items of a pipeline, the results of one of its stages, or the items of a source."""

    pipeline: str | None = None
    stage: str | None = None
    source: SourceSpec | None = None
    #: The path of the value; without one it is the key.
    value: str | None = None
    #: After how many seconds each item is looked up again; None for never.
    again_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """A source as its author wrote it, checked."""

    name: str
    kind: str
    #: The kind's own settings; they may hold secrets and are not shown.
    settings: Mapping[str, Any] = field(repr=False)
    #: Without one it is looked at once, and again when its definition changes or on request.
    schedule: Schedule | None = None
    #: The full name of a function of old and new data; without one the new data replaces the old.
    merge: str | None = None
    timeout_seconds: float = LOOK_SECONDS
    most: int = MOST_ITEMS
    #: Whether a look finds everything there is, if that differs from the default of the kind.
    whole: bool | None = None
    #: Data for every item it finds; the data of the item takes precedence.
    data: Mapping[str, Any] = field(default_factory=dict)
    folder: Path = field(default_factory=Path, compare=False)
    #: `for_each`: look once for each item, with its value in the settings.
    each: Each | None = None
    #: Changes when the memory of earlier looks becomes useless.
    definition: str = field(default="", repr=False)

    def open(self) -> Source:
        """The source, ready for one look."""
        return _class(self.kind)(self.settings, self.folder)

    def filled(self, value: Any) -> Source:
        """The source with this value in its settings, which are checked only now."""
        found, where = _class(self.kind), f"with {str(value)[:80]!r}"
        settings = {key: found.options[key](fill(one, value), f"{where}: {key}") for key, one in self.settings.items()}
        found.agree(settings, where, self.folder)
        return found(settings, self.folder)

    def merge_function(self) -> Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]] | None:
        return load(self.merge, f"source {self.name!r}: merge") if self.merge else None

    def wanted(self, now_us: int) -> Wanted:
        """What to register: an interval is due at once, a cron schedule at its first tick."""
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
    kind = _kind(given, where)
    try:
        found = _class(kind)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    each = _read_each(given, found, where, folder)
    allowed = {**found.options, **COMMON}
    for key in given:
        if key not in allowed and key not in (*schedule.KEYS, FOR_EACH):
            there = (*found.options, *COMMON, *schedule.KEYS, FOR_EACH)
            raise UsageError(f"{where}: {key!r} is unknown to {kind}; {there_are(key, there)}")
    for key in found.needed:
        if key not in given:
            raise UsageError(f"{where}: {kind} needs {key!r}")
    filled = fill(given, _SAMPLE) if each else given
    values = {key: allowed[key](value, f"{where}: {key}") for key, value in filled.items() if key in allowed}
    common = {key: values.pop(key) for key in COMMON if key in values}
    found.agree(values, where, folder)
    if each:
        # Only the sample was checked: the settings are read again with each value.
        values = {key: readers.as_json(given[key], f"{where}: {key}") for key in values}
        common |= {"data": readers.json_mapping(given["data"], f"{where}: data")} if "data" in given else {}
    times = {key: value for key, value in given.items() if key in schedule.KEYS}
    return SourceSpec(
        name,
        kind,
        values,
        schedule=Schedule.read(times, where=where) if times else None,
        merge=common.get("merge"),
        timeout_seconds=common.get("timeout", LOOK_SECONDS),
        most=common.get("most", MOST_ITEMS),
        whole=common.get("whole"),
        data=common.get("data", {}),
        folder=folder,
        each=each,
        definition=_definition(kind, values, common, readers.as_json(given.get(FOR_EACH), f"{where}: {FOR_EACH}")),
    )


def _read_each(given: Mapping[str, Any], kind: type[Source], where: str, folder: Path) -> Each | None:
    """Read `for_each`, if given: a mapping that names a pipeline, or a source."""
    if FOR_EACH not in given:
        return None
    where, written = f"{where}: {FOR_EACH}", given[FOR_EACH]
    if not isinstance(written, Mapping):
        raise UsageError(
            f"{where}: {written!r} is not a mapping; write it like {{'pipeline': 'authors', 'stage': 'profile'}}"
        )
    _check_places(given, kind, where)
    own = {key: read(written[key], f"{where}: {key}") for key, read in EACH.items() if key in written}
    rest = {key: value for key, value in written.items() if key not in own}
    if "pipeline" not in own and "stage" not in own:
        source = read_source("for_each", rest, where=where, folder=folder)
        if source.schedule or source.each:
            raise UsageError(f"{where}: the source that says for whom has neither a schedule nor for_each of its own")
        return Each(source=source, value=own.get("value"), again_seconds=own.get("again"))
    if rest:
        raise UsageError(f"{where}: {next(iter(rest))!r} is unknown; {there_are(next(iter(rest)), EACH)}")
    if "pipeline" not in own:
        raise UsageError(f"{where}: stage: say of which pipeline")
    return Each(own["pipeline"], own.get("stage"), None, own.get("value"), own.get("again"))


def _check_places(given: Mapping[str, Any], kind: type[Source], where: str) -> None:
    """Allow `{value}` only in options that support it, and send no secret to a host that a value names."""
    places = [key for key in given if key != FOR_EACH and has_value(given[key])]
    for key in places:
        if key not in (*kind.templates, "data"):
            can = f"it may in: {', '.join(kind.templates)}" if kind.templates else f"not in any option of {kind.kind}"
            raise UsageError(f"{where}: {VALUE} cannot stand in {key!r}; {can}")
    if not set(places) & set(kind.templates):
        can = f"write it into {kind.templates[0]!r}" if kind.templates else f"{kind.kind} has no place for it"
        raise UsageError(f"{where}: {VALUE} stands nowhere; {can}")
    address = given.get(kind.kind)
    if "headers" in kind.options and isinstance(address, str) and not names_its_host(address):
        for key in ("headers", "body"):
            if key in given:
                raise UsageError(f"{where}: {key} would be sent to any host that a value names; write the host out")


def _definition(kind: str, values: Mapping[str, Any], common: Mapping[str, Any], each: Any = None) -> str:
    said = f"{kind} {codec.digest(values)}" + (f" {codec.digest(each)}" if each else "")
    return short_hash(f"{said} {codec.digest(common['data'])}" if common.get("data") else said)


def _kind(given: Mapping[str, Any], where: str) -> str:
    """The key that names the kind. Other packages are searched only if it is none of ours, since that takes time."""
    known = [*KINDS]
    kinds = [key for key in given if key in KINDS]
    if not kinds:
        known += sorted(entry.name for entry in _of_others())
        kinds = [key for key in given if key in known]
    if len(kinds) == 1:
        return kinds[0]
    trouble = f"{' and '.join(map(repr, kinds))} are two kinds" if kinds else "no kind is named"
    near = None if kinds else next((near for key in given if (near := nearest(key, known))), None)
    hint = f" (did you mean {near!r}?)" if near else ""
    raise UsageError(f"{where}: {trouble}; write exactly one of: {', '.join(known)}{hint}")


def _of_others() -> EntryPoints:
    """The kinds that other packages have, as entry points."""
    # Imported only here, since most programs do not need it.
    from importlib.metadata import entry_points

    return entry_points(group=GROUP)


@cache
def _class(kind: str) -> type[Source]:
    if kind in KINDS:
        module, _, name = KINDS[kind].partition(".")
        found: type[Source] = getattr(importlib.import_module(f"holdfast.sources.{module}"), name)
        return found
    [entry, *others] = _of_others().select(name=kind)
    if others:
        raise UsageError(f"{kind!r} is a kind of source of two packages: {entry.value} and {others[0].value}")
    try:
        found = entry.load()
    except Exception as error:
        raise UsageError(f"{kind}: importing {entry.value} raised {said(error)}") from error
    if not (isinstance(found, type) and issubclass(found, Source)) or getattr(found, "kind", None) != kind:
        raise UsageError(f"{kind}: {entry.value} is not a class of Source with kind = {kind!r}")
    if taken := sorted({*COMMON, *schedule.KEYS, FOR_EACH, *KINDS} & set(found.options)):
        raise UsageError(
            f"{kind}: {entry.value} has an option {taken[0]!r}, which means something else in every source"
        )
    return found
