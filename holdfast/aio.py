"""The app for async programs: every act and every question of `holdfast.app.Holdfast`, to be awaited.

There is one implementation. `_Awaited` turns a method of the sync app into one that runs it in a thread, with the same
parameters and the same answer, for people, type checkers and `inspect` alike. Functions that are passed in (`merge`,
`progress`, `approve`, …) are called in that thread.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from holdfast import app as sync
from holdfast.answers.run_summary import Summary
from holdfast.clock import Clock
from holdfast.engine.add import Merge
from holdfast.model.alert import AlertRule
from holdfast.model.stage import PipelineSpec
from holdfast.model.tuning import Tuning
from holdfast.runtime.async_caller import AsyncCaller, in_thread, with_connection
from holdfast.runtime.services import MakeService
from holdfast.signals import caught
from holdfast.worker import Settings

P = ParamSpec("P")
R = TypeVar("R")


class _Awaited(Generic[P, R]):
    """A method of the sync app that is awaited. Cancelled, the caller goes on at once, and the call ends by itself."""

    def __init__(self, method: Callable[Concatenate[sync.Holdfast, P], R]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: Holdfast, owner: type) -> Callable[P, Coroutine[Any, Any, R]]: ...

    def __get__(self, instance: Holdfast | None, owner: type) -> Any:
        if instance is None:
            return self

        async def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if (connection := kwargs.pop("connection", None)) is not None:
                method: Callable[..., R] = self._method
                return await with_connection(
                    connection, lambda it: method(instance.opened(), *args, **kwargs, connection=it)
                )
            return await in_thread(lambda: self._method(instance.opened(), *args, **kwargs))

        described = inspect.signature(self._method)
        call.__signature__ = described.replace(parameters=list(described.parameters.values())[1:])  # type: ignore[attr-defined]
        call.__name__, call.__doc__ = self._method.__name__, self.__doc__
        return call


class Holdfast:
    """A store and the pipelines that use it, for an async program. It is opened when it is first used."""

    def __init__(
        self,
        url: str | None = None,
        pipelines: Sequence[PipelineSpec] = (),
        *,
        resources: Mapping[str, Mapping[str, Any]] | None = None,
        tunings: Mapping[str, Tuning] | None = None,
        merges: Mapping[str, Merge] | None = None,
        alerts: Sequence[AlertRule] = (),
        services: Sequence[MakeService] = (),
        blobs: str | None = None,
        create: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self._open = partial(
            sync.Holdfast,
            url,
            pipelines,
            resources=resources,
            tunings=tunings,
            merges=merges,
            alerts=alerts,
            services=services,
            blobs=blobs,
            create=create,
            clock=clock,
        )
        self._opening = threading.Lock()
        self._app: sync.Holdfast | None = None

    def opened(self) -> sync.Holdfast:
        """The sync app below. It waits for the database: use it in threads only."""
        with self._opening:
            if self._app is None:
                self._app = self._open()
            return self._app

    async def close(self) -> None:
        """Close the connections. Used again, it opens new ones."""
        app, self._app = self._app, None
        if app is not None:
            await in_thread(app.close)

    async def __aenter__(self) -> Self:
        await in_thread(self.opened)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def run(
        self,
        settings: Settings | None = None,
        *,
        until_drained: bool = True,
        on_tick: Callable[[], None] | None = None,
        tick_seconds: float = 0.5,
        raise_on_failure: bool = False,
        signals: bool = False,
    ) -> Summary:
        """Work until nothing is left to do in these pipelines, here or anywhere, or else until stopped. Async handlers run on
        the caller's event loop. Cancelled, it hands its work back before the cancellation goes on; with `signals`, SIGTERM and
        SIGINT do the same, and it returns."""
        caller = AsyncCaller()

        def work() -> Summary:
            return self.opened().run(
                settings,
                until_drained=until_drained,
                on_tick=on_tick,
                tick_seconds=tick_seconds,
                raise_on_failure=raise_on_failure,
                caller=caller,
            )

        with caught(lambda _: caller.stop(), signals):
            return await in_thread(work, caller.stop)

    # The same as in the sync app, in the same order; a test compares the two -------------------------------------

    schema_version = _Awaited(sync.Holdfast.schema_version)
    upgrade = _Awaited(sync.Holdfast.upgrade)
    register = _Awaited(sync.Holdfast.register)
    require_resources = _Awaited(sync.Holdfast.require_resources)
    declare = _Awaited(sync.Holdfast.declare)
    alerts = _Awaited(sync.Holdfast.alerts)
    add = _Awaited(sync.Holdfast.add)
    keys_for = _Awaited(sync.Holdfast.keys_for)
    changes = _Awaited(sync.Holdfast.changes)
    status = _Awaited(sync.Holdfast.status)
    summary = _Awaited(sync.Holdfast.summary)
    workers = _Awaited(sync.Holdfast.workers)
    show = _Awaited(sync.Holdfast.show)
    name_of_item = _Awaited(sync.Holdfast.name_of_item)
    names_of_items = _Awaited(sync.Holdfast.names_of_items)
    why = _Awaited(sync.Holdfast.why)
    history = _Awaited(sync.Holdfast.history)
    items = _Awaited(sync.Holdfast.items)
    results = _Awaited(sync.Holdfast.results)
    errors = _Awaited(sync.Holdfast.errors)
    events = _Awaited(sync.Holdfast.events)
    count_events = _Awaited(sync.Holdfast.count_events)
    event = _Awaited(sync.Holdfast.event)
    blob = _Awaited(sync.Holdfast.blob)
    check = _Awaited(sync.Holdfast.check)
    repair = _Awaited(sync.Holdfast.repair)
    doctor = _Awaited(sync.Holdfast.doctor)
    costs = _Awaited(sync.Holdfast.costs)
    gauges = _Awaited(sync.Holdfast.gauges)
    throughput = _Awaited(sync.Holdfast.throughput)
    matrix = _Awaited(sync.Holdfast.matrix)
    audit = _Awaited(sync.Holdfast.audit)
    newest_events = _Awaited(sync.Holdfast.newest_events)
    alert_status = _Awaited(sync.Holdfast.alert_status)
    sources = _Awaited(sync.Holdfast.sources)
    request_look = _Awaited(sync.Holdfast.request_look)
    memos = _Awaited(sync.Holdfast.memos)
    calls = _Awaited(sync.Holdfast.calls)
    plan = _Awaited(sync.Holdfast.plan)
    outdated_workers = _Awaited(sync.Holdfast.outdated_workers)
    retry = _Awaited(sync.Holdfast.retry)
    cancel = _Awaited(sync.Holdfast.cancel)
    forget = _Awaited(sync.Holdfast.forget)
    delete = _Awaited(sync.Holdfast.delete)
    actions = _Awaited(sync.Holdfast.actions)
    action = _Awaited(sync.Holdfast.action)
    continue_action = _Awaited(sync.Holdfast.continue_action)
    stop_action = _Awaited(sync.Holdfast.stop_action)
    undo_action = _Awaited(sync.Holdfast.undo_action)
    pause = _Awaited(sync.Holdfast.pause)
    resume = _Awaited(sync.Holdfast.resume)
    tune = _Awaited(sync.Holdfast.tune)
    limits = _Awaited(sync.Holdfast.limits)
    reprocess = _Awaited(sync.Holdfast.reprocess)
    accept = _Awaited(sync.Holdfast.accept)
    resolve = _Awaited(sync.Holdfast.resolve)
    resolve_many = _Awaited(sync.Holdfast.resolve_many)
    prune = _Awaited(sync.Holdfast.prune)
