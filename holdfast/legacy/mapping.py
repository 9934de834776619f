"""A mapping: which columns of an old database hold which values of an item. Pure.

    shape: stages-json
    table: pages
    key: url
    priority: -urgency
    stages: {result: "meta.{stage}.result"}
    costs: {table: payments, key: url, stage: step, amount: usd, at: paid_at}

A path is a column, followed by dots and names if it leads into JSON. `{stage}` is the name of a stage, `{running}` and `{done}`
the words for a stage that runs and that is done. Shapes are mappings too; a mapping may start from one, and say what differs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from msgspec import UNSET

from holdfast.errors import UsageError
from holdfast.legacy.read_values import ImportProblem, parsed, parsed_object, shown, text_of
from holdfast.legacy.shapes import SHAPES
from holdfast.legacy.stages_of_old_item import STATES, After, OldRecord
from holdfast.model.did_you_mean import there_are
from holdfast.model.states import State

ITEM = ("key", "pipeline", "data", "priority", "status", "attempts", "error", "added", "ended")
STAGE = ("state", "started", "ended", "elapsed", "error", "attempts", "result", "version", "cost")
#: Side tables, beside the table of items, and what is read from each of their rows. `stages` may be one of them.
SIDE_TABLES: Mapping[str, tuple[str, ...]] = {
    "stages": ("stage", *STAGE),
    "results": ("stage", "result", "version"),
    "costs": ("stage", "amount", "at", "model"),
    "events": ("stage", "event", "at", "data"),
}


class Path(NamedTuple):
    """A column, and the path into the JSON in it."""

    column: str
    keys: tuple[str, ...] = ()

    def with_words(self, **words: str) -> Path:
        return Path(self.column, tuple(_filled(key, words) for key in self.keys))


@dataclass(frozen=True, slots=True)
class SideTable:
    """A table whose rows belong to items, by their key."""

    table: str
    paths: Mapping[str, Path]
    #: Only rows with these values count.
    where: Mapping[str, str]

    def columns(self) -> set[str]:
        return {path.column for path in self.paths.values()} | {*self.where}

    def fits(self, cells: Cells) -> bool:
        return all(cells.get(Path(column)) == value for column, value in self.where.items())


class Cells:
    """The columns of a row. JSON in them is parsed once, when first needed."""

    def __init__(self, raw: Mapping[str, bytes | None], problems: list[ImportProblem]) -> None:
        self.raw = raw
        self.problems = problems
        self._read: dict[str, dict[str, Any]] = {}

    def get(self, path: Path | None) -> Any:
        """The value at a path; UNSET if there is none."""
        if path is None:
            return UNSET
        if not path.keys:
            raw = self.raw.get(path.column)
            return UNSET if raw is None else raw.decode(errors="replace")
        value: Any = self.object_in(path.column)
        for key in path.keys:
            if not isinstance(value, dict) or key not in value:
                return UNSET
            value = value[key]
        return value

    def json(self, path: Path | None) -> Any:
        """The value of a column, parsed as JSON if possible; or the value at a path inside one."""
        if path is None or path.keys:
            return self.get(path)
        raw = self.raw.get(path.column)
        try:
            return UNSET if raw is None else parsed(raw)
        except (ValueError, RecursionError):
            return text_of(raw)

    def object_in(self, column: str) -> dict[str, Any]:
        found = self._read.get(column)
        if found is None:
            raw = self.raw.get(column)
            found = self._read[column] = {} if raw is None else parsed_object(column, raw, self.problems)
        return found


#: The rows of side tables that belong to an item, by name of the table.
SideRows = Mapping[str, Sequence[Cells]]


@dataclass(frozen=True, slots=True)
class Mapped:
    """A mapping, checked."""

    table: str
    item: Mapping[str, Path]
    #: The data of an item from several columns, by name; empty if it is one path.
    data: Mapping[str, Path]
    stages: Mapping[str, Path]
    #: By stage: the words for running and done.
    words: Mapping[str, tuple[str, str]]
    side_tables: Mapping[str, SideTable]
    states: Mapping[str, State]
    #: Larger priorities are claimed first.
    largest_first: bool = False
    #: The columns that the user's mapping names, each with its table. They must exist.
    own: frozenset[tuple[str, str]] = field(default_factory=frozenset)

    @classmethod
    def read(cls, given: Mapping[str, Any], *, where: str = "the mapping") -> Mapped:
        """Read what a person wrote; an error names the key that is wrong."""
        _refuse_unknown(given, ("shape", "table", *ITEM, *SIDE_TABLES, "states"), where)
        shape = given.get("shape")
        if shape is not None and shape not in SHAPES:
            raise UsageError(f"{where}: shape {shown(shape)} is unknown; {there_are(shape, SHAPES)}")
        base = SHAPES[shape] if shape is not None else {}
        whole = {**base, **given}
        for name in ("table", "key"):
            if name not in whole:
                raise UsageError(f"{where}: {name} is missing; say it, or begin with a shape: {', '.join(SHAPES)}")
        stages = _mapping(whole.get("stages", {}), f"{where}: stages")
        if "table" not in stages:
            stages = whole["stages"] = {**base.get("stages", {}), **stages}
        side_tables = {
            name: names
            for name, names in SIDE_TABLES.items()
            if "table" in _mapping(whole.get(name, {}), f"{where}: {name}")
        }
        words = _mapping(stages.get("words", {}), f"{where}: stages: words")
        inside = {name: path for name, path in stages.items() if name != "words"}
        paths = {name: whole[name] for name in ITEM if name in whole}
        several = paths.pop("data") if isinstance(paths.get("data"), Mapping) else {}
        priority = str(paths.get("priority", ""))
        if priority:
            paths["priority"] = priority.removeprefix("-")
        table = _text(whole["table"], f"{where}: table")
        return cls(
            table,
            _paths(paths, ITEM, where),
            {str(name): _path(path, f"{where}: data: {name}") for name, path in several.items()},
            {} if "stages" in side_tables else _paths(inside, (*STAGE, "current", "completed"), f"{where}: stages"),
            {stage: _two(two, f"{where}: stages: words: {stage}") for stage, two in words.items()},
            {name: _side_table(whole[name], names, f"{where}: {name}") for name, names in side_tables.items()},
            {**STATES, **_states(whole.get("states", {}), f"{where}: states")},
            priority.startswith("-"),
            frozenset(_own_columns(given, table, where)),
        )

    def columns(self) -> set[str]:
        """The columns of the table of items."""
        return {path.column for path in (*self.item.values(), *self.data.values(), *self.stages.values())}

    def pipeline_of(self, cells: Cells) -> Any:
        return cells.get(self.item.get("pipeline"))

    def for_stages(self, after: After) -> StagesMapped:
        return StagesMapped(self, after)


class StagesMapped:
    """A mapping for the items of one pipeline."""

    def __init__(self, mapped: Mapped, after: After) -> None:
        self._mapped = mapped
        self._after = after
        self._words = {stage: mapped.words.get(stage, (stage, stage)) for stage in after}
        self._by_word = {word: stage for stage, words in self._words.items() for word in words}
        self._current, self._completed = (mapped.stages.get(name) for name in ("current", "completed"))
        self._paths = {
            stage: [
                (name, path.with_words(stage=stage, running=running, done=done))
                for name, path in mapped.stages.items()
                if name in STAGE
            ]
            for stage, (running, done) in self._words.items()
        }
        self._steps: dict[str, dict[str, dict[str, str]]] = {stage: {} for stage in after}
        for stage, paths in self._paths.items():
            for name, path in paths:
                if len(path.keys) == 1:
                    self._steps[stage].setdefault(path.column, {})[path.keys[0]] = name
        self._others = {
            stage: [(name, path) for name, path in paths if len(path.keys) != 1] for stage, paths in self._paths.items()
        }
        self._known, self._patterns = self._entries()

    def to_record(self, cells: Cells, rows: SideRows) -> OldRecord:
        """The record of the item in a row."""
        found = OldRecord(problems=cells.problems)
        for name, path in self._mapped.item.items():
            if name in ("key", "data") and not path.keys:
                setattr(found, name, cells.raw.get(path.column))
            else:
                setattr(found, name, cells.get(path))
        if self._mapped.data:
            parts = {name: cells.json(path) for name, path in self._mapped.data.items()}
            found.data = {name: value for name, value in parts.items() if value is not UNSET}
        stages = {stage: self._stage(cells, stage) for stage in self._after}
        self._place(found, stages, cells)
        for name in ("stages", "results"):
            for row in rows.get(name, ()):
                self._take(stages, self._mapped.side_tables[name].paths, row, found.problems)
        found.stages = stages
        for path, known in self._known.items():
            there = cells.get(path) if path.keys else cells.object_in(path.column)
            if isinstance(there, dict) and not known.issuperset(there):
                found.problems += self._unknown(path, there)
        return found

    def _stage(self, cells: Cells, stage: str) -> dict[str, Any]:
        said: dict[str, Any] = {}
        # Most paths go one step into JSON, and most find nothing there.
        for column, names in self._steps[stage].items():
            there = cells.object_in(column)
            for key, name in names.items():
                if key in there:
                    said[name] = there[key]
        for name, path in self._others[stage]:
            if (value := cells.get(path)) is not UNSET:
                said[name] = value
        # A null in place of a result is no result.
        if "result" in said and said["result"] is None:
            del said["result"]
        return said

    def _place(self, found: OldRecord, stages: Mapping[str, dict[str, Any]], cells: Cells) -> None:
        """Set states from the list of completed stages and from the word for the current one."""
        completed, current = cells.get(self._completed), cells.get(self._current)
        for word in completed if isinstance(completed, list) else []:
            stage = self._by_word.get(word) if isinstance(word, str) else None
            if stage is not None:
                stages[stage]["state"] = "done"
            elif not isinstance(word, str) or word not in self._mapped.states:
                found.problems.append(ImportProblem("stage_unknown", shown(word), "completed"))
        if current is UNSET or current is None:
            return
        stage = self._by_word.get(current) if isinstance(current, str) else None
        if stage is None:
            if found.status is UNSET or found.status is None:
                found.status = current
            return
        for before in self._before(stage):
            stages[before]["state"] = "done"
        if stages[stage].get("state") != "done":
            stages[stage]["state"] = "done" if current == self._words[stage][1] else "in_progress"

    def _before(self, stage: str) -> set[str]:
        """All stages that come before this one."""
        found: set[str] = set()
        todo = [stage]
        while todo:
            todo += (new := set(self._after[todo.pop()]) - found)
            found |= new
        return found

    @staticmethod
    def _take(
        stages: dict[str, dict[str, Any]], paths: Mapping[str, Path], row: Cells, problems: list[ImportProblem]
    ) -> None:
        """Add the values of a side-table row to its stage."""
        stage = row.get(paths.get("stage"))
        if stage not in stages:
            problems.append(ImportProblem("stage_unknown", shown(stage), "a row of its own"))
            return
        said = {
            name: row.json(path) if name == "result" else row.get(path) for name, path in paths.items() if name in STAGE
        }
        stages[stage].update({name: value for name, value in said.items() if value is not UNSET})
        problems += row.problems

    def _entries(self) -> tuple[dict[Path, set[str]], dict[Path, list[re.Pattern[str]]]]:
        """For each JSON object that is partly read: the names that are read, and the patterns of entries of stages."""
        item = [*self._mapped.item.values(), *self._mapped.data.values()]
        inside = [path for path in (self._current, self._completed) if path is not None]
        inside += [path for paths in self._paths.values() for _, path in paths]
        taken = {*item, *inside}
        known: dict[Path, set[str]] = {}
        patterns: dict[Path, list[re.Pattern[str]]] = {}
        for path in sorted(taken):
            above = [Path(path.column, path.keys[:depth]) for depth in range(len(path.keys))]
            if not taken.intersection(above):
                for one, key in zip(above, path.keys, strict=True):
                    known.setdefault(one, set()).add(key)
        for path in self._mapped.stages.values():
            depth = next((depth for depth, key in enumerate(path.keys) if "{" in key), None)
            if depth is not None:
                text = re.sub(r"\\\{\w+\\\}", "(.+)", re.escape(path.keys[depth]))
                patterns.setdefault(Path(path.column, path.keys[:depth]), []).append(re.compile(text))
        for several in patterns.values():
            several.sort(key=lambda one: -len(one.pattern))
        return known, patterns

    def _unknown(self, path: Path, there: Mapping[str, Any]) -> list[ImportProblem]:
        """Entries that are not read: those of unknown stages, each stage once; and others."""
        found: dict[str, Any] = {}
        other = []
        for name, value in there.items():
            if name in self._known[path]:
                continue
            bases = (match.group(1) for one in self._patterns.get(path, ()) if (match := one.fullmatch(name)))
            base = next(bases, None)
            if base is None:
                where = ".".join((path.column, *path.keys, name))
                other.append(ImportProblem("entry_unknown", None, f"{where[:100]}: {shown(value)}"))
            elif not (path.keys and base in self._mapped.states):
                found[base] = value if base == name else found.get(base)
        return [
            *(ImportProblem("stage_unknown", text_of(base)[:200], shown(value)) for base, value in found.items()),
            *other,
        ]


@dataclass(frozen=True, slots=True)
class MappedByFunction:
    """A function of the user's that turns a row, a mapping of columns to texts, into what a mapping would find:

        {"key": …, "data": {…}, "priority": 0, "status": "done", "stages": {"fetch": {"state": "done", "result": …}}}

    None leaves a row out.
    """

    table: str
    function: Callable[[dict[str, str | None]], Mapping[str, Any] | None]
    side_tables: Mapping[str, SideTable] = field(default_factory=dict)
    states: Mapping[str, State] = field(default_factory=lambda: STATES)
    largest_first: bool = False
    own: frozenset[tuple[str, str]] = frozenset()

    def to_record(self, cells: Cells) -> OldRecord | None:
        row = {name: None if raw is None else raw.decode(errors="replace") for name, raw in cells.raw.items()}
        said = self.function(row)
        if said is None:
            return None
        _refuse_unknown(said, (*ITEM, "stages"), "the function of the mapping")
        stages = _mapping(said.get("stages") or {}, "stages")
        for stage, entry in stages.items():
            _refuse_unknown(_mapping(entry, f"stage {stage}"), STAGE, f"stage {stage!r}")
        return OldRecord(**{name: said.get(name, UNSET) for name in ITEM}, stages=stages, problems=cells.problems)


def _filled(key: str, words: Mapping[str, str]) -> str:
    for name, word in words.items():
        key = key.replace(f"{{{name}}}", word)
    return key


def _refuse_unknown(given: Any, known: Sequence[str], where: str) -> None:
    for key in _mapping(given, where):
        if key not in known:
            raise UsageError(f"{where}: {key!r} is unknown; {there_are(key, known)}")


def _mapping(given: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise UsageError(f"{where}: {shown(given)} is not a mapping")
    return given


def _text(given: Any, where: str) -> str:
    if not isinstance(given, str) or not given:
        raise UsageError(f"{where}: {shown(given)} is not a text")
    return given


def _path(given: Any, where: str) -> Path:
    column, *keys = _text(given, where).split(".")
    if not column or not all(keys):
        raise UsageError(f"{where}: {given!r} is not a path; write it like column, or column.name.name")
    return Path(column, tuple(keys))


def _paths(given: Any, known: Sequence[str], where: str) -> dict[str, Path]:
    _refuse_unknown(given, known, where)
    return {name: _path(path, f"{where}: {name}") for name, path in given.items()}


def _two(given: Any, where: str) -> tuple[str, str]:
    if not isinstance(given, Sequence) or isinstance(given, str) or len(given) != 2:
        raise UsageError(f"{where}: {shown(given)}: write two words, as in [extracting, extracted]")
    return str(given[0]), str(given[1])


def _side_table(given: Any, names: Sequence[str], where: str) -> SideTable:
    rest = {name: path for name, path in _mapping(given, where).items() if name not in ("table", "where", "words")}
    conditions = _mapping(given.get("where", {}), f"{where}: where")
    return SideTable(
        _text(given["table"], f"{where}: table"),
        _paths(rest, ("key", "pipeline", *names), where),
        {column: str(value) for column, value in conditions.items()},
    )


def _states(given: Any, where: str) -> dict[str, State]:
    found = {}
    for word, meaning in _mapping(given, where).items():
        if meaning not in STATES:
            raise UsageError(f"{where}: {word}: {shown(meaning)} is not a state; {there_are(meaning, STATES)}")
        found[str(word).lower()] = STATES[meaning]
    return found


def _own_columns(given: Mapping[str, Any], table: str, where: str) -> Iterator[tuple[str, str]]:
    """The columns that the user names, each with its table."""
    for name in ITEM:
        several = given.get(name, {})
        for path in several.values() if isinstance(several, Mapping) else [several]:
            yield table, _path(str(path).removeprefix("-"), f"{where}: {name}").column
    for name, names in SIDE_TABLES.items():
        part = _mapping(given.get(name, {}), f"{where}: {name}")
        its_table = part.get("table", table if name == "stages" else None)
        if its_table is None and part:
            raise UsageError(f"{where}: {name}: say in which table")
        for key in part.keys() & {*names, "key", "pipeline", "current", "completed"}:
            yield str(its_table), _path(part[key], f"{where}: {name}: {key}").column
