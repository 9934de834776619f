"""Find a function, or a type, by its full dotted path: `package.module.name`, or `package.module:object.name` for an attribute.

Modules beside the job file are found first. A module is imported once, also if that fails.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from holdfast.errors import DefinitionError
from holdfast.jobfile.importing import look_also_in, place, said
from holdfast.model.did_you_mean import did_you_mean

UserFunction = Callable[..., Any]


class Handlers:
    """Finds functions, for one reading of a job file in this folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._modules: dict[str, ModuleType | str] = {}

    def look_here(self) -> None:
        """Make the folder importable, without running anything."""
        look_also_in(self._folder)
        importlib.invalidate_caches()

    def find(self, path: str) -> UserFunction:
        """The function at this path; the error says what is missing, or what went wrong in the module and where."""
        found = self._find(path, "function")
        if not callable(found):
            raise DefinitionError(f"{path!r} is of type {type(found).__name__}, expected a function")
        return found  # type: ignore[no-any-return]

    def find_type(self, path: str) -> Any:
        """The same for a type, which may be a list or a union of others that has a name in a module."""
        return self._find(path, "type")

    def _find(self, path: str, what: str) -> Any:
        module, names = _split(path)
        found: Any = self._import(module)
        done = module
        for name in names:
            try:
                found = getattr(found, name)
            except Exception as error:
                raise DefinitionError(self._missing(found, done, name, error, what)) from None
            done = f"{done}.{name}"
        return found

    def _import(self, name: str) -> ModuleType:
        if name not in self._modules:
            try:
                self._modules[name] = importlib.import_module(name)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                self._modules[name] = self._explained(name, error)
        module = self._modules[name]
        if isinstance(module, str):
            raise DefinitionError(module)
        return module

    def _explained(self, name: str, error: BaseException) -> str:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            outer, _, inner = name.rpartition(".")
            deeper = f", or {outer}:{inner}.name for what lies in an object" if outer and error.name == name else ""
            return f"there is no module {error.name!r}, expected package.module.name{deeper}"
        return f"module {name!r} cannot be imported: {place(error, self._folder) or name}: {said(error)}"

    def _missing(self, found: Any, done: str, name: str, error: Exception, what: str) -> str:
        if not isinstance(error, AttributeError):
            return f"{done}.{name} cannot be read: {place(error, self._folder) or done}: {said(error)}"
        home = f" (of {found.__file__})" if isinstance(found, ModuleType) and getattr(found, "__file__", None) else ""
        known = [one for one in dir(found) if not one.startswith("_")]
        near = did_you_mean(name, known) if known else ""
        hint = near if near.startswith("did you mean") else f"expected the name of a {what} in it"
        return f"{done!r}{home} has no {name!r}, {hint}"


def there_may_be(path: str) -> bool:
    """Whether the module of a path may exist, found without running any code."""
    top = _split(path)[0].partition(".")[0]
    try:
        return top in sys.modules or importlib.util.find_spec(top) is not None
    except (ImportError, ValueError, AttributeError):
        return True


def takes(function: UserFunction, count: int) -> bool:
    """Whether a function can be called with this many values."""
    try:
        inspect.signature(function).bind(*([None] * count))
    except TypeError:
        return False
    except ValueError:  # a builtin without a signature
        return True
    return True


def _split(path: str) -> tuple[str, list[str]]:
    if ":" in path:
        module, _, rest = path.partition(":")
        return module, rest.split(".")
    module, _, name = path.rpartition(".")
    return module, [name]
