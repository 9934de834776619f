"""Every public name with its signature and the first sentence of its docstring."""

from __future__ import annotations

import ast
import enum
import inspect
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

from holdfast import pytest_plugin
from tools.reference.markdown import code, finished, first_sentence, head, table

#: The modules whose names are promised, and what each is for.
MODULES = {
    "holdfast": "Pipelines, the app, outcomes and errors.",
    "holdfast.aio": "The app for async programs. Its methods are those of `Holdfast`, to be awaited.",
    "holdfast.providers": "Paid calls through clients of model providers: [guide](../guide/model-providers.md), "
    "[what errors mean](providers.md).",
    "holdfast.adopt": "Rows of your own tables: [guide](../guide/own-tables.md).",
    "holdfast.adopt.compat": "`run_job_loop` in its older form, for programs that migrate.",
    "holdfast.web": "The dashboard inside your own application: [guide](../guide/dashboard.md).",
    "holdfast.jobfile": "Job files from Python: [guide](../guide/job-file.md).",
    "holdfast.sources": "Kinds of sources of your own: [guide](../guide/sources.md).",
    "holdfast.legacy": "Import from Python: [guide](../guide/import.md).",
    "holdfast.testing": "Fixtures and crash points for your tests: [guide](../guide/crash-tests.md).",
    "holdfast.answers": "What questions return; [the JSON of answers](json.md) lists their attributes.",
}
#: What has no docstring.
CONSTANTS = {
    "CRASH_VARIABLE": "The environment variable that names a crash point.",
    "Duration": 'A length of time: seconds, or a text with its unit, such as `"30m"`.',
    "KINDS": "The built-in kinds of sources.",
    "Verdict": "What a verdict can be: an outcome, or an error that a handler may raise.",
}
#: Too long to be read in a table; longer defaults are shortened.
LONGEST_DEFAULT = 30


def names_of(module: ModuleType) -> list[str]:
    """The public names of a module: those of `__all__`, or what it defines itself."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return sorted(listed)
    own = {name: value for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__}
    kinds = (inspect.isclass, inspect.isfunction)
    return sorted(name for name, value in own.items() if not name.startswith("_") and any(is_(value) for is_ in kinds))


def page() -> str:
    lines = head(
        "The API",
        """Every public name, with its parameters and one sentence. Docstrings say more: `help(holdfast.Pipeline)`, or the
        pages of the site below *API in full*. What is not here is not public, and may change at any time.""",
    )
    for name, about in MODULES.items():
        lines += [f"## {name}", "", about, "", *_module(import_module(name))]
    return finished([*lines, *_fixtures()])


def _fixtures() -> Iterator[str]:
    """The fixtures of the plugin that have a name to ask for, and what the store of a test can do."""
    yield from ("## pytest fixtures", "")
    yield from (
        "What holdfast adds to pytest where it is installed: [guide](../guide/crash-tests.md#in-your-tests).",
        "",
    )
    functions = (one for one in ast.parse(inspect.getsource(pytest_plugin)).body if isinstance(one, ast.FunctionDef))
    public = sorted(
        (one for one in functions if not one.name.startswith("_") and _is_fixture(one)), key=lambda one: one.name
    )
    yield from table(("fixture", "what it gives"), ((code(one.name), _whole(ast.get_docstring(one))) for one in public))
    yield from ("### holdfast_store", "", _whole(inspect.getdoc(pytest_plugin.StoreForTests)), "")
    yield from table(("member", "what it is"), _members(pytest_plugin.StoreForTests))


def _is_fixture(function: ast.FunctionDef) -> bool:
    return any(ast.unparse(one).startswith("pytest.fixture") for one in function.decorator_list)


def _whole(text: str | None) -> str:
    return " ".join((text or "").split())


def _module(module: ModuleType) -> Iterator[str]:
    rows, classes = [], []
    for name in names_of(module):
        value = getattr(module, name)
        rows.append((code(f"{name}{signature(value)}"), _about(name, value)))
        if inspect.isclass(value) and (members := list(_members(value))) and module.__name__ != "holdfast.answers":
            classes.append((name, members))
    yield from table(("name", "what it is"), rows)
    for name, members in classes:
        yield from (f"### {module.__name__}.{name}", "")
        yield from table(("member", "what it is"), members)


def _about(name: str, value: Any) -> str:
    if inspect.isclass(value) or callable(value):
        return first_sentence(inspect.getdoc(value)) if value.__doc__ else ""
    return CONSTANTS[name]


def _members(value: type) -> Iterator[tuple[str, str]]:
    """The methods and properties of a class that are its own or a parent's within holdfast."""
    for name, member in inspect.getmembers_static(value):
        home = next(one for one in value.__mro__ if name in vars(one)) if not name.startswith("_") else object
        if name.startswith("_") or not home.__module__.startswith("holdfast") or not _is_documented(member):
            continue
        function = getattr(member, "__func__", getattr(member, "func", member))
        shown = (
            name
            if isinstance(member, property) or hasattr(member, "func")
            else f"{name}{signature(function, method=True)}"
        )
        yield code(shown), first_sentence(inspect.getdoc(getattr(value, name, member)))


def _is_documented(member: object) -> bool:
    """Members without a docstring are fields: the signature of their class shows them."""
    return isinstance(member, property) or ((callable(member) or hasattr(member, "__func__")) and bool(member.__doc__))


def signature(value: Any, *, method: bool = False) -> str:
    """The parameters of a function or a class: names and defaults. Types are left to docstrings and editors."""
    if not callable(value) or (inspect.isclass(value) and issubclass(value, enum.Enum)):
        return ""
    try:
        given = list(inspect.signature(value).parameters.values())
    except (TypeError, ValueError):
        return ""
    if inspect.isclass(value) and [one.name for one in given] in (["args", "kwargs"], []):
        return ""
    return f"({', '.join(_parameters(given[1:] if method else given))})"


def _parameters(given: list[inspect.Parameter]) -> Iterator[str]:
    starred = False
    for one in (one for one in given if not one.name.startswith("_")):
        if one.kind is one.VAR_POSITIONAL:
            starred = True
            yield f"*{one.name}"
        elif one.kind is one.VAR_KEYWORD:
            yield f"**{one.name}"
        else:
            if one.kind is one.KEYWORD_ONLY and not starred:
                starred = True
                yield "*"
            yield one.name if one.default is one.empty else f"{one.name}={_default(one.default)}"


def _default(value: Any) -> str:
    if callable(value):
        return str(getattr(value, "__name__", type(value).__name__))
    kind: Any = type(value)
    if kind.__repr__ is object.__repr__ or len(repr(value)) > LONGEST_DEFAULT:
        return "…"
    return repr(value)
