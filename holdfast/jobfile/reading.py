"""Read YAML as a tree that remembers the position of everything, and refuse what no job file needs.

Nothing is made but texts, numbers, truth values, lists and mappings; words mean what they mean in YAML 1.2 (`no` is a
text, `22:00` too). Size, depth, the number of aliases and of what they stand for are bounded: no file takes long.
"""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from yaml.nodes import MappingNode, ScalarNode, SequenceNode
from yaml.nodes import Node as YamlNode

from holdfast.errors import UsageError
from holdfast.jobfile.problems import Position, Problems, below

MOST_BYTES = 1_000_000
#: How deep values may be nested, how many there may be once every alias is expanded, and how many aliases.
DEEPEST = 30
MOST_NODES = 20_000
MOST_ALIASES = 100

#: Replaces a value whose problem was already reported.
BAD: Any = object()

_TAG = "tag:yaml.org,2002:"
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(?:(?:0|[1-9][0-9]*)?\.[0-9]+|(?:0|[1-9][0-9]*)\.?)(?:[eE][-+]?[0-9]+)?")
_WORDS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_NOTHING = ("", "~", "null", "Null", "NULL")


@dataclass(slots=True)
class Node:
    """A value and its position: a scalar, a list of nodes, or a mapping of texts to nodes."""

    value: Any
    place: Position
    #: The position of its key, if it has one.
    key: Position | None = None
    #: Whether it contained a variable.
    filled: bool = False
    #: Whether the value of that variable is a secret.
    secret: bool = False
    #: Whether it is valid, including everything below it; set by the check.
    sound: bool = False

    @property
    def key_place(self) -> Position:
        return self.key or self.place

    def get(self, key: str) -> Node | None:
        """The value of this key in a mapping."""
        found: Node | None = self.value.get(key) if isinstance(self.value, dict) else None
        return found

    def items(self) -> Iterator[tuple[str, Node]]:
        """The entries of a mapping; empty for anything else."""
        return iter(self.value.items() if isinstance(self.value, dict) else ())

    def plain(self) -> Any:
        """The value without positions."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value


def read_file(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a job file, up to one more than the limit."""
    try:
        # Opening a pipe could block forever, so the type is checked first.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise UsageError(f"{os.fspath(path)} is not a file: name a job file, as in holdfast.yaml")
        with Path(path).open("rb") as file:
            return file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{os.fspath(path)} cannot be read: {said}; name a job file, as in holdfast.yaml") from None


def read(content: bytes, problems: Problems) -> Node:
    """The document as a tree. An error that stops the reading is raised, others are added to the problems."""
    text = _decode(content, problems)
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Position(mark.line + 1, mark.column + 1) if mark else Position(1, 1)
        raise problems.end(place, _said(error, text, place)) from None
    except (ValueError, ArithmeticError, LookupError, RecursionError, yaml.YAMLError):
        # An invalid escape, or number in a directive, for which the parser has no message.
        place = Position(loader.line + 1, loader.column + 1)
        raise problems.end(place, "this is not YAML: an escape or a number is out of range") from None
    finally:
        loader.dispose()
    if root is None:
        raise problems.end(Position(1, 1), "the file is empty, expected a mapping with 'pipelines'")
    return _Tree(problems).grow(root)


