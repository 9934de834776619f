"""A named sub-step inside a stage: called once, recorded before its result is used, and never again.

Sync and async handlers share everything but the waiting.
"""

from __future__ import annotations

import asyncio
import inspect
import shlex
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from holdfast.engine.claim import Lease, Memo
from holdfast.engine.remember import MemoWrite, idempotency_key
from holdfast.errors import Permanent, UsageError, ValueRefused
from holdfast.model import codec
from holdfast.model.functions import is_async
from holdfast.model.money import Amount, micros
from holdfast.model.stage import StageSpec

Price = Amount | Callable[[Any], Amount]
OnDoubt = Literal["retry", "hold"] | Callable[[str], Any]

MAX_NAME = 200


class CallAgain(Exception):
    """Raise or return it in an `on_doubt` function: the provider knows nothing of the call, so make it."""


class Rememberer(Protocol):
    def remember(self, memo: MemoWrite) -> Future[None]: ...


@dataclass(slots=True)
class SubStep:
    """One `ctx.once`."""

    around: Rememberer
    lease: Lease
    spec: StageSpec
    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    price: Price | None
    estimate: Amount | None
    on_doubt: OnDoubt
    resource: str | None
    #: The sub-steps of this attempt, by name.
    used: dict[str, SubStep]
    #: The call was made and is recorded, but what it cost could not be told.
    unpriced: Permanent | None = None

    def run(self) -> Any:
        """In a sync handler."""
        self._check()
        for function in (self.function, self.on_doubt):
            if callable(function) and is_async(function):
                raise UsageError(f"{self._where}: {_name(function)} is async: call it from an async handler")
        memo = self._known()
        if memo is not None and memo.state == "done":
            return codec.decode(memo.value or "null")
        key = self._key(memo)
        doubt = None if memo is None else self._policy(memo)
        if memo is not None and callable(self.on_doubt) and self.spec.stands(memo.version):
            answer = _answer(self.on_doubt, key)
            if not _is_call_again(answer):
                self._save(answer, key, "the provider was asked").result()
                return self._recorded(answer)
        if self.price is not None or self.estimate is not None:
            self._intend(key, doubt).result()
            doubt = None
        value = self.function(*self.args)
        if inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            raise UsageError(f"{self._where}: {_name(self.function)} is async: call it from an async handler")
        self._save(value, key, doubt).result()
        return self._recorded(value)

    async def run_async(self) -> Any:
        """In an async handler. A plain function runs in a thread, so that the others go on."""
        self._check()
        memo = self._known()
        if memo is not None and memo.state == "done":
            return codec.decode(memo.value or "null")
        key = self._key(memo)
        doubt = None if memo is None else self._policy(memo)
        if memo is not None and callable(self.on_doubt) and self.spec.stands(memo.version):
            answer = await _called(_answer_of(self.on_doubt), key)
            if not _is_call_again(answer):
                await asyncio.wrap_future(self._save(answer, key, "the provider was asked"))
                return self._recorded(answer)
        if self.price is not None or self.estimate is not None:
            await asyncio.wrap_future(self._intend(key, doubt))
            doubt = None
        value = await _called(self.function, *self.args)
        await asyncio.wrap_future(self._save(value, key, doubt))
        return self._recorded(value)

    # The parts ----------------------------------------------------------------------------------------------------

    @property
    def _where(self) -> str:
        return f"item {self.lease.key!r}, stage {self.spec.name!r}, once({self.name!r})"

    def _check(self) -> None:
        check_memo_name(self.name, self._where)
        if not callable(self.function):
            raise UsageError(f"{self._where}: {self.function!r} is not a function")
        if self.on_doubt not in ("retry", "hold") and not callable(self.on_doubt):
            raise UsageError(f'{self._where}: on_doubt={self.on_doubt!r}: it is "retry", "hold" or a function')
        if self.price is not None and not callable(self.price):
            micros(self.price, what=f"{self._where}: cost")
        if callable(self.price) and is_async(self.price):
            raise UsageError(f"{self._where}: cost: {_name(self.price)} is async; give an amount or a plain function")
        if self.estimate is not None:
            micros(self.estimate, what=f"{self._where}: estimate")
        check_resource(self.resource, self._where)
        # In one step, for threads that come at the same time.
        if self.used.setdefault(self.name, self) is not self:
            raise UsageError(f"{self._where}: this name was used before in this attempt; names tell sub-steps apart")

    def _known(self) -> Memo | None:
        """What earlier attempts left, unless it is a result of a version whose results no longer stand. A call that was
        begun may have been made, whatever the version."""
        memo = self.lease.memos.get(self.name)
        if memo is None or memo.state == "intended" or self.spec.stands(memo.version):
            return memo
        return None

    def _key(self, memo: Memo | None) -> str:
        if memo is not None and self.spec.stands(memo.version):
            return memo.idempotency_key
        return idempotency_key(self.lease, self.name, self.spec.version)

    def _policy(self, memo: Memo) -> str:
        """What is done about a call that may or may not have been made."""
        if self.on_doubt == "hold":
            raise Permanent(
                f"{self._where}: the call was begun and never recorded, so it may have been made; it is not repeated: "
                f"see what the provider says, then: holdfast why {shlex.quote(self.lease.key)}"
            )
        if not self.spec.stands(memo.version):
            return f"called again by version {self.spec.version}"
        return "called again" if self.on_doubt == "retry" else "the provider knew nothing, called again"

    def _intend(self, key: str, doubt: str | None) -> Future[None]:
        amount = self.estimate if self.estimate is not None else self.price
        estimate = None if amount is None or callable(amount) else micros(amount)
        return self._remember(
            MemoWrite(self.lease, self.name, "intended", self.spec.version, key, estimate, doubt=doubt)
        )

    def _save(self, value: Any, key: str, doubt: str | None) -> Future[None]:
        try:
            text = codec.encode(value)
        except ValueRefused as error:
            raise Permanent(f"{self._where}: the result cannot be kept: {error}") from None
        return self._remember(
            MemoWrite(
                self.lease, self.name, "done", self.spec.version, key, None, self._cost(value), text, self.resource,
                doubt=doubt,
            )
        )  # fmt: skip

    def _cost(self, value: Any) -> int | None:
        """What the call cost. It is made and paid by now: a cost that cannot be told must not lose its result."""
        if not callable(self.price):
            return None if self.price is None else micros(self.price)
        try:
            return micros(self.price(value), what=f"{self._where}: cost")
        except Exception as error:
            self.unpriced = Permanent(
                f"{self._where}: the result is recorded, but its cost cannot be told: {type(error).__name__}: {error}"
            )
            return None if self.estimate is None else micros(self.estimate)

    def _recorded(self, value: Any) -> Any:
        if self.unpriced is not None:
            raise self.unpriced
        return codec.decode(codec.encode(value))

    def _remember(self, memo: MemoWrite) -> Future[None]:
        return self.around.remember(memo)


def check_memo_name(name: object, where: str) -> None:
    if isinstance(name, str) and 0 < len(name) <= MAX_NAME and codec.plain_text(name, MAX_NAME) == name:
        return
    raise UsageError(f"{where}: a name is a text of 1 to {MAX_NAME} characters")


def check_resource(resource: object, where: str) -> None:
    if resource is not None:
        if not isinstance(resource, str) or not resource or codec.plain_text(resource, MAX_NAME) != resource:
            raise UsageError(f"{where}: resource {resource!r} is not a name")


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", repr(function)))


def _is_call_again(answer: object) -> bool:
    return answer is CallAgain or isinstance(answer, CallAgain)


async def _called(function: Callable[..., Any], *args: Any) -> Any:
    value = function(*args) if is_async(function) else await asyncio.to_thread(function, *args)
    return await value if inspect.isawaitable(value) else value


def _answer(function: Callable[[str], Any], key: str) -> Any:
    try:
        return function(key)
    except CallAgain as again:
        return again


def _answer_of(function: Callable[[str], Any]) -> Callable[[str], Any]:
    async def ask(key: str) -> Any:
        try:
            return await _called(function, key)
        except CallAgain as again:
            return again

    return ask
