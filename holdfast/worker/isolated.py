"""Runs handlers in child processes: a crash, lack of memory or a timeout costs only the attempt.

Stages ask for it with `isolate="process"`. Work that a worker held when it died is always isolated.
"""

from __future__ import annotations

import asyncio
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import InitVar, dataclass, replace
from typing import Any, Literal, TypeVar

import msgspec

from holdfast.engine.claim import Lease
from holdfast.engine.complete import complete, must_be_alone
from holdfast.engine.finish_leases import AttemptEffect, FinishedAttempt, named_resources
from holdfast.engine.layout import layout
from holdfast.engine.memos import MemoWrite
from holdfast.engine.resource_state import lock_resources
from holdfast.errors import HoldfastError, StoreUnavailable, UsageError
from holdfast.model import codec
from holdfast.model.error_fingerprint import describe
from holdfast.model.log_lines import logger
from holdfast.model.states import Alone, State
from holdfast.runtime import child_messages as wire
from holdfast.store import Store, Transaction
from holdfast.worker.call import Offer, StageCall
from holdfast.worker.handler_environment import Surroundings
from holdfast.worker.runner import StageRunner

log = logger("holdfast.worker")

T = TypeVar("T", FinishedAttempt, MemoWrite)


class Request(msgspec.Struct):
    """What a child wants of its worker while it runs a call."""

    #: A method of the worker's `Surroundings`; `saving` says that the handler has returned, and has no time limit now.
    method: Literal["read_result", "count_children", "has_budget", "pause_of", "note_progress", "remember", "saving"]
    args: tuple[Any, ...] = ()
    memos: list[MemoWrite] = []


class Assignment(msgspec.Struct):
    """What a child is to run."""

    leases: list[Lease]
    #: The span of the call, if the program traces.
    traceparent: str | None = None


_FROM_WORKER = wire.decoder_of(Assignment)
_FROM_CHILD = wire.decoder_of(Request | list[FinishedAttempt])


class StageConversation:
    """The worker's side: sends a child the leases of a call, answers its requests, and receives the results."""

    def __init__(
        self,
        runner: StageRunner,
        around: Surroundings,
        traceparent: Callable[[StageCall], str | None] | None = None,
    ) -> None:
        """`traceparent` names the span below which the child runs a call, if the program traces."""
        self._runner = runner
        self._around = around
        self._traceparent = traceparent

    def is_suspect(self, call: StageCall) -> bool:
        return call.leases[0].alone >= Alone.ISOLATED

    def raised(self, call: StageCall, error: BaseException) -> list[FinishedAttempt]:
        return self._runner.raised(call, error)

    def not_run(self, call: StageCall) -> list[FinishedAttempt]:
        return [FinishedAttempt(lease, State.PENDING) for lease in call.leases]

    def talk(self, call: StageCall, line: socket.socket) -> list[FinishedAttempt]:
        wire.send(line, Assignment(call.leases, None if self._traceparent is None else self._traceparent(call)))
        limit = call.spec.timeout_seconds
        while True:
            left = None if limit is None else call.started + limit - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError
            line.settimeout(left)
            message: Request | list[FinishedAttempt] = wire.receive(line, _FROM_CHILD)
            if isinstance(message, list):
                for one in _with_leases_of(call, message):
                    one.waited_us = call.times_us()[1]
                return message
            if message.method == "note_progress":
                self._around.note_progress(*message.args)
            elif message.method == "saving":
                limit = None
            else:
                line.settimeout(None)
                wire.send(line, self._answer(call, message))

    def _answer(self, call: StageCall, asked: Request) -> dict[str, Any]:
        try:
            if asked.method != "remember":
                return {"answer": getattr(self._around, asked.method)(*asked.args)}
            self._around.remember(_with_leases_of(call, asked.memos)).result()
            return {"answer": [memo.lost for memo in asked.memos]}
        except HoldfastError as error:
            return {"error": str(error), "kind": type(error).__name__}


