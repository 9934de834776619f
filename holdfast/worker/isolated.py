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
from typing import Any

import msgspec

from holdfast.engine.claim import Lease, Memo
from holdfast.engine.complete import complete, must_be_alone
from holdfast.engine.finish import AttemptEffect, Cost, FinishedAttempt, FollowOn
from holdfast.engine.layout import layout
from holdfast.engine.memos import MemoWrite
from holdfast.engine.resource_gates import lock_resources
from holdfast.errors import HoldfastError, StoreUnavailable, UsageError
from holdfast.model import codec
from holdfast.model.faults import describe
from holdfast.model.logs import logger
from holdfast.model.paid import CallFacts
from holdfast.model.states import Alone, State
from holdfast.model.user_event import UserEvent
from holdfast.runtime import child_messages as wire
from holdfast.store import Store, Transaction
from holdfast.worker.call import Offer, StageCall
from holdfast.worker.context import Surroundings
from holdfast.worker.runner import StageRunner

log = logger("holdfast.worker")

#: Fields that the child computes and sends; the lease stays with the worker.
_MEMO = (
    "name",
    "state",
    "version",
    "idempotency_key",
    "estimate",
    "cost",
    "value",
    "resource",
    "facts",
    "doubt",
    "was_free",
    "reason",
    "lead",
)
_TOLD = (
    "state",
    "version",
    "result",
    "output_hash",
    "error",
    "traceback",
    "delay_us",
    "snooze",
    "took_us",
    "share",
    "company",
    "backoff_us",
    "used",
    "cool_us",
    "out_of_credit",
    "key_refused",
    "limited_resource",
    "pauses_stage",
    "item_at_fault",
    "rejected",
    "stop_stage",
    "lost",
)


class StageConversation:
    """The worker's side: sends a child the leases of a call, answers its requests, and receives the results."""

    def __init__(self, runner: StageRunner, around: Surroundings) -> None:
        self._runner = runner
        self._around = around

    def is_suspect(self, call: StageCall) -> bool:
        return call.leases[0].alone >= Alone.ISOLATED

    def raised(self, call: StageCall, error: BaseException) -> list[FinishedAttempt]:
        return self._runner.raised(call, error)

    def not_run(self, call: StageCall) -> list[FinishedAttempt]:
        return [FinishedAttempt(lease, State.PENDING) for lease in call.leases]

    def talk(self, call: StageCall, line: socket.socket) -> list[FinishedAttempt]:
        wire.send(line, {"stage": call.leases[0].stage, "leases": [_sent(lease) for lease in call.leases]})
        limit = call.spec.timeout_seconds
        while True:
            left = None if limit is None else call.started + limit - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError
            line.settimeout(left)
            message = wire.receive(line)
            if "ask" in message:
                line.settimeout(None)
                wire.send(line, self._answer(call, message))
            elif "progress" in message:
                self._around.note_progress(*message["progress"])
            elif "saving" in message:
                # The handler has returned; the write has no time limit.
                limit = None
            else:
                saved = bool(message.get("saved"))
                return [
                    _received(call, lease, told, saved)
                    for lease, told in zip(call.leases, message["finished"], strict=True)
                ]

    def _answer(self, call: StageCall, message: dict[str, Any]) -> dict[str, Any]:
        try:
            if message["ask"] == "result":
                return {"answer": self._around.read_result(call.pipeline, message["item"], message["stage"], {})}
            if message["ask"] == "children":
                return {"answer": self._around.count_children(message["item"], message["pipeline"])}
            if message["ask"] == "budget":
                return {"answer": self._around.has_budget(message["stage"])}
            leases = {lease.item: lease for lease in call.leases}
            memos = [MemoWrite(leases[item], **memo) for item, memo in message["memos"]]
            self._around.remember(memos).result()
            return {"answer": [memo.lost for memo in memos]}
        except HoldfastError as error:
            return {"error": str(error), "kind": type(error).__name__}


