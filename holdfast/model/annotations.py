"""The types that the annotations of a handler name: `(item: Item[Book], ctx: Context) -> Summary`."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, get_args, get_origin, get_type_hints

from holdfast.errors import DefinitionError
from holdfast.model.item import Item
from holdfast.model.typed import ValueType, annotated_type, declared_type


def types_of(handler: Callable[..., Any], batch: bool) -> tuple[ValueType | None, ValueType | None]:
    """The types of an item's data and of its result; None for what says nothing that could be checked."""
    try:
        item = next(iter(inspect.signature(handler).parameters), "")
    except (TypeError, ValueError):
        return None, None
    found = _resolved(handler, (item, "return"))
    given, returned = found.get(item), found.get("return")
    if batch:
        given, returned = _argument(given, list), _argument(returned, list)
    return annotated_type(_argument(given, Item)), annotated_type(returned)


def item_type(declared: Any, annotated: ValueType | None, where: str) -> ValueType | None:
    """What a handler gets as `item.data`: the declared type of the pipeline or, without one, what its annotation names."""
    given = declared_type(declared, f"{where}: data")
    if given is not None and annotated is not None and not _is_one(given, annotated):
        raise DefinitionError(
            f"{where}: its handler takes an Item[{annotated.name}], but the data of this pipeline is of type {given.name}"
        )
    return given or annotated


def _is_one(given: ValueType, other: ValueType) -> bool:
    if given.fingerprint == other.fingerprint:
        return True
    try:
        return issubclass(given.declared, other.declared)
    except TypeError:  # a union, a TypedDict
        return False


def _argument(annotation: Any, origin: Any) -> Any:
    """The argument of an annotation, if it is of this generic class."""
    return get_args(annotation)[0] if get_origin(annotation) is origin else None


def _resolved(function: Any, names: Iterable[str]) -> dict[str, Any]:
    """The annotations of a function under these names, evaluated one by one; without those that cannot be."""
    function = _innermost(function)
    try:
        given = dict(function.__annotations__)
        around = _around(function)
    except Exception:  # Python 3.14 evaluates annotations when they are asked for
        return {}
    found: dict[str, Any] = {}
    for name in names:
        if name in given:
            try:
                found[name] = _evaluated(given[name], function.__globals__, around)
            except Exception:
                continue
    return found


def _innermost(function: Any) -> Any:
    """The function behind a method, a partial, a decorator or an object that can be called."""
    while True:
        if isinstance(function, types.MethodType):
            function = function.__func__
        elif isinstance(function, partial):
            function = function.func
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        else:
            return function if isinstance(function, types.FunctionType) else type(function).__call__


def _around(function: Any) -> dict[str, Any]:
    """What is defined in the function around it and used in it."""
    found: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # not set yet
            found[name] = cell.cell_contents
    return found


def _evaluated(annotation: Any, names: dict[str, Any], around: dict[str, Any]) -> Any:
    def probe() -> None: ...

    probe.__annotations__ = {"return": annotation}
    return get_type_hints(probe, names, around, include_extras=True)["return"]
