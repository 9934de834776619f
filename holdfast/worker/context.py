"""What a handler gets beside the item: results of earlier stages, progress, the log, and whether to hurry."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import msgspec

from holdfast import points
from holdfast.clock import microseconds
from holdfast.engine.claim import Lease
from holdfast.engine.finish import Cost, Effect, FollowOn
from holdfast.engine.follow import WHEN_EXISTS
from holdfast.engine.remember import MemoWrite, idempotency_key
from holdfast.errors import UsageError, ValueRefused
from holdfast.model import codec
from holdfast.model.faults import storable
from holdfast.model.item import Item, check_key
from holdfast.model.money import Amount, micros
from holdfast.model.paid import CallFacts
from holdfast.model.replies import used_up_for
from holdfast.model.resource import COOL_MOST_SECONDS
from holdfast.model.stage import Stage, StageSpec, stage_name
from holdfast.worker.machine import Lineage
from holdfast.worker.once import (
    REJECTIONS,
    Facts,
    OnDoubt,
    Price,
    SubStep,
    check_memo_name,
    check_resource,
    forget,
)


class Surroundings(Protocol):
    """What a context asks of the process it runs in."""

    @property
    def stopping(self) -> bool: ...

    def read_result(self, pipeline: str, item: int, stage: str, known: Mapping[int, str]) -> str | None:
        """The result of an earlier stage as JSON text, None if it was skipped."""
        ...

    def note_progress(self, item: int, stage: str, note: dict[str, Any]) -> None: ...

    def remember(self, memo: MemoWrite) -> Future[None]:
        """Write a memo durably; the future tells when that is done, or that the lease was lost."""
        ...

    def count_children(self, item: int, pipeline: str) -> dict[str, int]: ...


class Said(msgspec.Struct, eq=False):
    """What a handler has asked for, or told, beside its answer: it goes into the transaction that ends the attempt."""

    effects: list[Effect] = []
    follow_ons: list[FollowOn] = []
    costs: list[Cost] = []
    units_used: dict[str, float] = {}
    cool_us: int | None = None
    sub_steps: dict[str, SubStep] = {}
    #: Names of sub-steps whose answers this attempt has rejected: they may be called again.
    forgotten: set[str] = set()


class Context(msgspec.Struct, eq=False):
    """One attempt, as its handler sees it. It is of no use once the handler has returned."""

    item: Item
    #: Which attempt this is, counted from 1.
    attempt: int
    #: Most handlers say nothing but their answer.
    said: Said | None
    _around: Surroundings
    _lease: Lease
    _spec: StageSpec
    #: Tells the process whose attempt this is.
    _forks: int
    _open: bool = True

    def __repr__(self) -> str:
        return f"<Context of item {self.item.key!r}, stage {self._spec.name!r}, attempt {self.attempt}>"

    def effect(self, function: Callable[..., Any], *args: Any) -> None:
        """Have `function(connection, *args)` run inside the transaction that completes this stage.

        `connection` is a SQLAlchemy Connection to the store's database. If it raises, the attempt fails as if the handler
        had raised, and nothing of it is visible. It may run more than once, and takes effect once.
        """
        said = self._say()
        if not callable(function):
            raise UsageError(f"{self._where}: effect({function!r}): give a function that takes a connection")
        said.effects.append(Effect(function, args))

    def once(
        self,
        name: str,
        function: Callable[..., Any],
        *args: Any,
        cost: Price | None = None,
        estimate: Amount | None = None,
        on_doubt: OnDoubt = "retry",
        resource: str | None = None,
        validate: Callable[[Any], Any] | None = None,
        facts: Facts | None = None,
        rejections: int = REJECTIONS,
    ) -> Any:
        """Call `function(*args)` once for this stage of this item, whatever crashes: its result is recorded before this
        returns, and a later attempt gets the recorded one. In an async handler: `await ctx.once(...)`.

        The result is the JSON form of what the function returned, from the first time on. With a cost (an amount, or a
        function of what was returned, before it became JSON) the intent is recorded before the call. If a process died
        between the two, the call is in doubt, and `on_doubt` decides: `"retry"` calls again with the same idempotency key,
        `"hold"` fails the item until a person has decided, a function gets the idempotency key and asks the provider.

        `validate` sees the answer, new or recorded, before this returns. If it returns False or raises `Rejected` or a
        `ValueError`, the answer is rejected: it stays paid for and readable, the attempt fails with the reason, and the next
        one calls again; the third rejection (`rejections=`) fails the item. `facts` (a mapping, or a function of the answer)
        go into the ledger: `model`, `tokens_in` and `tokens_out` are summed by `holdfast costs`.
        """
        said = self._say()
        name, resource = _plain_name(name), _plain_name(resource)
        if again := isinstance(name, str) and name in said.forgotten:
            said.forgotten.discard(name)
            said.sub_steps.pop(name, None)
        sub_step = SubStep(
            self._around, self._lease, self._spec, name, function, args, cost, estimate, on_doubt, resource, said.sub_steps,
            validate, facts, rejections, sum(one.amount for one in said.costs), again,
        )  # fmt: skip
        return sub_step.run_async() if self._spec.is_async else sub_step.run()

    def forget(self, name: str, reason: str = "forgotten by the handler") -> Any:
        """Reject the recorded answer of a sub-step: it stays paid for and readable, and `once` calls again. False if there is
        none. In an async handler: `await ctx.forget(...)`."""
        said, name = self._say(), _plain_name(name)
        check_memo_name(name, f"{self._where}: forget({name!r})")
        found, written = forget(self._around, self._lease, self._spec, name, storable(str(reason)))
        if found:
            said.forgotten.add(name)
        if self._spec.is_async:
            return _waited(written, found)
        if written is not None:
            written.result()
        return found

    def submit(
        self,
        pipeline: str,
        key: str,
        data: Mapping[str, Any] | None = None,
        *,
        when_exists: str = "skip",
        child: bool = False,
    ) -> None:
        """Have the transaction that completes this stage add an item to a pipeline.

        If the key exists: `"skip"` leaves the item, `"rerun"` begins it again unless it is waiting or running, `"merge"`
        unites the data. A `child` is one that a stage with `after_children=` of this item waits for.
        """
        said = self._say()
        if not isinstance(pipeline, str):
            raise UsageError(f"{self._where}: submit: pipeline {pipeline!r} is not a name")
        if when_exists not in WHEN_EXISTS:
            raise UsageError(f"{self._where}: when_exists={when_exists!r}: it is one of {', '.join(WHEN_EXISTS)}")
        if child and (pipeline, key) == (self.item.pipeline, self.item.key):
            raise UsageError(f"{self._where}: submit: an item cannot be a child of itself")
        if data is not None and not isinstance(data, Mapping):
            raise UsageError(f"{self._where}: submit: data is {type(data).__name__}, not an object")
        try:
            text = codec.encode(dict(data or {}))
            said.follow_ons.append(FollowOn(pipeline, check_key(key), text, when_exists, child))
        except (ValueRefused, UsageError) as error:
            raise UsageError(f"{self._where}: submit: {error}") from None

    def cost(self, amount: Amount, resource: str | None = None, facts: Mapping[str, Any] | None = None) -> None:
        """Record money this attempt has spent, with facts about it (`model`, `tokens_in`, `tokens_out`, and any others); it
        counts however the attempt ends."""
        said, resource = self._say(), _plain_name(resource)
        spent = micros(amount, what=f"{self._where}: cost")
        check_resource(resource, f"{self._where}: cost")
        said.costs.append(Cost(spent, resource, CallFacts.read(facts, where=f"{self._where}: cost")))
        points.reach("cost", self.item.pipeline, self._spec.name, spent)

    def used(self, **units: float) -> None:
        """Tell how many units this attempt has really used, instead of what was expected: `ctx.used(tokens=812)`. Several
        calls add up."""
        used = self._say().units_used
        for unit, n in units.items():
            number = _number(n)
            if number is None or not 0 <= number <= 1e12:
                raise UsageError(f"{self._where}: used({unit}={n!r}): give a number from zero to a million millions")
            used[unit] = used.get(unit, 0) + number

    def heed(self, headers: Mapping[str, Any]) -> None:
        """Show the headers of a reply: if they say that nothing is left until a time (`X-RateLimit-Remaining: 0`), everyone who
        uses the same resource waits until then."""
        said = self._say()
        after = used_up_for(headers)
        if after is not None:
            said.cool_us = max(said.cool_us or 0, microseconds(min(after, COOL_MOST_SECONDS)))

    def idempotency_key(self, name: str) -> str:
        """A key for a provider that knows such keys: the same in every attempt, another one when the stage is run anew."""
        self._check()
        name = _plain_name(name)
        check_memo_name(name, f"{self._where}: idempotency_key({name!r})")
        memo = self._lease.memos.get(name)
        if memo is not None and memo.state != "rejected" and self._spec.stands(memo.version):
            return memo.idempotency_key
        return idempotency_key(self._lease, name, self._spec.version, 0 if memo is None else memo.rejections)

    def children(self, pipeline: str) -> dict[str, int]:
        """How many of the items submitted as children to a pipeline ended how: `{"done": 9, "failed": 1}`."""
        self._check()
        return self._around.count_children(self._lease.item, pipeline)

    def result(self, stage: str | Stage[..., Any]) -> Any:
        """What an earlier stage returned for this item; None if it was skipped. A fresh copy each time."""
        self._check()
        name = stage_name(stage, "ctx.result")
        text = self._around.read_result(self.item.pipeline, self._lease.item, name, self._lease.results)
        return None if text is None else codec.decode(text)

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Tell how far this attempt has come; it travels with the next heartbeat."""
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
        return _ItemLog(
            logging.getLogger(f"holdfast.stage.{self.item.pipeline}.{self._spec.name}"),
            {"item": self.item.key, "stage": self._spec.name, "attempt": self.attempt},
        )

    def close(self) -> None:
        self._open = False

    @property
    def _where(self) -> str:
        return f"item {self.item.key!r}, stage {self._spec.name!r}"

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


