"""What a handler gets beside the item: results of earlier stages, progress, the log, and whether to hurry."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from holdfast.errors import UsageError
from holdfast.model import codec
from holdfast.model.item import Item


class Surroundings(Protocol):
    """What a context asks of the process it runs in."""

    @property
    def stopping(self) -> bool: ...

    def read_result(self, pipeline: str, item: int, stage: str, known: dict[int, str]) -> str | None:
        """The result of an earlier stage as JSON text, None if it was skipped."""
        ...

    def note_progress(self, item: int, stage: str, note: dict[str, Any]) -> None: ...


class Context:
    """One attempt, as its handler sees it. It is of no use once the handler has returned."""

    __slots__ = ("_around", "_item", "_known", "_open", "_stage", "attempt", "item")

    def __init__(
        self, around: Surroundings, item: Item, number: int, stage: str, attempt: int, known: dict[int, str]
    ) -> None:
        self.item = item
        #: Which attempt this is, counted from 1.
        self.attempt = attempt
        self._around = around
        self._item = number
        self._stage = stage
        self._known = known
        self._open = True

    def result(self, stage: str) -> Any:
        """What an earlier stage returned for this item; None if it was skipped. A fresh copy each time."""
        self._check()
        text = self._around.read_result(self.item.pipeline, self._item, stage, self._known)
        return None if text is None else codec.decode(text)

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Tell how far this attempt has come; it travels with the next heartbeat."""
        self._check()
        if not _is_number(done) or not (total is None or _is_number(total)):
            raise UsageError(f"progress({done!r}, {total!r}): give numbers")
        note = codec.plain_text(str(note), 200)
        self._around.note_progress(
            self._item,
            self._stage,
            {"item": self.item.key, "stage": self._stage, "done": done, "total": total, "note": note},
        )

    @property
    def stopping(self) -> bool:
        """True once the worker was asked to stop: a long handler may then return `RetryLater(after=0)`."""
        return self._around.stopping

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose lines name the item, the stage and the attempt."""
        return _ItemLog(
            logging.getLogger(f"holdfast.stage.{self.item.pipeline}.{self._stage}"),
            {"item": self.item.key, "stage": self._stage, "attempt": self.attempt},
        )

    def close(self) -> None:
        self._open = False

    def _check(self) -> None:
        if not self._open:
            raise UsageError(
                f"item {self.item.key!r}, stage {self._stage!r}: attempt {self.attempt} is over, its context cannot be used; "
                f"wait for your own threads before the handler returns"
            )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -(2.0**53) < value < 2.0**53


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
        return logging.getLogger(f"holdfast.stage.{first.item.pipeline}.{first._stage}")

    def close(self) -> None:
        for one in self._contexts.values():
            one.close()


class _ItemLog(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        facts = self.extra or {}
        return f"[{facts['item']} {facts['stage']} #{facts['attempt']}] {msg}", kwargs


MakeContext = Callable[[], Context | BatchContext]
