"""People give orders at random while workers are killed: each order does what it says, and nothing is done behind its back."""

from __future__ import annotations

import json
import os
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from holdfast.answers import HistoryEntry, StageOfItem
from holdfast.model.states import FINISHED
from tests.support.effort import effort
from tests.support.histories import folded
from tests.support.ledger import Line
from tests.support.mother import Piped
from tests.support.processes import Crew, WorkerProcess, wait_for
from tests.support.unharmed import held

AFTER = {"fetch": (), "extract": ("fetch",), "save": ("extract",)}
ORDERS = ["cancel", "cancel", "retry", "retry", "pause", "resume"]
ITEMS = 40


class People:
    """They give orders on the command line, and keep what they were told."""

    def __init__(self, crew: Crew, folder: Path) -> None:
        self._crew, self._folder = crew, folder
        self.told: dict[str, Counter[str]] = defaultdict(Counter)

    def order(self, what: str, *args: str) -> dict[str, Any]:
        environment = {**os.environ, "HOLDFAST_URL": self._crew.url}
        command = Piped("holdfast.cli", [what, *args, "--json"], environment, folder=self._folder)
        said, errors = command.communicate(timeout=60)
        assert command.returncode == 0, errors
        answer: dict[str, Any] = json.loads(said)
        if what in ("cancel", "retry"):
            self.told[what].update(answer["counts"])
        return answer

    def at_random(self, rng: random.Random) -> None:
        what = rng.choice(ORDERS)
        if what in ("pause", "resume"):
            self.order(what, rng.choice(["patient_books", "patient_books/extract"]))
        elif rng.random() < 0.5:
            self.order(what, "--key", f"*{rng.randrange(10)}")
        else:
            self.order(what, "--stage", rng.choice(list(AFTER)), "--key", f"*{rng.randrange(10)}")


@pytest.mark.fault(74)
@pytest.mark.req("V1", "V3")
def test_orders_given_at_random_while_workers_are_killed_are_carried_out_to_the_letter(
    hire: Callable[[str], Crew], tmp_path: Path
):
    crew = hire("patient_books")
    people, rng = People(crew, tmp_path), random.Random(74)
    crew.add({"key": f"page-{number}", "fetch": "sleep 0.05", "extract": "sleep 0.1"} for number in range(ITEMS))
    workers = [crew.start(f"w{number}", ready=False) for number in range(2)]
    _lose_what_is_in_hand(crew, people, workers, tmp_path / "gate")
    for number in range(effort(20, 200)):
        people.at_random(rng)
        if number % 2:
            crew.add([{"key": f"more-{number}-{n}", "extract": "sleep 0.1"} for n in range(3)])
            victim = rng.randrange(2)
            # Not before it has done something: a start takes longer than an order.
            if any(line.pid == workers[victim].pid for line in crew.ledger.starts()):
                workers[victim].kill()
                workers[victim] = crew.start(f"w{victim}", ready=False)
    wait_for(lambda: _all_met(crew))
    people.order("resume", "patient_books")
    people.order("resume", "patient_books/extract")
    crew.wait_until_done()
    _judge(crew, people)
    # And what was set aside can still be done.
    people.order("retry", "--all")
    crew.wait_until_done()
    _judge(crew, people)
    assert {crew.app.show(row.key).status for row in crew.app.items(most=10_000)} == {"done"}


def _lose_what_is_in_hand(crew: Crew, people: People, workers: list[WorkerProcess], gate: Path) -> None:
    """One to an order and one to a death: at random, neither may meet anything in hand."""
    crew.add(held(2, gate))
    wait_for(lambda: {line.key for line in crew.ledger.starts()} >= {"held-0", "held-1"})
    people.order("cancel", "--key", "held-0")
    [holder] = {line.pid for line in crew.ledger.starts() if line.key == "held-1"}
    [victim] = [number for number, worker in enumerate(workers) if worker.pid == holder]
    workers[victim].kill()
    workers[victim] = crew.start(f"w{victim}", ready=False)
    gate.touch()


def _all_met(crew: Crew) -> bool:
    """Did somebody lose what was in hand to an order, was something sent back, and did workers die with something in hand?"""
    taken = [event for event in crew.events("cancelled") if event.data["was"] == "in_progress"]
    return all((taken, crew.events("retried"), crew.events("lease_expired"), crew.events("paused")))


def _judge(crew: Crew, people: People) -> None:
    """Orders did what their answers said; items are where their histories say; nothing ran that no order or death let run."""
    assert crew.app.check() == []
    for order, event in (("cancel", "cancelled"), ("retry", "retried")):
        assert sum(people.told[order].values()) == len(crew.events(event)), (order, people.told)
    starts, ends = (_by_stage(lines) for lines in (crew.ledger.starts(), crew.ledger.ends()))
    for row in crew.app.items(most=10_000):
        shown = crew.app.show(row.key)
        states = {one.stage: one.state for one in shown.stages if one.state is not None}
        assert states == folded(shown.history, AFTER), shown
        assert FINISHED.issuperset(states.values()), shown
        for one in shown.stages:
            where = row.key, one.stage
            history = [told for told in shown.history if told.stage == one.stage]
            _judge_stage(one, history, starts[where], ends[where])
            seen = {line.seen for lines in starts.values() for line in lines if line.key == row.key}
            if one.state == "done":
                marks = {mark for stage, _, mark in (text.partition(" ") for text in seen) if stage == one.stage}
                assert marks <= {one.result["mark"]}, where


def _judge_stage(one: StageOfItem, history: list[HistoryEntry], starts: list[Line], ends: list[Line]) -> None:
    happened = [told.event for told in history]
    freed = sum(event in ("lease_expired", "retried", "handed_back") for event in happened)
    assert len(starts) <= 1 + freed, (one, happened, starts)
    # A cancelled stage stays so until somebody sends it back: neither a worker nor a sweep moves it.
    for event, following in pairwise(event for event in happened if event not in ("lease_lost", "lease_expired")):
        assert event not in ("cancelled", "completed") or following == "retried", happened
    if one.state == "done":
        accepted = [line for line in ends if line.mark == one.result["mark"]]
        assert len(accepted) == 1, (one, ends)
        assert [line for line in starts if line.at > accepted[0].at] == [], one


def _by_stage(lines: list[Line]) -> dict[tuple[str, str], list[Line]]:
    found: dict[tuple[str, str], list[Line]] = defaultdict(list)
    for line in lines:
        found[line.key, line.stage].append(line)
    return found
