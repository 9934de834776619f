"""The exit codes of every command: those that its function ends with, and those that errors stand for."""

from __future__ import annotations

import ast
import inspect
import signal
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from types import ModuleType

from holdfast import errors
from holdfast.cli import COMMANDS
from holdfast.cli.exit_codes import BROKEN_PIPE, INTERRUPTED
from tools.reference.markdown import finished, head, table
from tools.reference.words import EXIT_CODES

#: Every command may end with these: success, an unexpected error, wrong usage, interrupted, a closed pipe.
OF_ALL = frozenset({0, errors.HoldfastError.exit_code, errors.UsageError.exit_code, INTERRUPTED, BROKEN_PIPE})
#: Commands that load a file of the user's, and those that open no store.
STORELESS = ("adopt-sql", "schema")
#: What `128 + number` can be: the signals that commands handle.
SIGNALS = frozenset({128 + signal.SIGINT, 128 + signal.SIGTERM})
#: What functions from other modules return, by the words of their call.
FROM_ELSEWHERE = {
    "exit_code": SIGNALS,
    # What one of its processes ended with; the page says it of signals.
    "supervisor.run": frozenset({0, 1, 2, errors.DefinitionError.exit_code, errors.StoreError.exit_code}),
}
#: uvicorn stops, and then lets the signal end the process.
ENDED_BY_THE_SIGNAL = ("ui",)


def page() -> str:
    lines = head(
        "Exit codes",
        """What `holdfast` ends with. Errors are one line on stderr that begins with `holdfast:`; `-v` adds where in the code
        they arose.""",
    )
    lines += table(("code", "meaning"), ((str(code), EXIT_CODES[code]) for code in sorted(all_codes())))
    lines += ["## By command", "", f"Every command may end with {_listed(OF_ALL)}. Beside these:", ""]
    lines += table(
        ("command", "may also end with"), ((f"`{name}`", _listed(own)) for name, own in _by_command() if own)
    )
    lines += [
        "`worker --processes` ends with the code of a process that could not begin, or that died again and again; if a signal",
        "killed that process, with 128 and the number of the signal (137 for SIGKILL).",
        "",
    ]
    return finished(lines)


def _listed(codes: frozenset[int] | set[int]) -> str:
    return ", ".join(str(one) for one in sorted(codes))


def _by_command() -> Iterator[tuple[str, set[int]]]:
    from tools.reference.command_line import every_command

    for name, _ in every_command():
        yield name, of_command(name) - OF_ALL


def all_codes() -> set[int]:
    """Every code that some command or some error has."""
    from tools.reference.command_line import every_command

    raised = {one.exit_code for one in vars(errors).values() if _is_error(one)}
    return raised.union(OF_ALL, *(of_command(name) for name, _ in every_command()))


def _is_error(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, errors.HoldfastError)


@cache
def of_command(name: str) -> set[int]:
    """The codes that a command may end with."""
    module = import_module(f"holdfast.cli.{COMMANDS[name.split()[0]][0]}")
    found = {*OF_ALL, *_ended_with(module, name.split()[-1].replace("-", "_"))}
    takes_file = any("file" in one for one in _parameters(module, name.split()[-1].replace("-", "_")))
    if takes_file or name == "loop":
        found.add(errors.DefinitionError.exit_code)
    if name not in STORELESS:
        found.add(errors.StoreError.exit_code)
    if name in ENDED_BY_THE_SIGNAL:
        found |= SIGNALS
    return found


def _parameters(module: ModuleType, function: str) -> list[str]:
    node = _functions(module).get(function)
    return [one.arg for one in (*node.args.args, *node.args.kwonlyargs)] if node else []


@cache
def _functions(module: ModuleType) -> dict[str, ast.FunctionDef]:
    tree = ast.parse(inspect.getsource(module))
    return {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef)}


def _ended_with(module: ModuleType, function: str) -> set[int]:
    """The codes given to `finish`, in a function and in those of its module that it calls."""
    return set[int]().union(*(_values(call.args[0], module) for call in _finishing(module, function)))


def _finishing(module: ModuleType, function: str) -> Iterator[ast.Call]:
    """The calls of `finish` in a function and in those of its module that it calls."""
    known = _functions(module)
    todo, seen = [function], set[str]()
    while todo:
        name = todo.pop()
        if name in seen or name not in known:
            continue
        seen.add(name)
        for call in (one for one in ast.walk(known[name]) if isinstance(one, ast.Call)):
            called = getattr(call.func, "attr", getattr(call.func, "id", ""))
            todo.append(called)
            if called == "finish":
                yield call


def understood(name: str) -> Iterator[tuple[str, int]]:
    """Where the code of a command ends it with a code that is known here: file and line."""
    module = import_module(f"holdfast.cli.{COMMANDS[name.split()[0]][0]}")
    for call in _finishing(module, name.split()[-1].replace("-", "_")):
        if _values(call.args[0], module):
            yield str(module.__file__), call.lineno


def _values(node: ast.expr, module: ModuleType) -> set[int]:
    """What an expression for an exit code can be."""
    if isinstance(node, ast.Constant):
        return {node.value} if isinstance(node.value, int) else set()
    if isinstance(node, ast.IfExp):
        return _values(node.body, module) | _values(node.orelse, module)
    if isinstance(node, ast.BinOp):
        return set(SIGNALS)
    if isinstance(node, ast.Name):
        value = getattr(module, node.id, None)
        return {value} if isinstance(value, int) else set()
    if isinstance(node, ast.Attribute) and node.attr == "exit_code":
        return _of_error(node.value, module)
    if isinstance(node, ast.Call):
        return _of_call(node, module)
    return set()


def _of_error(node: ast.expr, module: ModuleType) -> set[int]:
    """The code of a class of errors, or of the errors that a function of the module catches under this name."""
    name = ast.unparse(node)
    if isinstance(found := getattr(module, name, None), type):
        return {found.exit_code} if issubclass(found, errors.HoldfastError) else set()
    handlers = [one for one in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(one, ast.ExceptHandler)]
    caught = [ast.unparse(one.type) for one in handlers if one.name == name and one.type is not None]
    classes = [getattr(module, one, None) or getattr(errors, one, None) for one in caught]
    return {one.exit_code for one in classes if isinstance(one, type) and issubclass(one, errors.HoldfastError)}


def _of_call(node: ast.Call, module: ModuleType) -> set[int]:
    """What a function returns."""
    function = _functions(module).get(ast.unparse(node.func))
    if function is None:
        return set(FROM_ELSEWHERE.get(ast.unparse(node.func), ()))
    returns = [one.value for one in ast.walk(function) if isinstance(one, ast.Return) and one.value is not None]
    return {code for value in returns for code in _values(value, module)}
