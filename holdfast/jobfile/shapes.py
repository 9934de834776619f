"""What a value in a job file may be. A shape checks a value and describes itself as JSON Schema, so that the two cannot differ.
The model reads rates, times and amounts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from holdfast.errors import HoldfastError
from holdfast.jobfile.environment import SHORTEST
from holdfast.jobfile.problems import Problems, below
from holdfast.jobfile.reading import BAD, Node
from holdfast.model.did_you_mean import did_you_mean

Schema = dict[str, Any]

#: A text with a variable in it, for editors, which cannot know its value.
VARIABLE: Schema = {"type": "string", "pattern": r"\$\{"}

#: Replaces any message about such a value.
FROM_A_VARIABLE = "the value of a secret variable is given"


class ValueShape(Protocol):
    def check(self, node: Node, path: str, problems: Problems) -> bool:
        """Add what is wrong with the value to the problems; True if nothing is."""
        ...

    def schema(self) -> Schema: ...


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value that is not a list or a mapping. `read` raises if it cannot be read."""

    expected: str
    types: tuple[type, ...]
    describe: Schema
    read: Callable[[Any, str], object] = lambda value, where: value

    def check(self, node: Node, path: str, problems: Problems) -> bool:
        if node.value is BAD:
            return False
        what = self._wrong_with(node, path)
        if what is not None:
            # The message may show the value: for a secret one, only what was expected is reported.
            problems.add(node.place, path, f"{FROM_A_VARIABLE}, expected {self.expected}" if node.secret else what)
            return False
        node.value, node.sound = self._value(node), True
        return True

    def _wrong_with(self, node: Node, path: str) -> str | None:
        value = self._value(node)
        if (isinstance(value, bool) and bool not in self.types) or not isinstance(value, self.types):
            hint = f'; in quotes it is one: "{value}"' if _is_number(value) and str in self.types else ""
            return f"{_kind(node)}, expected {self.expected}{hint}"
        try:
            self.read(value, path)
        except HoldfastError as error:
            return str(error).removeprefix(f"{path}: ")
        return None

    def _value(self, node: Node) -> Any:
        """The value. A number or a boolean from a variable is converted, since variables are texts."""
        text = node.value
        if not node.filled or not isinstance(text, str) or str in self.types:
            return text
        if bool in self.types and text.lower() in ("true", "false"):
            return text.lower() == "true"
        for number in (int, float):
            if number in self.types:
                try:
                    return number(text)
                except ValueError:
                    continue
        return text

    def schema(self) -> Schema:
        takes_any_text = str in self.types and "enum" not in self.describe
        return self.describe if takes_any_text else {"anyOf": [self.describe, VARIABLE]}


@dataclass(frozen=True, slots=True)
class Many:
    """One, or a list of them."""

    of: ValueShape

    def check(self, node: Node, path: str, problems: Problems) -> bool:
        if not isinstance(node.value, list):
            return self.of.check(node, path, problems)
        checked = [self.of.check(one, f"{path}[{at}]", problems) for at, one in enumerate(node.value)]
        node.sound = all(checked)
        return node.sound

    def schema(self) -> Schema:
        return {"anyOf": [self.of.schema(), {"type": "array", "items": self.of.schema()}]}


@dataclass(frozen=True, slots=True)
class Either:
    """The first shape, or, if it is a mapping, the second."""

    scalar: Scalar
    mapping: ValueShape

    def check(self, node: Node, path: str, problems: Problems) -> bool:
        shape: ValueShape = self.mapping if isinstance(node.value, dict) else self.scalar
        return shape.check(node, path, problems)

    def schema(self) -> Schema:
        return {"anyOf": [self.scalar.schema(), self.mapping.schema()]}