class StageChild:
    """The child's side: runs the calls it receives, one after another."""

    stopping = False

    def __init__(self, line: socket.socket, offer: Offer, another_store: Callable[[], Store]) -> None:
        self._line = line
        self._lock = threading.Lock()
        self._offer = offer
        self._another_store = another_store
        self._runner = StageRunner(self)

    def run(self) -> None:
        while True:
            try:
                message = wire.receive(self._line)
            except EOFError:
                return
            pipeline, spec = self._offer[message["stage"]]
            leases = [_lease(one) for one in message["leases"]]
            call = StageCall(pipeline, spec, leases, message["stage"], time.monotonic())
            if spec.is_async:
                finished = asyncio.run(self._runner.run_async(call, time.monotonic))
            else:
                finished = self._runner.run(call, time.monotonic)
            # The worker may kill this process as soon as it has answered.
            sys.stdout.flush()
            sys.stderr.flush()
            self._send(self._answer(call, finished))

    def _answer(self, call: StageCall, finished: list[FinishedAttempt]) -> dict[str, Any]:
        """The answer to the worker.

        Effects that only this process can run are run here, in a transaction that completes the stage. Calling the
        handler again in the worker could pay twice, and an item that kills its process would kill the worker.
        """
        try:
            return {"finished": [_told(one, _addresses(one, call.spec.name)) for one in finished]}
        except UsageError as error:
            refused: HoldfastError = error
        if not call.spec.isolate:
            self._send({"saving": True})
            try:
                self._save(finished)
                return {"finished": [_told(one, []) for one in finished], "saved": True}
            except Exception as error:
                refused = HoldfastError(f"{refused}; this process could not save it itself: {describe(error)[0]}")
        return {"finished": [_told(one, []) for one in self._runner.raised(call, refused)]}

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
        found: str | None = self._ask({"ask": "result", "item": item, "stage": stage})
        return found

    def remember(self, memos: Sequence[MemoWrite]) -> Future[None]:
        told = [(memo.lease.item, {name: getattr(memo, name) for name in _MEMO}) for memo in memos]
        future: Future[None] = Future()
        try:
            for memo, lost in zip(memos, self._ask({"ask": "memos", "memos": told}), strict=True):
                memo.lost = lost
            future.set_result(None)
        except HoldfastError as error:
            future.set_exception(error)
        return future

    def count_children(self, item: int, pipeline: str) -> dict[str, int]:
        found: dict[str, int] = self._ask({"ask": "children", "item": item, "pipeline": pipeline})
        return found

    def has_budget(self, stage: int) -> bool:
        return bool(self._ask({"ask": "budget", "stage": stage}))

    def _ask(self, question: dict[str, Any]) -> Any:
        with self._lock:
            wire.send(self._line, question)
            answer = wire.receive(self._line)
        if "error" in answer:
            kinds = {"StoreUnavailable": StoreUnavailable, "StoreConflict": StoreUnavailable}
            raise kinds.get(answer["kind"], UsageError)(answer["error"])
        return answer["answer"]

    def note_progress(self, item: int, stage: str, note: dict[str, Any]) -> None:
        self._send({"progress": [item, stage, note]})

    def _send(self, message: dict[str, Any]) -> None:
        with self._lock:
            wire.send(self._line, message)


def _complete(tx: Transaction, finished: list[FinishedAttempt]) -> None:
    if layout(tx).resources:
        lock_resources(tx, {one.lease.stage for one in finished})
    complete(tx, finished)


def _told(one: FinishedAttempt, effects: list[Address]) -> dict[str, Any]:
    """What the worker needs to know about an attempt, ready for JSON."""
    return {
        **{name: getattr(one, name) for name in _TOLD},
        "costs": one.costs,
        "events": one.events,
        "follow_ons": one.follow_ons,
        "effects": effects,
    }


#: A module, the name of a function in it, and its arguments.
Address = tuple[str, str, Any]


def _addresses(one: FinishedAttempt, stage: str) -> list[Address]:
    where = f"item {one.lease.key!r}, stage {stage!r}"
    return [_address(effect, where) for effect in one.effects]


def _address(effect: AttemptEffect, where: str) -> Address:
    """A function by the name under which both processes find it, with its arguments."""
    function, args = effect
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    if _at(module, name) is not function:
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
    return module, name, sent


def _at(module: str, name: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _received(call: StageCall, lease: Lease, told: dict[str, Any], saved: bool) -> FinishedAttempt:
    effects = [AttemptEffect(_at(module, name), tuple(args)) for module, name, args in told.pop("effects")]
    return FinishedAttempt(
        lease,
        waited_us=call.times_us()[1],
        saved=saved,
        **{
            **told,
            "state": State(told["state"]),
            "effects": effects,
            "costs": [Cost(amount, resource, CallFacts(*facts)) for amount, resource, facts in told["costs"]],
            "follow_ons": [FollowOn(*follow_on) for follow_on in told["follow_ons"]],
            "events": [UserEvent(*event) for event in told["events"]],
        },
    )


def _lease(told: dict[str, Any]) -> Lease:
    numbered = {name: {int(key): value for key, value in told[name].items()} for name in ("results", "inputs")}
    return Lease(**{**told, **numbered, "memos": {name: Memo(*memo) for name, memo in told["memos"].items()}})


def _sent(lease: Lease) -> dict[str, Any]:
    return msgspec.structs.asdict(lease)