@dataclass(eq=False)
class StageChild:
    """The child's side: runs the calls it receives, one after another."""

    _line: socket.socket
    _offer: Offer
    _another_store: Callable[[], Store]
    _worker: InitVar[Surroundings]

    stopping = False

    def __post_init__(self, worker: Surroundings) -> None:
        self._lock = threading.Lock()
        self.pipeline, self.blobs = worker.pipeline, worker.blobs
        self.worker_name, self.spans = worker.worker_name, worker.spans
        self._runner = StageRunner(self)

    def run(self) -> None:
        while True:
            try:
                given: Assignment = wire.receive(self._line, _FROM_WORKER)
            except EOFError:
                return
            stage = given.leases[0].stage
            pipeline, spec = self._offer[stage]
            call = StageCall(pipeline, spec, given.leases, stage, time.monotonic())
            with nullcontext() if self.spans is None else self.spans.below(given.traceparent):
                if spec.is_async:
                    finished = asyncio.run(self._runner.run_async(call, time.monotonic))
                else:
                    finished = self._runner.run(call, time.monotonic)
            # The worker may kill this process as soon as it has answered.
            sys.stdout.flush()
            sys.stderr.flush()
            self._send(self._answer(call, finished))

    def _answer(self, call: StageCall, finished: list[FinishedAttempt]) -> list[FinishedAttempt]:
        """How the attempts have ended, for the worker.

        Effects that only this process can run are run here, in a transaction that completes the stage. Calling the
        handler again in the worker could pay twice, and an item that kills its process would kill the worker.
        """
        try:
            return [_portable(one, effects=_portable_effects(one, call)) for one in finished]
        except UsageError as error:
            refused: HoldfastError = error
        if not call.spec.isolate:
            self._send(Request("saving"))
            try:
                self._save(finished)
                return [_portable(one, saved=True) for one in finished]
            except Exception as error:
                refused = HoldfastError(f"{refused}; this process could not save it itself: {describe(error)[0]}")
        return [_portable(one) for one in self._runner.raised(call, refused)]

    def _save(self, finished: list[FinishedAttempt]) -> None:
        """Complete the stage from here, however long it takes: if the worker gives up, it kills this process."""
        store = self._another_store()
        write = store.writing(lambda tx: _complete(tx, finished), exclusive=must_be_alone(finished))
        while True:
            try:
                write.run()
                return store.close()
            except StoreUnavailable as error:
                log.warning("the store is not available, an isolated attempt waits: %s", error)
            time.sleep(random.uniform(0.05, 0.5))

    def read_result(self, pipeline: str, item: int, stage: str, known: Mapping[int, str]) -> str | None:
        for number, text in known.items():
            name, spec = self._offer.get(number, ("", None))
            if name == pipeline and spec is not None and spec.name == stage:
                return text
        found: str | None = self._ask(Request("read_result", (pipeline, item, stage, {})))
        return found

    def remember(self, memos: Sequence[MemoWrite]) -> Future[None]:
        request = Request("remember", memos=[replace(memo, lease=_number_of(memo.lease)) for memo in memos])
        future: Future[None] = Future()
        try:
            for memo, lost in zip(memos, self._ask(request), strict=True):
                memo.lost = lost
            future.set_result(None)
        except HoldfastError as error:
            future.set_exception(error)
        return future

    def count_children(self, item: int, pipeline: str) -> dict[str, int]:
        found: dict[str, int] = self._ask(Request("count_children", (item, pipeline)))
        return found

    def has_budget(self, stage: int, resource: str | None) -> bool:
        return bool(self._ask(Request("has_budget", (stage, resource))))

    def pause_of(self, resource: str) -> tuple[str, float] | None:
        found = self._ask(Request("pause_of", (resource,)))
        return None if found is None else (found[0], found[1])

    def _ask(self, question: Request) -> Any:
        with self._lock:
            wire.send(self._line, question)
            answer = wire.receive(self._line)
        if "error" in answer:
            kinds = {"StoreUnavailable": StoreUnavailable, "StoreConflict": StoreUnavailable}
            raise kinds.get(answer["kind"], UsageError)(answer["error"])
        return answer["answer"]

    def note_progress(self, item: int, stage: str, note: dict[str, Any]) -> None:
        self._send(Request("note_progress", (item, stage, note)))

    def _send(self, message: Request | list[FinishedAttempt]) -> None:
        with self._lock:
            wire.send(self._line, message)


def _complete(tx: Transaction, finished: list[FinishedAttempt]) -> None:
    if layout(tx).resources:
        lock_resources(tx, {one.lease.stage for one in finished}, named_resources(finished))
    complete(tx, finished)


def _number_of(lease: Lease) -> Lease:
    """What identifies a lease; the worker has the rest of it."""
    return Lease(lease.id, lease.item, lease.stage, lease.attempt, 0, 0, "", "", 0)


def _with_leases_of(call: StageCall, some: list[T]) -> list[T]:
    """Attempts or memos that came from the child, with the worker's own leases."""
    leases = {lease.id: lease for lease in call.leases}
    for one in some:
        one.lease = leases[one.lease.id]
    return some


def _portable(one: FinishedAttempt, **changes: Any) -> FinishedAttempt:
    """An attempt as it is sent to the worker, which reports no attempt of a child as routine."""
    sent = {"lease": _number_of(one.lease), "effects": (), "routine": False, **changes}
    return msgspec.structs.replace(one, **sent)


def _portable_effects(one: FinishedAttempt, call: StageCall) -> list[AttemptEffect]:
    """The effects of an attempt. Both processes must find their functions, and their arguments must fit into JSON."""
    where = f"item {one.lease.key!r}, stage {call.spec.name!r}"
    return [_portable_effect(effect, where) for effect in one.effects]


def _portable_effect(effect: AttemptEffect, where: str) -> AttemptEffect:
    function, args = effect
    name = getattr(function, "__qualname__", "")
    if wire.function_at(getattr(function, "__module__", ""), name) is not function:
        raise UsageError(f"{where}: effect({name or function!r}): in a process of its own, give a function of a module")
    try:
        sent = codec.plain(given := list(args))
        # The function must get the same arguments as without isolation, where nothing is converted to JSON.
        trouble = "" if sent == given else "one of them would change"
    except Exception as error:  # an argument may refuse to be compared, too
        trouble = str(error)
    if trouble:
        raise UsageError(
            f"{where}: effect({name}): in a process of its own, its arguments must fit into JSON: {trouble}"
        )
    return AttemptEffect(function, tuple(sent))
