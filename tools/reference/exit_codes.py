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
    known = _functions(module)
    codes: set[int] = set()
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
                codes |= _values(call.args[0], module)
    return codes


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
    """What a function of the module returns; one from elsewhere gives the code of a signal."""
    function = _functions(module).get(ast.unparse(node.func))
    if function is None:
        return set(SIGNALS) if ast.unparse(node.func) == "exit_code" else set()
    returns = [one.value for one in ast.walk(function) if isinstance(one, ast.Return) and one.value is not None]
    return {code for value in returns for code in _values(value, module)}