class _Loader(yaml.SafeLoader):
    """PyYAML's loader with limits, and the plain scalars of YAML 1.2."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own way

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = self._nodes = self._aliases = 0

    def compose_node(self, parent: YamlNode | None, index: Hashable) -> YamlNode | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        self._nodes += 1
        self._aliases += isinstance(event, yaml.AliasEvent)
        for count, most, what in (
            (self._nodes, MOST_NODES, "values"),
            (self._aliases, MOST_ALIASES, "aliases"),
            (self._depth, DEEPEST, "levels"),
        ):
            if count > most:
                raise yaml.MarkedYAMLError(problem=_too_many(what, most), problem_mark=event.start_mark)
        self._depth += 1
        try:
            return super().compose_node(parent, index)  # type: ignore[arg-type]
        finally:
            self._depth -= 1


for _first, _name, _pattern in (
    (("t", "T", "f", "F"), "bool", re.compile("|".join(f"{word}$" for word in _WORDS))),
    (("", "~", "n", "N"), "null", re.compile("|".join(f"{re.escape(word)}$" for word in _NOTHING))),
    (tuple("-+0123456789"), "int", re.compile(f"(?:{_INT.pattern})$")),
    (tuple("-+.0123456789"), "float", re.compile(f"(?:{_FLOAT.pattern})$")),
    (("<",), "merge", re.compile("<<$")),
):
    _Loader.add_implicit_resolver(_TAG + _name, _pattern, list(_first))


class _Tree:
    """Turns PyYAML's nodes into ours. Aliases are expanded, and counted, each time."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._nodes = 0
        self._open: list[YamlNode] = []

    def grow(self, node: YamlNode, path: str = "", key: Position | None = None) -> Node:
        place = _start(node)
        self._nodes += 1
        if self._nodes > MOST_NODES:
            raise self._problems.end(place, f"aliases stand for {_too_many('values', MOST_NODES)}", path)
        if len(self._open) > DEEPEST:
            raise self._problems.end(place, _too_many("levels", DEEPEST), path)
        if any(node is one for one in self._open):
            raise self._problems.end(place, "it contains itself, expected values that end", path)
        self._open.append(node)
        try:
            return Node(self._value(node, path), place, key)
        finally:
            self._open.pop()

    def _value(self, node: YamlNode, path: str) -> Any:
        if isinstance(node, ScalarNode):
            return self._scalar(node, path)
        expected = "seq" if isinstance(node, SequenceNode) else "map"
        if node.tag != _TAG + expected:
            return self._refuse_tag(node, path)
        if isinstance(node, SequenceNode):
            return [self.grow(one, f"{path}[{at}]") for at, one in enumerate(node.value)]
        mapping: dict[str, Node] = {}
        self._fill(mapping, node, path)
        return mapping

    def _fill(self, mapping: dict[str, Node], node: YamlNode, path: str) -> None:
        """Add the entries of a mapping, which take precedence over those merged with `<<`."""
        merged = []
        for key_node, value_node in node.value:
            place = _start(key_node)
            if key_node.tag == f"{_TAG}merge":
                merged.append(value_node)
                continue
            key = self._key(key_node, path)
            if key is BAD:
                continue
            if key in mapping:
                first = mapping[key].key_place.line
                what = f"the key {key!r} is there twice, first in line {first}; expected each key once"
                self._problems.add(place, below(path, key), what)
                continue
            mapping[key] = self.grow(value_node, below(path, key), place)
        for value_node in merged:
            for one in value_node.value if isinstance(value_node, SequenceNode) else [value_node]:
                self._merge(mapping, one, path)

    def _merge(self, mapping: dict[str, Node], node: YamlNode, path: str) -> None:
        if not isinstance(node, MappingNode):
            what = "<< brings in no mapping, expected an alias of one, as in <<: *usual"
            self._problems.add(_start(node), path, what)
            return
        other = self.grow(node, path)
        for key, value in other.items():
            mapping.setdefault(key, value)

    def _key(self, node: YamlNode, path: str) -> Any:
        if not isinstance(node, ScalarNode):
            self._problems.add(_start(node), path, "a list or a mapping is no key, expected a text")
            return BAD
        key = self._scalar(node, path)
        if key is not BAD and not isinstance(key, str):
            self._problems.add(_start(node), path, f'the key {node.value} is no text; write it as "{node.value}"')
            return BAD
        return key

    def _scalar(self, node: ScalarNode, path: str) -> Any:
        text: str = node.value
        kind = node.tag.removeprefix(_TAG)
        if kind == "str":
            if any("\ud800" <= char <= "\udfff" or char == "\0" for char in text):
                return self._refuse(node, path, "a text with a character that cannot be stored, expected plain Unicode")
            return text
        if kind == "null" and text in _NOTHING:
            return None
        if kind == "bool" and text in _WORDS:
            return _WORDS[text]
        if (kind == "int" and _INT.fullmatch(text)) or (kind == "float" and _FLOAT.fullmatch(text)):
            if len(text) > 100 or not math.isfinite(float(text)) or (abs(float(text)) >= 2**63 and kind == "int"):
                return self._refuse(node, path, "a number that is too large, expected one that fits into 64 bits")
            return int(text) if kind == "int" else float(text)
        if kind == "merge":
            return self._refuse(node, path, "<< is not a value, expected it as a key with an alias, as in <<: *usual")
        return self._refuse_tag(node, path)

    def _refuse_tag(self, node: YamlNode, path: str) -> Any:
        tag = str(node.tag)
        shown = f"!!{tag.removeprefix(_TAG)}" if tag.startswith(_TAG) else tag
        what = f"the tag {shown[:80]!r} is not taken here, expected a plain value without a tag"
        return self._refuse(node, path, what)

    def _refuse(self, node: YamlNode, path: str, what: str) -> Any:
        self._problems.add(_start(node), path, what)
        return BAD


def _decode(content: bytes, problems: Problems) -> str:
    if len(content) > MOST_BYTES:
        raise problems.end(Position(1, 1), f"the file is too large, expected at most {MOST_BYTES:,} bytes")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        good = content[: error.start].decode("utf-8-sig", errors="replace")
        raise problems.end(_place_after(good), "this is not UTF-8, expected a text file in UTF-8") from None
    strange = yaml.reader.Reader.NON_PRINTABLE.search(text)
    if strange:
        what = f"the character {strange[0]!r} does not belong into a text file, expected plain text"
        raise problems.end(_place_after(text[: strange.start()]), what)
    return text


def _place_after(text: str) -> Position:
    return Position(text.count("\n") + 1, len(text) - (text.rfind("\n") + 1) + 1)


def _start(node: YamlNode) -> Position:
    return Position(node.start_mark.line + 1, node.start_mark.column + 1)


def _too_many(what: str, most: int) -> str:
    return f"too many {what}, expected at most {most:,}"


def _said(error: yaml.MarkedYAMLError, text: str, place: Position) -> str:
    """PyYAML's message, in plainer words where that is easy."""
    problem = error.problem or "it cannot be read"
    lines = text.splitlines()
    until = lines[place.line - 1][: place.column] if place.line <= len(lines) else ""
    if until.endswith("\t") and "cannot start any token" in problem:
        return "a tab, expected spaces"
    if until.endswith("${"):
        return 'a variable among braces, expected it in quotes, as in "${NAME}"'
    if "another document" in problem:
        return "another document begins here, expected one"
    if error.problem is not None and error.problem.startswith("too many"):
        return problem
    return f"this is not YAML: {problem}{f' ({error.context})' if error.context else ''}"
