"""Typed values: the type that is declared for data or for results checks a value, gives its JSON form, and reads it back.

Models of pydantic are recognised by what their class offers. msgspec reads and writes everything else: dataclasses, TypedDicts,
structs, classes of attrs, and lists and unions of these. The errors of both become one message with a path.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import warnings
from functools import cache
from pathlib import PurePath
from typing import Annotated, Any, Union, get_args, get_origin, is_typeddict

import msgspec

from holdfast.errors import DefinitionError, ValueMismatch
from holdfast.model import codec
from holdfast.model.json_form import json_form

_UNIONS = (Union, types.UnionType)
#: Where msgspec found it: the end of its messages.
_AT = re.compile(r" - at `(?:key in )?\$(.*)`$")
_MISSING = re.compile(r"^Object missing required field `(.*)`$")
#: The modules before the names of types.
_QUALIFIED = re.compile(r"(?:[\w<>]+\.)+(?=\w)")
#: The parts of a JSON schema that say nothing about values.
_PROSE = frozenset({"title", "description", "examples", "$comment"})
#: Keywords whose values are schemas by name, and those whose values are no schemas.
_BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_DATA = frozenset({"default", "const", "enum"})


class ValueType:
    """A declared type. Two values of it have been checked in the same way if their types have the same fingerprint."""

    def __init__(self, declared: Any) -> None:
        """Raises TypeError if it cannot be read from JSON."""
        self.declared = declared
        self.name = _QUALIFIED.sub("", declared.__name__ if isinstance(declared, type) else str(declared))
        self._choices, schema = _choices(declared)
        self.fingerprint: str = codec.digest(schema)[:16]
        _known[self.fingerprint] = self

    def __repr__(self) -> str:
        return f"<type {self.name}>"

    def form(self, value: Any, at: str) -> Any:
        """The JSON form of an instance, or of plain data that fits, with defaults filled in. ValueMismatch with the path below
        `at` if it does not fit, or if its own form could not be read back."""
        try:
            plain = _dump(value)
            made = self._read(plain, at)
            if len(self._choices) > 1 and is_model(type(value)) and type(made) is not type(value):
                both = f"{type(value).__name__} would be read as {type(made).__name__}, which comes before it"
                raise ValueMismatch(f"{at}: a {both} in {self.name}: give them a field by which they can be told apart")
            form = _dump(made)
            if form != plain:
                self._read(form, at)
        except ValueMismatch:
            raise
        except Exception as error:
            raise ValueMismatch(f"{at}: it has no JSON form: {_said(error)}") from None
        return form

    def value(self, form: Any, at: str) -> Any:
        """The instance that a JSON form stands for, or ValueMismatch with the path below `at`."""
        try:
            return self._read(form, at)
        except ValueMismatch:
            raise
        except Exception as error:
            raise ValueMismatch(f"{at}: it cannot be read as {self.name}: {_said(error)}") from None

    def fits(self, form: Any) -> bool:
        try:
            self.value(form, "")
        except ValueMismatch:
            return False
        return True

    def _read(self, form: Any, at: str) -> Any:
        wrong = ""
        for one in self._choices:
            try:
                made = msgspec.convert(form, one, str_keys=True, dec_hook=_read_custom)
                _set_defaults(made)
                return made
            except msgspec.ValidationError as error:
                wrong = wrong or _located(error, at)
        raise ValueMismatch(wrong if len(self._choices) == 1 else f"{at}: it fits none of {self.name}; {wrong}")


#: The types of this process, by fingerprint.
_known: dict[str, ValueType] = {}


def known_type(fingerprint: str | None) -> ValueType | None:
    """The type with this fingerprint, if this process has declared it."""
    return _known.get(fingerprint or "")


def declared_type(declared: Any, where: str) -> ValueType | None:
    """The type that an author names; None for none."""
    if declared is None:
        return None
    try:
        return _value_type(declared)
    except TypeError as error:
        raise DefinitionError(
            f"{where}: {declared!r} is no type that can be read from JSON ({error}): give a pydantic model, a dataclass, a "
            "TypedDict, a msgspec struct, or a list or union of these"
        ) from None


def data_type(declared: Any, where: str) -> ValueType | None:
    """The same for the data of items, which is an object: a model, or a union of several."""
    if declared is not None and not all(map(is_model, _members(declared))):
        raise DefinitionError(
            f"{where}: {declared!r} is not a type of objects: give a pydantic model, a dataclass, a TypedDict or a msgspec "
            "struct"
        )
    return declared_type(declared, where)


def annotated_type(annotation: Any) -> ValueType | None:
    """The type of an annotation, if it names a model; None if it says nothing that could be checked."""
    try:
        meant = _without_outcomes(annotation)
        return _value_type(meant) if _names_a_model(meant) else None
    except TypeError:
        return None


def is_model(kind: Any) -> bool:
    """Whether this is a class whose instances have named fields and can be read from an object."""
    kind = get_origin(kind) or kind
    if not isinstance(kind, type):
        return False
    if issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind) or is_typeddict(kind):
        return True
    return _is_pydantic(kind) or hasattr(kind, "__attrs_attrs__")


@cache
def _cached(declared: Any, members: tuple[Any, ...]) -> ValueType:
    """`members`, since two unions are equal whatever their order."""
    return ValueType(declared)


def _value_type(declared: Any) -> ValueType:
    try:
        hash(declared)
    except TypeError:
        return ValueType(declared)
    return _cached(declared, _members(declared))


def _members(declared: Any) -> tuple[Any, ...]:
    """What a union consists of; the type itself if it is none."""
    if get_origin(declared) is Annotated:
        return _members(get_args(declared)[0])
    return get_args(declared) if get_origin(declared) in _UNIONS else (declared,)


def _without_outcomes(annotation: Any) -> Any:
    """Without what a handler returns in place of a result: `Skip`, `RetryLater`, an error."""
    members = _members(annotation)
    kept = [one for one in members if not (isinstance(one, type) and issubclass(one, BaseException))]
    return annotation if len(kept) == len(members) else Union[tuple(kept)] if kept else None  # noqa: UP007


def _names_a_model(annotation: Any) -> bool:
    if get_origin(annotation) in (*_UNIONS, Annotated, list, dict, tuple):
        return any(map(_names_a_model, get_args(annotation)))
    return is_model(annotation)


def _choices(declared: Any) -> tuple[list[Any], Any]:
    """The types to try, in order, and a schema of all. Only a union that msgspec cannot tell apart is taken apart."""
    try:
        return [declared], _schema(declared)
    except TypeError:
        members = _members(declared)
        if len(members) < 2:
            raise
        return list(members), {"anyOf": [_schema(one) for one in members]}


def _schema(declared: Any) -> Any:
    return _without_prose(msgspec.json.schema(declared, schema_hook=_schema_of_custom))


def _schema_of_custom(kind: Any) -> dict[str, Any]:
    if _is_pydantic(kind):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return dict(kind.model_json_schema())
        except Exception:
            # Some of its fields have no schema.
            return {"fields": {name: str(field.annotation) for name, field in kind.model_fields.items()}}
    if issubclass(kind, PurePath):
        return {"type": "string", "format": "path"}
    raise TypeError(f"{kind.__name__} is of no known kind")


def _without_prose(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_prose(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _BY_NAME and isinstance(value, dict):
            kept[key] = {name: _without_prose(one) for name, one in value.items()}
        elif key not in _PROSE:
            kept[key] = value if key in _DATA else _without_prose(value)
    return kept


def _is_pydantic(kind: Any) -> bool:
    return hasattr(kind, "model_validate") and hasattr(kind, "model_dump")


@cache
def _names_too(kind: Any) -> dict[str, bool]:
    """How a model reads its own form, by alias or by name, where pydantic knows the difference."""
    both = {"by_alias": True, "by_name": True}
    return both if both.keys() <= inspect.signature(kind.model_validate).parameters.keys() else {}


def _read_custom(kind: Any, form: Any) -> Any:
    """Called by msgspec for a class that it does not know."""
    if _is_pydantic(kind):
        return kind.model_validate(form, **_names_too(kind))
    if not isinstance(form, str):
        raise ValueError(f"Expected `str`, got `{type(form).__name__}`")
    return kind(form)


def _set_defaults(made: Any) -> None:
    """msgspec leaves a default of a dataclass in the class, where it looks like one and is neither copied nor written."""
    kind = type(made)
    if kind is list or kind is tuple:
        for one in made:
            _set_defaults(one)
    elif kind is dict:
        for one in made.values():
            _set_defaults(one)
    elif issubclass(kind, msgspec.Struct):
        for name in kind.__struct_fields__:
            _set_defaults(getattr(made, name))
    elif hasattr(kind, "__attrs_attrs__"):
        for field in kind.__attrs_attrs__:
            _set_defaults(getattr(made, field.name))
    elif hasattr(kind, "__dataclass_fields__"):
        for field in dataclasses.fields(kind):
            value = getattr(made, field.name, None)
            _set_defaults(value)
            if field.name not in getattr(made, "__dict__", (field.name,)):
                made.__dict__[field.name] = value


def _dump(value: Any) -> Any:
    return msgspec.to_builtins(value, str_keys=True, enc_hook=_dump_custom)


def _dump_custom(value: Any) -> Any:
    if _is_pydantic(type(value)):
        # By alias, as its schema says; computed fields would not be accepted when it is read.
        return value.model_dump(mode="json", by_alias=True, round_trip=True)
    return json_form(value, codec.MAX_BYTES)


def _located(error: msgspec.ValidationError, at: str) -> str:
    """A path and what is wrong there. The value itself is not shown: it may be long, or secret."""
    text = str(error)
    if found := _AT.search(text):
        at, text = f"{at}{found[1]}", text[: found.start()]
    if (its_own := getattr(error.__cause__, "errors", None)) is not None:
        return _located_by_pydantic(its_own(), at)
    if missing := _MISSING.match(text):
        return f"{at}.{missing[1]}: it is missing"
    return f"{at}: {_lower(text.replace('`', ''))}"


def _located_by_pydantic(errors: list[dict[str, Any]], at: str) -> str:
    first = errors[0]
    for part in first["loc"]:
        at += f"[{part}]" if isinstance(part, int) else f".{part}"
    text = "it is missing" if first["type"] == "missing" else re.sub(r"^Input should be ", "expected ", first["msg"])
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{at}: {_lower(text)}{more}"


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]
