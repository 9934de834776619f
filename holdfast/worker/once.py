"""A named sub-step inside a stage: called once, recorded before its result is used, and never again.

Sync and async handlers share everything but the waiting.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from holdfast.engine.claim import Lease, Memo
from holdfast.engine.remember import MemoWrite, idempotency_key
from holdfast.errors import Permanent, UsageError, ValueRefused
from holdfast.model import codec
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
    used: set[str]

    def run(self) -> Any:
        """In a sync handler."""
        self._check()
        if _is_async(self.function):
            raise UsageError(f"{self._where}: {self._function_name} is async: call it from an async handler")
        memo = self._known()
        if memo is not None and memo.state == "done":
            return codec.decode(memo.value or "null")
        key, doubt = self._key(memo), None
        if memo is not None:
            doubt = self._policy()
            if callable(self.on_doubt):
                answer = _answer(self.on_doubt, key)
                if not isinstance(answer, CallAgain):
                    return self._save(answer, key, "the provider was asked").result() or answer
        if self.price is not None or self.estimate is not None:
            self._intend(key, doubt).result()
            doubt = None
        value = self.function(*self.args)
        self._save(value, key, doubt).result()
        return codec.decode(codec.encode(value))

    async def run_async(self) -> Any:
        """In an async handler. A plain function runs in a thread, so that the others go on."""
        self._check()
        memo = self._known()
        if memo is not None and memo.state == "done":
            return codec.decode(memo.value or "null")
        key, doubt = self._key(memo), None
        if memo is not None:
            doubt = self._policy()
            if callable(self.on_doubt):
                answer = await _called(_answer_of(self.on_doubt), key)
                if not isinstance(answer, CallAgain):
                    await asyncio.wrap_future(self._save(answer, key, "the provider was asked"))
                    return answer
        if self.price is not None or self.estimate is not None:
            await asyncio.wrap_future(self._intend(key, doubt))
            doubt = None
        value = await _called(self.function, *self.args)
        await asyncio.wrap_future(self._save(value, key, doubt))
        return codec.decode(codec.encode(value))

    # The parts ----------------------------------------------------------------------------------------------------

    @property
    def _where(self) -> str:
        return f"item {self.lease.key!r}, stage {self.spec.name!r}, once({self.name!r})"

    @property
    def _function_name(self) -> str:
        return getattr(self.function, "__qualname__", repr(self.function))

    def _check(self) -> None:
        if not isinstance(self.name, str) or not self.name or len(self.name) > MAX_NAME or "\0" in self.name:
            raise UsageError(f"{self._where}: a name is a text of 1 to {MAX_NAME} characters")
        if self.name in self.used:
            raise UsageError(f"{self._where}: this name was used before in this attempt; names tell sub-steps apart")
        if not callable(self.function):
            raise UsageError(f"{self._where}: {self.function!r} is not a function")
        if self.on_doubt not in ("retry", "hold") and not callable(self.on_doubt):
            raise UsageError(f'{self._where}: on_doubt={self.on_doubt!r}: it is "retry", "hold" or a function')
        if self.price is not None and not callable(self.price):
            micros(self.price, what=f"{self._where}: cost")
        if self.estimate is not None:
            micros(self.estimate, what=f"{self._where}: estimate")
        self.used.add(self.name)

    def _known(self) -> Memo | None:
        """What earlier attempts left, unless it is of a version whose results no longer stand."""
        memo = self.lease.memos.get(self.name)
        if memo is None or memo.version == self.spec.version or memo.version in self.spec.compatible_from:
            return memo
        return None

    def _key(self, memo: Memo | None) -> str:
        return memo.idempotency_key if memo is not None else idempotency_key(self.lease, self.name)

    def _policy(self) -> str:
        """What is done about a call that may or may not have been made."""
        if self.on_doubt == "hold":
            raise Permanent(
                f"{self._where}: the call may have been made before the process that made it died, and is not repeated; "
                f"see what the provider says, then: holdfast resolve {self.lease.key} --memo {self.name}"
            )
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
        price = self.price(value) if callable(self.price) else self.price
        cost = None if price is None else micros(price, what=f"{self._where}: cost")
        return self._remember(
            MemoWrite(
                self.lease, self.name, "done", self.spec.version, key, None, cost, text, self.resource, doubt=doubt
            )
        )

    def _remember(self, memo: MemoWrite) -> Future[None]:
        return self.around.remember(memo)


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


async def _called(function: Callable[..., Any], *args: Any) -> Any:
    return await function(*args) if _is_async(function) else await asyncio.to_thread(function, *args)


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