async def _waited(written: Future[None] | None, answer: bool) -> bool:
    if written is not None:
        await asyncio.wrap_future(written)
    return answer


def _plain_name(name: Any) -> Any:
    """A text of another class, as a parser returns them, is no text to a database."""
    return str.__str__(name) if isinstance(name, str) else name


def _number(value: object) -> int | float | None:
    """A number of any class, numpy's too, as a plain one; None if it is none, or too large to be exact."""
    if type(value) is not int and type(value) is not float:
        try:
            value = codec.plain(value)
        except ValueRefused:
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if -(2.0**53) < value < 2.0**53 else None


class BatchContext:
    """The same for a batch: `ctx.of(item)` is the context of one of its items."""

    __slots__ = ("_contexts", "items")

    def __init__(self, contexts: Sequence[Context]) -> None:
        self.items = [one.item for one in contexts]
        self._contexts = {one.item.key: one for one in contexts}

    def of(self, item: Item) -> Context:
        return self._contexts[item.key]

    @property
    def stopping(self) -> bool:
        return next(iter(self._contexts.values())).stopping

    @property
    def log(self) -> logging.Logger:
        first = next(iter(self._contexts.values()))
        return logging.getLogger(f"holdfast.stage.{first.item.pipeline}.{first._spec.name}")

    def close(self) -> None:
        for one in self._contexts.values():
            one.close()


class _ItemLog(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        facts = self.extra or {}
        return f"[{facts['item']} {facts['stage']} #{facts['attempt']}] {msg}", kwargs


MakeContext = Callable[[], Context | BatchContext]
