"""Load the pipelines of a user's file: a job file in YAML, or Python, whose `if __name__ == "__main__"` block does not run.

Errors in the file are reported with their location.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from holdfast.app import DEFAULT_URL, URL_VARIABLE, Holdfast
from holdfast.discovery import discovering
from holdfast.engine.add import Merge
from holdfast.errors import DefinitionError, HoldfastError, StoreError, UsageError
from holdfast.jobfile import JobDefinition
from holdfast.jobfile.importing import look_first_in, place, said
from holdfast.jobs import load_job, open_job
from holdfast.model.alert import AlertRule
from holdfast.model.stage import PipelineSpec
from holdfast.model.tuning import Tuning
from holdfast.pipeline import Pipeline
from holdfast.sources import SourceSpec

JOB_FILES = (".yaml", ".yml")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Loaded:
    """The content of a file, and the store to use (see `store_address`)."""

    url: str
    specs: list[PipelineSpec]
    #: By name, as they were written.
    resources: Mapping[str, Mapping[str, Any]]
    #: By pipeline.
    tunings: Mapping[str, Tuning]
    #: By pipeline: where items come from, and how data for a known key is merged.
    sources: Mapping[str, tuple[SourceSpec, ...]]
    merges: Mapping[str, Merge] = field(default_factory=dict)
    alerts: tuple[AlertRule, ...] = ()
    #: What only a job file has: secrets, and tuning that may change while workers run.
    job: JobDefinition | None = field(default=None)
    #: Where the file says that blobs are kept.
    blobs: str | None = None

    def open(self, *, create: bool = True) -> Holdfast:
        """Open the store with all of this."""
        if self.job is not None:
            return open_job(self.job, self.url, create=create)
        return Holdfast(
            self.url,
            self.specs,
            resources=self.resources,
            tunings=self.tunings,
            alerts=self.alerts,
            services=[discovering(self.sources, self.merges, self.specs)],
            blobs=self.blobs,
            create=create,
        )


def store_address(given: str | None, named: str | None) -> str:
    """Which store: the one given, then the one that the file names, then that of HOLDFAST_URL, then the default."""
    url = given or named or os.environ.get(URL_VARIABLE) or DEFAULT_URL
    try:
        url.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{url!r} is not valid UTF-8") from None
    return url


def load(file: str, store: str | None) -> Loaded:
    """Load a job file, a Python file or a dotted module."""
    if Path(file).suffix.lower() in JOB_FILES:
        job = load_job(Path(file))
        return Loaded(
            store_address(store, job.store),
            list(job.pipelines),
            job.resources,
            job.tunings,
            job.sources,
            job.merges,
            job.alerts,
            job,
            job.blobs,
        )
    return _load_python(file, store)


def _load_python(file: str, store: str | None) -> Loaded:
    return load_pipelines(load_module(file), file, store)


def all_of(module: ModuleType, kind: type[T]) -> list[T]:
    """The objects of this class in a module, each once."""
    return list({id(one): one for one in vars(module).values() if isinstance(one, kind)}.values())


def load_pipelines(module: ModuleType, file: str, store: str | None) -> Loaded:
    """The pipelines of a module, with their settings."""
    found = all_of(module, Pipeline)
    if not found:
        raise DefinitionError(f'{file} has no pipeline: write one like books = Pipeline("books")')
    names = [one.name for one in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DefinitionError(f"{file} has two pipelines named {twice[0]!r}: rename one of them")
    try:
        specs = [one.spec for one in found]
        tunings = {one.name: one.tuning for one in found}
    except HoldfastError as error:
        raise DefinitionError(f"{file}: {error}") from error
    url = store or store_address(None, _common_store(file, found))
    return Loaded(
        url,
        specs,
        _in_common(f"the pipelines of {file} give resource", "different limits", (one.resources for one in found)),
        tunings,
        {one.name: one.sources for one in found},
        alerts=tuple(_in_common(f"the pipelines of {file} give alert", "different rules", _alerts_of(found)).values()),
        blobs=_common_blobs(file, found),
    )


def _alerts_of(pipelines: list[Pipeline[Any]]) -> Iterator[dict[str, AlertRule]]:
    return ({rule.name: rule for rule in one.alerts} for one in pipelines)


def _in_common(what: str, differ: str, defined: Iterable[Mapping[str, T]]) -> dict[str, T]:
    """What several pipelines define by name. Those with the same name must be the same."""
    common: dict[str, T] = {}
    for by_name in defined:
        for name, given in by_name.items():
            if common.setdefault(name, given) != given:
                raise DefinitionError(f"{what} {name!r} {differ}: choose one")
    return common


def _common_store(file: str, pipelines: list[Pipeline[Any]]) -> str | None:
    stores = {one.store for one in pipelines} - {None, ""}
    if len(stores) > 1:
        raise DefinitionError(f"the pipelines of {file} name different stores: choose one with --store")
    return stores.pop() if stores else None


def _common_blobs(file: str, pipelines: list[Pipeline]) -> str | None:
    named = {one.blobs for one in pipelines} - {None}
    if len(named) > 1:
        raise DefinitionError(
            f"the pipelines of {file} keep blobs at different addresses, but share a store: choose one"
        )
    return named.pop() if named else None


def load_module(file: str) -> ModuleType:
    """Import a Python file, or a dotted module."""
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
    look_first_in(Path.cwd())
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError) as error:
        raise DefinitionError(f"module {name}: {said(error)}") from error
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
        look_first_in(root)
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


def _free_name(name: str, path: Path) -> str:
    """The name of the file, unless another module has it: `queue.py` must not replace the library's `queue`."""
    there = sys.modules.get(name)
    taken = there is not None and getattr(there, "__file__", None) != str(path)
    if taken or name in sys.stdlib_module_names or not all(part.isidentifier() for part in name.split(".")):
        return f"holdfast_file_{hashlib.blake2b(str(path).encode(), digest_size=6).hexdigest()}"
    return name


def _explained(error: BaseException, shown: str, root: Path) -> BaseException:
    """The error with its location in the file, in one line. Store errors and interrupts are returned as they are."""
    if isinstance(error, (StoreError, KeyboardInterrupt)):
        return error
    where = place(error, root)
    if where is None:
        return error if isinstance(error, DefinitionError) else DefinitionError(f"{shown}: {said(error)}")
    return DefinitionError(f"{where}: {said(error)}")