@dataclass(frozen=True, slots=True)
class KeySpec:
    """A key of a table, the shape of its value, and its purpose."""

    shape: ValueShape
    about: str
    required: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A mapping whose keys are known."""

    keys: Mapping[str, KeySpec]

    def check(self, node: Node, path: str, problems: Problems) -> bool:
        if not _is_mapping(node, path, problems, f"a mapping with {_some(list(self.keys))}"):
            return False
        sound = True
        for key, one in node.items():
            if key in self.keys:
                sound &= self.keys[key].shape.check(one, below(path, key), problems)
            else:
                what = f"the key {key!r} is unknown, {did_you_mean(key, list(self.keys))}"
                problems.add(one.key_place, below(path, key), what)
                sound = False
        for key, known in self.keys.items():
            if known.required and key not in node.value:
                problems.add(node.key_place, path, f"{key!r} is missing, expected {known.about}")
                sound = False
        node.sound = sound
        return sound

    def schema(self) -> Schema:
        described: Schema = {
            "type": "object",
            "properties": {key: {"description": one.about, **one.shape.schema()} for key, one in self.keys.items()},
            "additionalProperties": False,
        }
        required = [key for key, one in self.keys.items() if one.required]
        return described | ({"required": required} if required else {})


@dataclass(frozen=True, slots=True)
class Named:
    """A mapping from names chosen by the author to values of one shape."""

    of: ValueShape
    what: str
    pattern: str = r"[^\W\d][\w.-]{0,99}"
    rule: str = "a letter, then letters, digits, '_', '-' or '.', 100 at most"
    some: bool = False

    def check(self, node: Node, path: str, problems: Problems) -> bool:
        if not _is_mapping(node, path, problems, f"a mapping of names to {self.what}s"):
            return False
        sound = True
        if self.some and not node.value:
            problems.add(node.key_place, path, f"it is empty, expected at least one {self.what}")
            sound = False
        for name, one in node.items():
            if not re.fullmatch(self.pattern, name):
                what = f"{name!r} is not a valid name for a {self.what}, expected {self.rule}"
                problems.add(one.key_place, below(path, name), what)
                sound = False
            sound &= self.of.check(one, below(path, name), problems)
        node.sound = sound
        return sound

    def schema(self) -> Schema:
        described: Schema = {
            "type": "object",
            "propertyNames": {"minLength": 1, "maxLength": 100},
            "additionalProperties": self.of.schema(),
        }
        return described | ({"minProperties": 1} if self.some else {})


@dataclass(frozen=True, slots=True)
class Free:
    """A mapping that is read elsewhere: its keys are not known here."""

    what: str
    describe: Schema = field(default_factory=lambda: {"type": "object", "minProperties": 1})

    def check(self, node: Node, path: str, problems: Problems) -> bool:
        if not _is_mapping(node, path, problems, f"a mapping that describes {self.what}"):
            return False
        if not node.value:
            problems.add(node.key_place, path, f"it is empty, expected a mapping that describes {self.what}")
            return False
        node.sound = _is_whole(node)
        return node.sound

    def schema(self) -> Schema:
        return self.describe


def discreet(node: Node, what: str) -> str:
    """A message about a value, replaced if it shows any part of what a variable stood for."""
    if isinstance(node.value, (dict, list)):
        for one in node.value.values() if isinstance(node.value, dict) else node.value:
            what = discreet(one, what)
    elif node.secret and _shows(what, node.value):
        return f"{FROM_A_VARIABLE}, expected another one"
    return what


def _shows(what: str, value: object) -> bool:
    text = str(value)
    return (isinstance(value, str) and repr(value) in what) or (len(text) >= SHORTEST and text[:8] in what)


def _is_mapping(node: Node, path: str, problems: Problems, expected: str) -> bool:
    if node.value is BAD or isinstance(node.value, dict):
        return node.value is not BAD
    problems.add(node.place, path, f"{FROM_A_VARIABLE if node.secret else _kind(node)}, expected {expected}")
    return False


def _is_whole(node: Node) -> bool:
    inner = node.value.values() if isinstance(node.value, dict) else node.value if isinstance(node.value, list) else ()
    return node.value is not BAD and all(map(_is_whole, inner))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _kind(node: Node) -> str:
    """A short description of the value."""
    value = node.value
    if value is None:
        return "nothing is given"
    if isinstance(value, dict):
        return "a mapping is given"
    if isinstance(value, list):
        return "a list is given"
    if isinstance(value, bool):
        return f"{str(value).lower()} is given"
    shown = repr(value)
    return f"{shown if len(shown) <= 60 else f'{shown[:59]}…'} is given"


def _some(keys: Sequence[str]) -> str:
    return ", ".join(repr(key) for key in keys[:4]) + (", …" if len(keys) > 4 else "")
