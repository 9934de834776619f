"""The context that the handler of a batch gets: one for each item, and calls that serve several of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Unpack

from holdfast.errors import UsageError
from holdfast.model.item import Item
from holdfast.model.log_lines import logger
from holdfast.telemetry.attributes import BATCH_SIZE, Attributes, of_stage
from holdfast.worker.context import Context
from holdfast.worker.once import Once
from holdfast.worker.once_decision import key_of_all
from holdfast.worker.once_options import OnceOptions, Terms, check_memo_name, plain_name
from holdfast.worker.provider_call import CallOptions, CallWith, ProviderCall


class BatchContext:
    """The context of a batch: `ctx.of(item)` is the context of one of its items."""

    __slots__ = ("_contexts", "_first", "items")

    def __init__(self, contexts: Sequence[Context]) -> None:
        self.items = [one.item for one in contexts]
        self._first = contexts[0]
        self._contexts = {one.item.key: one for one in contexts}

    def of(self, item: Item[Any]) -> Context:
        return self._contexts[item.key]

    def once(
        self,
        name: str,
        function: Callable[..., Any],
        items: Sequence[Item[Any]],
        *args: Any,
        **options: Unpack[OnceOptions],
    ) -> Any:
        """Call `function(some, *args)` once for the items that have no recorded answer under this name. Returns the
        answers to all `items`, as a list in their order. In an async handler: `await ctx.once(...)`.

        The function returns one answer per item it was given: a list in their order, or a mapping by key. Each answer
        is recorded for its item before this returns. A later attempt, with any selection of items, calls only for those
        without a record. The items of a call share its cost and the tokens in its `facts`. If the process died during
        the call, it is one call in doubt; an `on_doubt` function gets the idempotency key and those of its items that
        are in this batch.

        In place of a missing answer there is an exception, to be returned as the verdict of its item: `validate`, which
        checks answers one by one, rejected it; its call is in doubt and on hold; it would cost too much; or its lease
        was lost. With a single item in `items`, the exception is raised.
        """
        return self._once(Terms.of(name, function, args, options), items)

    def call(self, name: str, function: Callable[..., Any], items: Sequence[Item], /, *args: Any, **kwargs: Any) -> Any:
        """Call a provider for the items that have no recorded answer under this name, as `once` does: the function gets a list
        of items and then the other arguments. An answer that has one part for each item, such as embeddings, is taken apart.
        """
        return self.options().call(name, function, items, *args, **kwargs)

    def options(self, **options: Unpack[CallOptions]) -> CallWith:
        """Say more about a call than the function needs to know, as in the context of one item."""
        return CallWith(self._make_call, options)

    def _make_call(self, call: ProviderCall) -> Any:
        if not call.args:
            raise UsageError(
                f"stage {self._first._spec.name!r}: call({call.name!r}): give a list of items of this batch"
            )
        return self._once(call.terms(self._first._spec, self._first, for_items=True), call.args[0])

    def _once(self, terms: Terms, items: Sequence[Item]) -> Any:
        contexts = self._contexts_of(items, f"once({terms.name!r})")
        if not contexts:
            return _nothing() if self._first._spec.is_async else []
        parts = [one._sub_step(terms) for one in contexts]
        its = dict(zip(parts, items, strict=True))
        return self._first._run(Once(self._first._around, self._first._spec, terms, parts, its).steps())

    def _about(self) -> Attributes:
        """What spans and log records say about the attempts of this batch."""
        first = self._first
        stage = of_stage(first.item.pipeline, first._spec.name, first._spec.version, first._around.worker_name)
        return {**stage, BATCH_SIZE: len(self.items)}

    def idempotency_key(self, name: str, items: Sequence[Item[Any]]) -> str:
        """An idempotency key for a provider: the same whenever a call is made for these items in this order."""
        name = plain_name(name)
        contexts = self._contexts_of(items, f"idempotency_key({name!r})")
        check_memo_name(name, f"stage {self._first._spec.name!r}: idempotency_key({name!r})")
        if not contexts:
            raise UsageError(f"stage {self._first._spec.name!r}: idempotency_key({name!r}): give at least one item")
        return key_of_all([one._lease for one in contexts], self._first._spec, name)

    def _contexts_of(self, items: Sequence[Item[Any]], what: str) -> list[Context]:
        where = f"stage {self._first._spec.name!r}: {what}"
        if not isinstance(items, Sequence) or not all(isinstance(one, Item) for one in items):
            raise UsageError(f"{where}: give a list of items of this batch")
        if strangers := [one.key for one in items if one.key not in self._contexts]:
            raise UsageError(f"{where}: item {strangers[0]!r} is not in this batch")
        for one in items:
            self._contexts[one.key]._check()
        return [self._contexts[one.key] for one in items]

    @property
    def stopping(self) -> bool:
        return self._first.stopping

    @property
    def log(self) -> logging.Logger:
        return logger(f"holdfast.stage.{self._first.item.pipeline}.{self._first._spec.name}")


async def _nothing() -> list[Any]:
    return []
