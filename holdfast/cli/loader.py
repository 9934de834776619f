"""Load the pipelines of a file, so that its `if __name__ == "__main__"` block does not run.

Whatever goes wrong in the file is told in one line with the place in it.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType

from holdfast.cli.options import address
from holdfast.errors import DefinitionError, HoldfastError, StoreError
from holdfast.model.stage import PipelineSpec
from holdfast.pipeline import Pipeline


def load(file: str, store: str | None) -> tuple[str, list[PipelineSpec]]:
    """The pipelines of a file or a dotted module, and the store to use; see `options.address` for which that is."""
    module = _load_module(file)
    found = list({id(one): one for one in vars(module).values() if isinstance(one, Pipeline)}.values())
    if not found:
        raise DefinitionError(f'{file} has no pipeline: write one like books = Pipeline("books")')
    names = [one.name for one in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DefinitionError(f"{file} has two pipelines named {twice[0]!r}: rename one of them")
    try:
        specs = [one.spec for one in found]
    except DefinitionError as error:
        raise DefinitionError(f"{file}: {error}") from error
    return store or address(None, _common_store(file, found)), specs


def _common_store(file: str, pipelines: list[Pipeline]) -> str | None:
    stores = {one.store for one in pipelines} - {None, ""}
    if len(stores) > 1:
        raise DefinitionError(f"the pipelines of {file} name different stores: choose one with --store")
    return stores.pop() if stores else None


def _load_module(file: str) -> ModuleType:
    path = Path(file)
    if path.is_dir():
        raise DefinitionError(f"{file} is a folder: name the file in it that has the pipeline")
    if path.suffix != ".py" and not path.is_file() and os.sep not in file:
        return _import_name(file)
    if not path.is_file():
        raise DefinitionError(f"{file} does not exist: name a Python file, or a module as package.module")
    return _import_path(file, path.resolve())


def _import_name(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise DefinitionError(
            f"{name!r} is neither a file nor a module: name a Python file, or a module as package.module"
        )
    _look_first_in(Path.cwd())
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError) as error:
        raise DefinitionError(f"module {name}: {_said(error)}") from error
    except BaseException as error:
        raise _explained(error, name, Path.cwd()) from error
    if found is None:
        raise DefinitionError(f"there is no file and no module {name}, seen from {Path.cwd()}")
    try:
        return importlib.import_module(name)
    except BaseException as error:
        raise _explained(error, name, Path(found.origin).parent if found.origin else Path.cwd()) from error


def _import_path(shown: str, path: Path) -> ModuleType:
    root, name = path.parent, path.stem
    try:
        while (root / "__init__.py").is_file():
            root, name = root.parent, f"{root.name}.{name}"
        _look_first_in(root)
        name = _free_name(name, path)
        if "." in name:
            importlib.import_module(name.rpartition(".")[0])
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise DefinitionError(f"{shown} is not a Python file: its name must end with .py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module
    except BaseException as error:
        raise _explained(error, shown, root) from error


def _look_first_in(folder: Path) -> None:
    if sys.path[:1] != [str(folder)]:
        sys.path.insert(0, str(folder))


def _free_name(name: str, path: Path) -> str:
    """The file's own name, unless another module goes by it: `queue.py` must not become the library's `queue`."""
    there = sys.modules.get(name)
    taken = there is not None and getattr(there, "__file__", None) != str(path)
    if taken or name in sys.stdlib_module_names or not all(part.isidentifier() for part in name.split(".")):
        return f"holdfast_file_{hashlib.blake2b(str(path).encode(), digest_size=6).hexdigest()}"
    return name


def _explained(error: BaseException, shown: str, root: Path) -> BaseException:
    """What went wrong in the file, where, in one line; the database and an interruption speak for themselves."""
    if isinstance(error, (StoreError, KeyboardInterrupt)):
        return error
    place = _place(error, root)
    if place is None:
        return error if isinstance(error, DefinitionError) else DefinitionError(f"{shown}: {_said(error)}")
    return DefinitionError(f"{place}: {_said(error)}")


def _place(error: BaseException, root: Path) -> str | None:
    """File and line of the innermost frame in the user's own folder."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_near(error.filename)}, line {error.lineno}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        own = frame.filename.startswith(f"{root}{os.sep}") and "site-packages" not in frame.filename
        if own and not frame.filename.startswith(_HERE):
            return f"{_near(frame.filename)}, line {frame.lineno}"
    return None


#: The folder of this package, which may lie in the user's own.
_HERE = f"{Path(__file__).resolve().parent.parent}{os.sep}"


def _near(filename: str) -> str:
    """The path as a person in this folder would write it."""
    try:
        return str(Path(filename).relative_to(Path.cwd()))
    except ValueError:
        return filename


def _said(error: BaseException) -> str:
    if isinstance(error, HoldfastError):
        return str(error)
    if isinstance(error, SystemExit):
        return 'it ends the program when imported: put that under if __name__ == "__main__"'
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
