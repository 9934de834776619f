"""The context that a handler gets with the item: earlier results, sub-steps, costs, progress, the log, stopping."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar, Unpack, overload

import msgspec

from holdfast import points
from holdfast.blobs import Blob
from holdfast.blobs.blobs import Content
from holdfast.blobs.reference import found_at
from holdfast.engine.add import typed_data
from holdfast.engine.claim import Lease
from holdfast.engine.finish_leases import AttemptEffect, Cost, FollowOn
from holdfast.engine.follow_ons import WHEN_EXISTS
from holdfast.errors import UsageError, ValueMismatch, ValueRefused
from holdfast.model import codec
from holdfast.model.error_fingerprint import storable
from holdfast.model.item import Item, check_key
from holdfast.model.log_lines import logger
from holdfast.model.money import Amount, micros
from holdfast.model.outcome import RetryLater, Skip
from holdfast.model.paid_call import CallFacts
from holdfast.model.resource import COOL_MOST_SECONDS
from holdfast.model.stage import Batch, Stage, StageSpec, stage_name
from holdfast.model.user_event import MOST_PER_ATTEMPT, UserEvent
from holdfast.providers.retry_after import used_up_for
from holdfast.runtime.process_identity import Lineage
from holdfast.telemetry.attributes import Attributes, of_attempt, of_stage
from holdfast.worker import undeclared_reads as undeclared
from holdfast.worker.handler_environment import Surroundings
from holdfast.worker.handler_log import ItemLog
from holdfast.worker.once import Once, forget
from holdfast.worker.once_decision import SubStep, key_of
from holdfast.worker.once_options import OnceOptions, Terms, check_memo_name, check_resource, plain_name
from holdfast.worker.once_sync_or_async import SubSteps, run, run_async
from holdfast.worker.provider_call import CallOptions, CallWith, ProviderCall

T = TypeVar("T")

#: What handlers return in place of a result. Type checkers remove what is named here from the type of a result.
Ended = Skip | RetryLater | BaseException
#: What a handler returns for results of type T, in any of its forms. The last overload that takes a stage names all of them:
#: with T alone it would fit the other forms, too, and if two overloads fit a stage with an Any in its type, as every plain
#: `Item` has, mypy answers Any.
Returned: TypeAlias = (
    Batch[Coroutine[Any, Any, Sequence[T | Ended]]]
    | Batch[Sequence[T | Ended]]
    | Coroutine[Any, Any, T | Ended]
    | T
    | Ended
)


class Said(msgspec.Struct, eq=False):
    """What a handler requested or reported besides its result. The transaction that ends the attempt saves it."""

    effects: list[AttemptEffect] = []
    follow_ons: list[FollowOn] = []
    costs: list[Cost] = []
    events: list[UserEvent] = []
    units_used: dict[str, float] = {}
    #: Until when the headers of a reply ask to wait, on the monotonic clock.
    cool_until: float | None = None
    sub_steps: dict[str, SubStep] = {}
    #: Names of sub-steps whose answers this attempt has rejected: they may be called again.
    forgotten: set[str] = set()


class Context(msgspec.Struct, eq=False):
    """One attempt, as its handler sees it. It cannot be used after the handler has returned."""

    item: Item[Any]
    #: Which attempt this is, counted from 1.
    attempt: int
    #: None until the handler records something; most return only a result.
    said: Said | None
    _around: Surroundings
    _lease: Lease
    _spec: StageSpec
    #: Identifies the process that runs the attempt, to detect use in a forked child.
    _forks: int
    _open: bool = True

    def __repr__(self) -> str:
        return f"<Context of item {self.item.key!r}, stage {self._spec.name!r}, attempt {self.attempt}>"

    def effect(self, function: Callable[..., Any], *args: Any) -> None:
        """Run `function(connection, *args)` inside the transaction that completes this stage.

        `connection` is a SQLAlchemy Connection to the store's database. If the function raises, the attempt fails as if
        the handler had raised, and none of its changes are visible. The function may run more than once, but takes
        effect once.
        """
        said = self._say()
        if not callable(function):
            raise UsageError(f"{self._where}: effect({function!r}): give a function that takes a connection")
        said.effects.append(AttemptEffect(function, args))

    def once(self, name: str, function: Callable[..., Any], *args: Any, **options: Unpack[OnceOptions]) -> Any:
        """Call `function(*args)` once for this stage of this item, even across crashes. The result is recorded before
        this returns, and later attempts get the recorded result. In an async handler: `await ctx.once(...)`.

        The result is the JSON form of what the function returned, even the first time. With a cost (an amount, or a
        function of the original return value) the intent is recorded before the call. If the process died between the
        two records, the call is in doubt, and `on_doubt` decides: `"retry"` calls again with the same idempotency key,
        `"hold"` puts the item on hold until a person has decided, and a function gets the idempotency key and asks the
        provider.

        `validate` checks the answer, new or recorded, before this returns. If it returns False or raises `Rejected` or
        a `ValueError`, the answer is rejected: it stays paid for and readable, the attempt fails with the reason, and
        the next attempt calls again. The third rejection (`rejections=`) fails the item. `facts` (a mapping, or a
        function of the answer) go into the ledger; `holdfast costs` sums `tokens_in`, `tokens_out`,
        `tokens_cached` and `tokens_reasoning`, by `model` if asked.
        """
        return self._once(Terms.of(name, function, args, options))

    def call(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a provider through its client library: `ctx.call("summary", client.responses.create, model=…, input=…)`.
        Like a paid `once`, but what it costs, what its errors mean and what its headers ask for is understood without more
        code. In an async handler: `await ctx.call(...)`.

        All arguments go to the function; `ctx.options(...)` says more about the call. The answer, streamed or not, is recorded
        in its JSON form, and that is what this returns, the first time and from the record. Bytes are kept as content, and
        this returns the reference: `ctx.blob(...)` opens it.
        """
        return self.options().call(name, function, *args, **kwargs)

    def options(self, **options: Unpack[CallOptions]) -> CallWith:
        """Say more about a call than the function needs to know: `ctx.options(estimate="0.10").call(name, function, …)`.

        The options of `once`, and: `model`, for the price, if it is not an argument of the function; `parse`, a type or a
        function that is applied to the answer, new or recorded.
        """
        return CallWith(self._make_call, options)

    def forget(self, name: str, reason: str = "forgotten by the handler") -> Any:
        """Reject the recorded answer of a sub-step, so that `once` calls again. The answer stays paid for and readable.
        Returns False if there is none. In an async handler: `await ctx.forget(...)`.
        """
        said, name = self._say(), plain_name(name)
        check_memo_name(name, f"{self._where}: forget({name!r})")
        return self._run(forget(self._around, self._lease, name, storable(str(reason)), said.forgotten))

    def submit(
        self,
        pipeline: str,
        key: str,
        data: Any = None,
        *,
        when_exists: str = "skip",
        child: bool = False,
    ) -> None:
        """Add an item to a pipeline, in the transaction that completes this stage.

        If the key exists, `"skip"` leaves the item alone, `"rerun"` restarts it unless it is waiting or running, and
        `"merge"` merges the data. A stage of this item with `after_children=` waits for every `child`. The data is an
        object; for a pipeline of this process whose data has a type, it may be an instance, and must fit.
        """
        said = self._say()
        if not isinstance(pipeline, str):
            raise UsageError(f"{self._where}: submit: pipeline {pipeline!r} is not a name")
        if when_exists not in WHEN_EXISTS:
            raise UsageError(f"{self._where}: when_exists={when_exists!r}: it is one of {', '.join(WHEN_EXISTS)}")
        if child and (pipeline, key) == (self.item.pipeline, self.item.key):
            raise UsageError(f"{self._where}: submit: an item cannot be a child of itself")
        spec = self._around.pipeline(pipeline)
        type_ = None if spec is None else spec.data_type
        if data is None:
            data = {}
        elif type_ is None and not isinstance(data, Mapping):
            raise UsageError(f"{self._where}: submit: data is {type(data).__name__}, not an object")
        try:
            key = check_key(key)
            text = codec.encode(dict(data)) if type_ is None else typed_data(type_, pipeline, key, data)
            known = None if type_ is None else type_.fingerprint
            here = None if self._around.spans is None else self._around.spans.traceparent_here()
            said.follow_ons.append(FollowOn(pipeline, key, text, when_exists, child, known, here))
        except (ValueRefused, UsageError) as error:
            raise UsageError(f"{self._where}: submit: {error}") from None

    def cost(self, amount: Amount, resource: str | None = None, facts: Mapping[str, Any] | None = None) -> None:
        """Record money that this attempt has spent, with facts about it (`model`, `tokens_in`, `tokens_out`,
        `tokens_cached`, `tokens_reasoning` and any others). It counts however the attempt ends.
        """
        said, resource = self._say(), plain_name(resource)
        spent = micros(amount, what=f"{self._where}: cost")
        check_resource(resource, f"{self._where}: cost")
        said.costs.append(Cost(spent, resource, CallFacts.read(facts, where=f"{self._where}: cost")))
        points.reach("cost", self.item.pipeline, self._spec.name, spent)

    def event(self, name: str, /, **facts: Any) -> None:
        """Record an event whose name begins with `user.`: `ctx.event("user.price_changed", old=3, new=4)`.

        The transaction that ends this attempt writes it, however the attempt ends. An attempt that is handed back, or
        lost with its worker, records none.
        """
        events = self._say().events
        if len(events) >= MOST_PER_ATTEMPT:
            raise UsageError(
                f"{self._where}: event({name!r}): an attempt may record {MOST_PER_ATTEMPT} events, and no more"
            )
        events.append(UserEvent.read(name, facts, where=f"{self._where}: "))

    def used(self, **units: float) -> None:
        """Record how many units this attempt has actually used, in place of the estimate: `ctx.used(tokens=812)`.
        Several calls add up.
        """
        used = self._say().units_used
        for unit, n in units.items():
            number = _number(n)
            if number is None or not 0 <= number <= 1e12:
                raise UsageError(f"{self._where}: used({unit}={n!r}): give a number from zero to a million millions")
            used[unit] = used.get(unit, 0) + number

    def heed(self, headers: Mapping[str, Any]) -> None:
        """Obey the headers of a response: if they say that nothing is left until a time (`X-RateLimit-Remaining: 0`),
        every user of the same resource waits until then.
        """
        said, after = self._say(), used_up_for(headers)
        if after is not None:
            said.cool_until = max(time.monotonic() + min(after, COOL_MOST_SECONDS), said.cool_until or 0.0)

    def idempotency_key(self, name: str) -> str:
        """An idempotency key for a provider: the same in every attempt, but a new one when the stage is rerun."""
        self._check()
        name = plain_name(name)
        check_memo_name(name, f"{self._where}: idempotency_key({name!r})")
        return key_of(self._lease, self._spec, name)

    def children(self, pipeline: str) -> dict[str, int]:
        """Count the child items submitted to a pipeline, by how they ended: `{"done": 9, "failed": 1}`."""
        self._check()
        return self._around.count_children(self._lease.item, pipeline)

    @overload
    def result(self, stage: Stage[..., Any, Batch[Coroutine[Any, Any, Sequence[T | Ended]]]]) -> T: ...

    @overload
    def result(self, stage: Stage[..., Any, Batch[Sequence[T | Ended]]]) -> T: ...

    @overload
    def result(self, stage: Stage[..., Any, Coroutine[Any, Any, T | Ended]]) -> T: ...

    @overload
    def result(self, stage: Stage[..., Any, Returned[T]]) -> T: ...

    @overload
    def result(self, stage: str) -> Any: ...

    def result(self, stage: str | Stage[..., Any, Any]) -> Any:
        """The result of an earlier stage for this item; None if it was skipped. A fresh copy each time: an instance, if
        the stage has a type.
        """
        self._check()
        name = stage_name(stage, "ctx.result")
        undeclared.used_result(name, self._spec)
        text = self._around.read_result(self.item.pipeline, self._lease.item, name, self._lease.results)
        pipeline = self._around.pipeline(self.item.pipeline)
        spec = None if pipeline is None else pipeline.find(name)
        if spec is None and isinstance(stage, Stage):
            spec = stage.spec
        try:
            with found_at(self._around.blobs):
                return spec.value_of(text) if spec is not None else None if text is None else codec.decode(text)
        except ValueMismatch as error:
            raise ValueMismatch(
                f"{self._where}: the result of {name!r} does not fit its type: {error}; it was made before the type "
                "changed: `holdfast plan` shows what is stale by type, `holdfast reprocess` makes it anew"
            ) from None

    def keep(self, content: Content, name: str | None = None, type: str | None = None) -> Any:
        """Keep bytes, a file by its path, or an open binary file outside of the database, and return a reference (`Blob`)
        for the result, once the content is durable. In an async handler: `await ctx.keep(...)`.

        The content is kept as long as a result, a memo, an event or an item's data refers to it. `name` is a file name; the
        media `type` is guessed from it.
        """
        self._check()
        keep = self._around.blobs.keep
        return asyncio.to_thread(keep, content, name, type) if self._spec.is_async else keep(content, name, type)

    def blob(self, value: Any) -> Blob:
        """Kept content by its reference, as it is found in a result or in an item's data: `ctx.blob(value).read()`."""
        self._check()
        return self._around.blobs.blob(value)

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Report how far this attempt has come; the next heartbeat publishes it."""
        self._check()
        so_far, in_all = _number(done), _number(total)
        if so_far is None or (in_all is None and total is not None):
            raise UsageError(f"progress({done!r}, {total!r}): give numbers")
        note = storable(str(note), 200)
        self._around.note_progress(
            self._lease.item,
            self._spec.name,
            {"item": self.item.key, "stage": self._spec.name, "done": so_far, "total": in_all, "note": note},
        )

    @property
    def stopping(self) -> bool:
        """True once the worker was asked to stop: a long handler may then return `RetryLater(after=0)`."""
        return self._around.stopping

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose lines name the item, the stage and the attempt."""
        return ItemLog(logger(f"holdfast.stage.{self.item.pipeline}.{self._spec.name}"), self)

    def close(self) -> None:
        self._open = False

    def _make_call(self, call: ProviderCall) -> Any:
        return self._once(call.terms(self._spec, self))

    def has_budget(self, resource: str | None) -> bool:
        return self._around.has_budget(self._lease.stage, resource)

    def _about(self) -> Attributes:
        """What spans and log records say about this attempt."""
        stage = of_stage(self.item.pipeline, self._spec.name, self._spec.version, self._around.worker_name)
        return {**stage, **of_attempt(self.item.key, self.attempt, self._lease.id)}

    @property
    def _where(self) -> str:
        return f"item {self.item.key!r}, stage {self._spec.name!r}"

    def _once(self, terms: Terms) -> Any:
        return self._run(Once(self._around, self._spec, terms, [self._sub_step(terms)]).steps())

    def _sub_step(self, terms: Terms) -> SubStep:
        said, name = self._say(), terms.name
        if again := isinstance(name, str) and name in said.forgotten:
            said.forgotten.discard(name)
            said.sub_steps.pop(name, None)
        return SubStep(self._lease, self._spec, terms, said.sub_steps, sum(one.amount for one in said.costs), again)

    def _run(self, steps: SubSteps) -> Any:
        return run_async(steps) if self._spec.is_async else run(steps)

    def _say(self) -> Said:
        self._check()
        if self.said is None:
            self.said = Said()
        return self.said

    def _check(self) -> None:
        if not self._open:
            raise UsageError(
                f"item {self.item.key!r}, stage {self._spec.name!r}: attempt {self.attempt} is over, "
                f"and its context cannot be used; wait for your own threads before the handler returns"
            )
        if self._forks != Lineage.forks:
            raise UsageError(
                f"item {self.item.key!r}, stage {self._spec.name!r}: a forked process cannot use the context; "
                f"return what it found to the handler"
            )


def _number(value: object) -> int | float | None:
    """A number of any type, including numpy's, as a plain int or float; None if it is not one, or too large to be
    exact.
    """
    if type(value) is not int and type(value) is not float:
        try:
            value = codec.plain(value)
        except ValueRefused:
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if -(2.0**53) < value < 2.0**53 else None
