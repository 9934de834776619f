"""Pipeline: what a user writes. Named stages, items, and `run`."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Protocol, TypedDict, Unpack, overload

from holdfast.answers.run_summary import Summary
from holdfast.app import Holdfast, read_filter
from holdfast.blobs.opening import check_address
from holdfast.discovery import discover_now, discovering
from holdfast.engine.add import Merge, overwrite
from holdfast.engine.upsert import Added
from holdfast.errors import DefinitionError, UsageError
from holdfast.export.results import Results
from holdfast.model.alert import AlertRule, read_alerts
from holdfast.model.backoff import Backoff
from holdfast.model.did_you_mean import there_are
from holdfast.model.durations import Duration, seconds
from holdfast.model.key_pattern import Patterns, several
from holdfast.model.money import Amount, micros
from holdfast.model.resource import ResourceSpec
from holdfast.model.stage import Batch, PipelineSpec, Stage, StageSpec, check_name
from holdfast.model.tuning import Tuning
from holdfast.model.typed import data_type
from holdfast.notebook import cell, may_replace, run_shown
from holdfast.providers.prices import Prices
from holdfast.runtime.async_caller import AsyncCaller, in_thread, with_connection
from holdfast.signals import caught
from holdfast.sources import SourceSpec, read_source
from holdfast.store import Store
from holdfast.worker import Settings
from holdfast.worker.context import Ended, Returned

if TYPE_CHECKING:
    # With a default, which Python itself knows only from 3.13 on.
    from typing_extensions import TypeVar

    Data = TypeVar("Data", default=dict[str, Any])
else:
    from typing import TypeVar

    Data = TypeVar("Data")

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)

#: A stage that comes before another: its name, or the function that was decorated.
Before = str | Callable[..., Any]


class _StageSettings(TypedDict, total=False):
    #: Its name; the function's own by default.
    name: str | None
    #: The stages that must have passed before: names, or the decorated functions themselves.
    after: Before | Iterable[Before]
    #: The version of its code, "1" by default. Results of other versions are stale.
    version: str
    #: How many attempts an item gets, 5 by default.
    max_attempts: int
    #: How long an attempt may take.
    timeout: Duration | None
    #: Run the function in a child process, which may die without harm to the worker.
    isolate: Literal["process"] | None
    #: How long a failed attempt waits before the next.
    backoff: Backoff | None
    #: Earlier versions whose results are still valid.
    compatible_from: str | Iterable[str]
    #: Applied to a result before it is compared with the one it replaces.
    normalise: Callable[[Any], Any] | None
    #: A pipeline whose items, submitted as children by earlier stages of this one, must have ended first.
    after_children: str | None
    #: The resources that an attempt uses.
    resource: str | Iterable[str]
    #: What an attempt is expected to cost: an amount, or a function of the item.
    estimate: Amount | Callable[[Any], Any] | None
    #: How many units of something (tokens, say) an attempt is expected to use, by functions of the item.
    units: Mapping[str, Callable[[Any], Any]] | None
    #: What one item may cost at this stage.
    max_cost: Amount | None
    #: The former name of the stage, whose results, records and history it keeps.
    renamed_from: str | None
    #: How often per hour items may rerun each other without new data before the stage is paused.
    max_reruns_per_hour: int
    #: What it reads of an item's data (`"url"`, `"meta.html"`). A change of anything else makes no result of it stale.
    reads: str | Iterable[str] | None
    #: Keep the result that a rerun replaces, to compare the new one with it.
    keep_previous: bool


class StageSettings(_StageSettings, total=False):
    """What `Pipeline.stage` can be given. Every setting has a default."""

    #: Hand the function a list of up to so many items.
    batch: int | None
    #: The type of its results, if the function is not annotated with it: a pydantic model, a dataclass, a TypedDict, a msgspec
    #: struct, or a list or union of these. A result that does not fit is a failed attempt.
    returns: Any


#: By name; those of the base class are not in its own annotations.
_SETTINGS = (*_StageSettings.__annotations__, "batch", "returns")


class _Whole:
    """For type checkers: a result is what the function returns."""


class _Each:
    """For type checkers: results are the elements of what the function returns."""


class StageDecorator(Protocol[V_co]):
    """What `Pipeline.stage(…)` returns: it makes a function a stage with results of this type. One class for all settings, so
    that those of unknown types, in a `**dictionary`, still make a stage of it."""

    @overload
    def __call__(self: StageDecorator[_Whole], function: Callable[P, R], /) -> Stage[P, R]: ...

    @overload
    def __call__(self: StageDecorator[_Each], function: Callable[P, R], /) -> Stage[P, R, Batch[R]]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Stage[P, R, V_co]: ...


class ResultFilters(TypedDict, total=False):
    """Which results of a stage `Pipeline.results` gives, and how."""

    #: The columns of frames and files.
    columns: str | Iterable[str] | None
    state: str | Sequence[str] | None
    key: Patterns
    #: The cursor of an earlier export: only what was written after it.
    since: str | None


class Pipeline(Generic[Data]):
    """Named stages that every item passes.

    books = Pipeline("books")

    @books.stage()
    def extract(item, ctx): ...
    """

    @overload
    def __init__(
        self: Pipeline[dict[str, Any]],
        name: str,
        *,
        data: None = None,
        store: str | None = None,
        tuning: Mapping[str, Any] | None = None,
        resources: Mapping[str, Mapping[str, Any]] | None = None,
        alerts: Mapping[str, Mapping[str, Any]] | None = None,
        prices: Mapping[str, Any] | None = None,
        blobs: str | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self,
        name: str,
        *,
        data: type[Data],
        store: str | None = None,
        tuning: Mapping[str, Any] | None = None,
        resources: Mapping[str, Mapping[str, Any]] | None = None,
        alerts: Mapping[str, Mapping[str, Any]] | None = None,
        prices: Mapping[str, Any] | None = None,
        blobs: str | None = None,
    ) -> None: ...

    def __init__(
        self,
        name: str,
        *,
        data: Any = None,
        store: str | None = None,
        tuning: Mapping[str, Any] | None = None,
        resources: Mapping[str, Mapping[str, Any]] | None = None,
        alerts: Mapping[str, Mapping[str, Any]] | None = None,
        prices: Mapping[str, Any] | None = None,
        blobs: str | None = None,
    ) -> None:
        """`data` is the type of its items' data: a pydantic model, a dataclass, a TypedDict or a msgspec struct. An item that
        does not fit is refused when it is added, and handlers get an instance.

        `tuning` has the limits of the pipeline, its `guards`, and under `stages` the limits of single stages. `resources`
        are what its stages share with others, by name: `{"gemini": {"rate": "60/min"}}`. `alerts` are rules by name, as in a
        job file: `{"failures": {"event": "attempt_failed", "count": 10, "within": "5m", "webhook": address}}`. `prices` say
        what models cost per million tokens, for `ctx.call`: `{"gpt-5-mini": {"in": "0.25", "out": "2.00"}}`. `blobs` is
        where `ctx.keep` puts content: a folder, or an address like `s3://bucket/folder`."""
        check_name(name, "pipeline")
        self.name = name
        self.store = store
        #: The type of its items' data; None for any object.
        self.data = data
        data_type(data, f"pipeline {name!r}: data")
        if blobs is not None:
            check_address(blobs, f"pipeline {name!r}: blobs")
        self.blobs = blobs
        self._stages: dict[str, StageSpec] = {}
        #: In which run of a cell a stage was defined, in a notebook.
        self._defined_in: dict[str, int | None] = {}
        self._sources: dict[str, SourceSpec] = {}
        self._prices = dict(prices or {})
        Prices.read(self._prices, where=f"pipeline {name!r}: prices")
        self._tuning: Mapping[str, Any] = {} if tuning is None else tuning
        #: Limits by name of resource, as they were written.
        self.resources: Mapping[str, Mapping[str, Any]] = _checked(resources or {}, f"pipeline {name!r}: resources")
        self.alerts: tuple[AlertRule, ...] = read_alerts(
            {} if alerts is None else alerts, where=f"pipeline {name!r}: alerts"
        )

    @overload
    def stage(self, function: Callable[P, R], /) -> Stage[P, R]: ...

    @overload
    def stage(
        self,
        function: None = None,
        /,
        *,
        returns: type[V],
        batch: int | None = None,
        **settings: Unpack[_StageSettings],
    ) -> StageDecorator[V]: ...

    @overload
    def stage(
        self, function: None = None, /, *, batch: int, returns: Any = None, **settings: Unpack[_StageSettings]
    ) -> StageDecorator[_Each]: ...

    @overload
    def stage(
        self, function: None = None, /, *, batch: None = None, returns: Any = None, **settings: Unpack[_StageSettings]
    ) -> StageDecorator[_Whole]: ...

    def stage(self, function: Callable[..., Any] | None = None, /, **settings: Unpack[StageSettings]) -> Any:
        """Make a function a stage. It is called with the item and a context, in a thread, or on an event loop if it is async.

        `holdfast.pipeline.StageSettings` describes the settings.
        """
        where = f"pipeline {self.name!r}: stage"
        for key in settings:
            if key not in _SETTINGS:
                raise DefinitionError(f"{where}: {key!r} is unknown; {there_are(key, _SETTINGS)}")
        if function is not None and not callable(function):
            raise DefinitionError(
                f"{where}: {function!r} is not a function; write the name of a stage as name={function!r}"
            )

        values = _stage_values(settings)

        def decorate(function: Callable[..., Any]) -> Stage[..., Any]:
            name = settings.get("name") or str(getattr(function, "__name__", ""))
            after = self._names(settings.get("after", ()))
            spec = StageSpec(name=name, handler=function, after=after, data=self.data, prices=self._prices, **values)
            there = self._stages.get(spec.name)
            if there is not None and not may_replace(there.handler, function, self._defined_in[spec.name]):
                raise DefinitionError(f"pipeline {self.name!r} has two stages named {spec.name!r}: rename one of them")
            self._stages[spec.name] = spec
            self._defined_in[spec.name] = cell()
            return Stage(spec.handler, spec)

        return decorate if function is None else decorate(function)

    def _names(self, after: Before | Iterable[Before]) -> tuple[str, ...]:
        several = after if isinstance(after, Iterable) and not isinstance(after, str) else (after,)
        return tuple(one if isinstance(one, str) else self._name_of(one) for one in several)

    def _name_of(self, function: object) -> str:
        """The name of the stage that a decorated function is in this pipeline."""
        handler = function.spec.handler if isinstance(function, Stage) else function
        found = [spec.name for spec in self._stages.values() if spec.handler is handler]
        if isinstance(function, Stage) and function.name in found:
            return function.name
        if len(found) != 1:
            what = f"is {len(found)} stages" if found else "is not a stage"
            raise DefinitionError(
                f"pipeline {self.name!r}: after={function!r} {what} of this pipeline: name one as a text"
            )
        return found[0]

    def source(self, name: str, **given: Any) -> None:
        """Have workers look for items somewhere: `books.source("inbox", files="inbox/*.epub", every="10m")`."""
        check_name(name, "source")
        if name in self._sources and cell() is None:
            raise DefinitionError(f"pipeline {self.name!r} has two sources named {name!r}: rename one of them")
        self._sources[name] = read_source(name, given, where=f"pipeline {self.name!r}", folder=Path.cwd())

    @property
    def sources(self) -> tuple[SourceSpec, ...]:
        return tuple(self._sources.values())

    @property
    def spec(self) -> PipelineSpec:
        """The pipeline as a checked value: names, order, no cycle."""
        return PipelineSpec.build(self.name, self._stages.values(), _written_in(self._stages.values()), self.data)

    @property
    def tuning(self) -> Tuning:
        """Its limits and guards, checked. They may change while workers run."""
        return Tuning.read(self.name, list(self._stages), self._tuning)

    def add(
        self,
        items: Iterable[str | Mapping[str, Any] | tuple[str, Data]],
        *,
        merge: Merge = overwrite,
        priority: int = 0,
        connection: Any = None,
        atomic: bool | None = None,
    ) -> Added:
        """Add items: keys, or mappings with a `key`; if the data has a type, also pairs of a key and an instance. A key that
        is known is merged, not added again. Every item of a list is checked before the first is written, and up to 10,000 are
        added in one transaction, longer lists two thousand items at a time; those of a generator are added as they come, unless
        `atomic` says otherwise.

        With a `connection` of yours to the store's database (a SQLAlchemy Connection or Session, Django's connection, or one of
        the driver), they are added inside its transaction: they appear when you commit, and not if you roll back. The pipeline
        must be registered before, on SQLite before your transaction writes (`register`).
        """
        with self._app() as app:
            return app.add(self.name, items, merge=merge, priority=priority, connection=connection, atomic=atomic)

    def register(self) -> None:
        """Make the pipeline known to its store, which is created if it is missing. `add` and `run` do so themselves; a program
        that adds items within transactions of its own does so once, when it starts."""
        with self._app() as app:
            app.register()

    async def add_async(
        self,
        items: Iterable[str | Mapping[str, Any] | tuple[str, Data]],
        *,
        merge: Merge = overwrite,
        priority: int = 0,
        connection: Any = None,
        atomic: bool | None = None,
    ) -> Added:
        """`add` for an async program: the event loop goes on meanwhile. Items and `merge` are used in a thread. The connection
        may be an AsyncConnection or AsyncSession of SQLAlchemy, with aiosqlite or psycopg, too."""
        return await with_connection(
            connection,
            lambda it: self.add(items, merge=merge, priority=priority, connection=it, atomic=atomic),
        )

    def run(
        self,
        *,
        concurrency: int = 16,
        lease: Duration = 30,
        grace: Duration = 10,
        name: str = "",
        raise_on_failure: bool = False,
        until_drained: bool = True,
    ) -> Summary:
        """Look at every source, take every item through every stage, and return when nothing is left to do.

        If items ended failed or exhausted, a warning is logged with the most frequent errors. With `raise_on_failure`,
        RunFailed is raised, which has the summary. With `until_drained=False`, work until stopped, as `holdfast worker` does.
        """
        settings = _settings(concurrency, lease, grace, name)
        with self._app() as app:
            if until_drained:
                self._discover(app)
            return run_shown(app, settings, raise_on_failure, until_drained)

    async def run_async(
        self,
        *,
        concurrency: int = 16,
        lease: Duration = 30,
        grace: Duration = 10,
        name: str = "",
        raise_on_failure: bool = False,
        until_drained: bool = True,
        signals: bool = False,
    ) -> Summary:
        """`run` for an async program. Async handlers run on the caller's event loop, so they may use its clients; all else runs
        in threads.

        Cancelled, it stops as `run` does on a signal: running handlers get their grace, the rest is handed back without
        spending an attempt, and then the cancellation goes on; cancelled again, it hands back at once. With `signals`, SIGTERM
        and SIGINT do the same, and it returns. Otherwise they are left to the caller.
        """
        settings = _settings(concurrency, lease, grace, name)

        def discover() -> None:
            with self._app() as app:
                self._discover(app)

        def work() -> Summary:
            with self._app() as app:
                return run_shown(app, settings, raise_on_failure, until_drained, caller)

        if self.sources and until_drained:
            await in_thread(discover)
        caller = AsyncCaller()
        with caught(lambda _: caller.stop(), signals):
            return await in_thread(work, caller.stop)

    def _discover(self, app: Holdfast) -> None:
        """Look at every source now: a worker does so when they are due, and a run may have ended by then."""
        if self.sources:
            discover_now(app, {self.name: self.sources}, {})

    @overload
    def results(
        self, stage: Stage[..., Any, Batch[Coroutine[Any, Any, Sequence[T | Ended]]]], **filters: Unpack[ResultFilters]
    ) -> Results[T]: ...

    @overload
    def results(
        self, stage: Stage[..., Any, Batch[Sequence[T | Ended]]], **filters: Unpack[ResultFilters]
    ) -> Results[T]: ...

    @overload
    def results(
        self, stage: Stage[..., Any, Coroutine[Any, Any, T | Ended]], **filters: Unpack[ResultFilters]
    ) -> Results[T]: ...

    @overload
    def results(self, stage: Stage[..., Any, Returned[T]], **filters: Unpack[ResultFilters]) -> Results[T]: ...

    @overload
    def results(self, stage: str | None = None, **filters: Unpack[ResultFilters]) -> Results[Any]: ...

    def results(self, stage: Any = None, **filters: Unpack[ResultFilters]) -> Results[Any]:
        """The results of a stage, or of all of them, to iterate over, as a data frame or as a file: those that are done, unless
        states say otherwise. `Holdfast.results` has more filters."""
        for name in filters:
            if name not in ResultFilters.__annotations__:
                raise UsageError(
                    f"results: {name!r} is unknown; {there_are(name, list(ResultFilters.__annotations__))}"
                )
        chosen = stage if stage is None or isinstance(stage, str) else self._name_of(stage)
        states, key = several(filters.get("state")), filters.get("key")
        which = read_filter(pipeline=self.name, stage=chosen, states=states, key=key)
        stages = self._stages.values()
        return Results(self._reading, which, filters.get("columns"), filters.get("since"), stages)

    @contextmanager
    def _reading(self) -> Iterator[Store]:
        with Holdfast(self.store, create=False) as app, app.scan() as store:
            yield store

    def _app(self) -> Holdfast:
        return Holdfast(
            self.store,
            [self.spec],
            resources=self.resources,
            tunings={self.name: self.tuning},
            alerts=self.alerts,
            services=[discovering({self.name: self.sources}, {}, [self.spec])],
            blobs=self.blobs,
        )


def _settings(concurrency: int, lease: Duration, grace: Duration, name: str) -> Settings:
    return Settings(
        concurrency=concurrency,
        lease_seconds=seconds(lease, what="lease"),
        grace_seconds=seconds(grace, what="grace"),
        name=name,
    )


def _stage_values(given: StageSettings) -> dict[str, Any]:
    """The settings of a stage as values of a StageSpec, which has the defaults; without `name` and `after`."""
    values: dict[str, Any] = {key: value for key, value in given.items() if key not in ("name", "after")}
    for key, (field, convert) in _CONVERTED.items():
        if (value := values.pop(key, None)) is not None:
            values[field] = convert(value)
    return values


def _written_in(stages: Iterable[StageSpec]) -> str:
    """The file of the first stage's function."""
    for stage in stages:
        if code := getattr(stage.handler, "__code__", None):
            return os.path.realpath(code.co_filename) if os.path.exists(code.co_filename) else ""
    return ""


def _several(names: str | Iterable[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _estimate(given: Any) -> Any:
    return given if callable(given) else micros(given, what="estimate")


#: Settings that a StageSpec has in another form: its name for them, and how to convert them. None stands for the default.
_CONVERTED: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "timeout": ("timeout_seconds", partial(seconds, what="timeout")),
    "backoff": ("backoff", lambda given: given or Backoff()),
    "compatible_from": ("compatible_from", _several),
    "resource": ("resources", _several),
    "estimate": ("estimate", _estimate),
    "units": ("units", dict),
    "max_cost": ("max_cost", partial(micros, what="max_cost")),
    "reads": ("reads", _several),
}


def _checked(resources: Mapping[str, Mapping[str, Any]], where: str) -> Mapping[str, Mapping[str, Any]]:
    if not isinstance(resources, Mapping):
        raise UsageError(f"{where}: {resources!r} is not a mapping; write it like {{'gemini': {{'rate': '60/min'}}}}")
    for name, given in resources.items():
        check_name(name, "resource")
        ResourceSpec.read(name, given, where=f"{where}: {name}")
    return {name: dict(given) for name, given in resources.items()}
