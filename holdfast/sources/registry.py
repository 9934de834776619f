"""The kinds of sources, and how what a person wrote becomes one: checked in full before anything is looked at."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.engine.discover import Wanted
from holdfast.errors import UsageError
from holdfast.model import codec, schedule
from holdfast.model.found import short_hash
from holdfast.model.names import nearest, there_are
from holdfast.model.schedule import NEVER, Schedule
from holdfast.sources import readers
from holdfast.sources.contract import Reader, Source, said
from holdfast.sources.dotted import load
from holdfast.sources.value_templates import VALUE, fill, has_value, names_its_host

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

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

#: Where other packages name theirs: `[project.entry-points."holdfast.sources"]`, `shelf = "my_package:Shelf"`.
GROUP = "holdfast.sources"

LOOK_SECONDS = 600.0
MOST_ITEMS = 1_000_000
NAME_LENGTH = 200

FOR_EACH = "for_each"
#: Settings are checked with this for a value; it can stand in an address, and for one.
_SAMPLE = "https://example.org/"

#: What every source may set, beside its schedule.
COMMON: Mapping[str, Reader] = {
    "merge": readers.dotted,
    "timeout": readers.some_time,
    "most": readers.whole_number,
    "whole": readers.flag,
    "data": readers.json_mapping,
}


#: What may be said of those for whom a source is looked at.
EACH: Mapping[str, Reader] = {
    "pipeline": readers.text,
    "stage": readers.text,
    "value": readers.path,
    "again": readers.some_time,
}


@dataclass(frozen=True, slots=True)
class Each:
    """For whom something is looked up: the items of a pipeline, the results of a stage of it, or what a source finds."""

    pipeline: str | None = None
    stage: str | None = None
    source: SourceSpec | None = None
    #: Where the value lies; without a path it is the key.
    value: str | None = None
    #: After how many seconds each is looked up again; never, if None.
    again_seconds: float | None = None


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
    #: For whom it is looked at, each with a value of its own in the settings; without it, once.
    each: Each | None = None
    #: Changes when what the source remembers from earlier looks is of no use any more.
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
        # What was checked is an example; they are read again with each value.
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
    """For whom to look, if that is said: a mapping that names a pipeline, or that is a source itself."""
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
    """A value stands where it is asked for, not in a path or a query; and no secret is sent to whomever a value names."""
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
    """The one key that names a kind. Other packages are asked only for what is none of ours: that takes a moment."""
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
    # Loaded only here: those who need none of them do not wait for it.
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
