"""The types that the annotations of a handler name: `(item: Item[Book], ctx: Context) -> Summary`."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable
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
    while isinstance(function, types.MethodType) or hasattr(function, "__wrapped__") or hasattr(function, "func"):
        function = next(
            getattr(function, name) for name in ("__func__", "__wrapped__", "func") if hasattr(function, name)
        )
    if not isinstance(function, types.FunctionType):
        function = type(function).__call__
    try:
        given = dict(function.__annotations__)
        # What is defined in the function around it and used in it is found, too.
        around = inspect.getclosurevars(function).nonlocals if function.__closure__ else {}
    except Exception:
        return {}
    found: dict[str, Any] = {}
    for name in names:
        if name in given:
            try:
                found[name] = _evaluated(given[name], function.__globals__, dict(around))
            except Exception:
                continue
    return found


def _evaluated(annotation: Any, names: dict[str, Any], around: dict[str, Any]) -> Any:
    def probe() -> None: ...

    probe.__annotations__ = {"return": annotation}
    return get_type_hints(probe, names, around, include_extras=True)["return"]
