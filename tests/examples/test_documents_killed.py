"""examples.documents, killed wherever it can be: all rows are those of an undisturbed run, and no book is paid twice but
where holdfast says that it is in doubt.

DOCUMENTS_KILLS sets how many kills at random there are (300 for a full run, which also tries every named point).
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from examples.documents.fakes.fake_library import BOOK_OF_61
from examples.documents.fakes.fake_model import read_ledger
from holdfast.points import WORKER_POINTS
from tests.examples.documents_scene import BOOKS
from tests.support.effort import effort
from tests.support.money import charged
from tests.support.turns import set_turn

KILLS = int(os.environ.get("DOCUMENTS_KILLS", effort(8, 12)))
FULL = KILLS >= 300
#: What is written to the store around a paid call, rows of our own and a follow-on, by its statement.
STATEMENTS = (
    "store.claim",
    "store.save_memos",
    "store.hold_leases",
    "store.insert_outcomes",
    "store.insert_items",
    "store.forget_memos",
    "store.add_spent",
)


@pytest.mark.req("D4", "D5", "D6", "D7")
def test_killed_at_every_named_point_the_books_end_as_if_nothing_had_happened(
    scene, workers, undisturbed, tmp_path: Path
):
    seen = tmp_path / "points"
    assert workers.run(scene.url, record=str(seen)) == 0
    scene.judge(undisturbed)
    passed = set(seen.read_text().split())
    assert {*WORKER_POINTS, *STATEMENTS} <= passed
    wanted = [
        f"{point}:{nth}" for point in WORKER_POINTS for nth in ((1, 2, 3, 5) if FULL else (1 + 2 * (set_turn() % 2),))
    ]
    wanted += [f"{point}:{nth}" for point in STATEMENTS for nth in ((1, 2, 3, 5) if FULL else (2,))]
    wanted += [f"{point}:1" for point in sorted(passed - {*WORKER_POINTS, *STATEMENTS})] if FULL else []
    killed, missed = 0, []
    scene.begin_anew()
    for point in wanted:
        # One after the other in the life of the same books, until they are done.
        if workers.run(scene.url, crash_at=point) == 0:
            scene.judge(undisturbed)
            scene.begin_anew()
            if workers.run(scene.url, crash_at=point) == 0:
                missed.append(point)
                scene.begin_anew()
                continue
        killed += 1
    assert workers.run(scene.url) == 0
    scene.judge(undisturbed)
    assert killed + len(missed) == len(wanted)
    assert len(missed) <= len(wanted) // 4, f"not reached: {missed}"


@pytest.mark.req("D4", "D5", "D6")
def test_killed_at_random_again_and_again_the_books_end_as_if_nothing_had_happened(scene, workers, undisturbed, model):
    model.page_seconds = 0.002
    seed = random.randrange(1_000_000)
    chance = random.Random(seed)
    killed = 0
    while killed < KILLS:
        how = (
            {"die_after": chance.randint(1, 260)}
            if chance.random() < 0.5
            else {"kill_after": chance.uniform(0.02, 0.7)}
        )
        if workers.run(scene.url, **how) == 0:
            scene.judge(undisturbed)
            scene.begin_anew()
        else:
            killed += 1
    assert workers.run(scene.url) == 0, f"seed {seed}"
    scene.judge(undisturbed)


@pytest.mark.req("D4")
def test_a_worker_killed_while_the_model_answers_pays_that_book_again_and_holdfast_tells_of_it(
    scene, workers, undisturbed, model
):
    model.fail_every = model.limit_every = 0
    model.page_seconds = 0.05
    assert workers.run(scene.url, kill_when_paid=model.ledger) == -9
    under_way = {call["idempotency"] for call in read_ledger(model.ledger)}
    model.page_seconds = 0.0
    assert workers.run(scene.url) == 0
    scene.judge(undisturbed)
    # Others may have been about to call, or were heard by the model only after the kill.
    assert under_way <= {key for key, n in scene.paid().items() if n > 1} <= set(scene.doubts())


@pytest.mark.req("D4")
def test_a_model_that_knows_idempotency_keys_is_paid_once_even_then(scene, workers, undisturbed, model):
    model.fail_every = model.limit_every = 0
    model.page_seconds, model.honours_keys = 0.05, True
    assert workers.run(scene.url, kill_when_paid=model.ledger) == -9
    model.page_seconds = 0.0
    assert workers.run(scene.url) == 0
    assert sorted(scene.paid().values()) == [1] * len(BOOKS)
    assert scene.rows() == undisturbed


@pytest.mark.req("D10", "D4")
def test_a_long_book_sent_in_parts_pays_no_part_again_after_a_crash(scene_on, model):
    scene = scene_on(pages_per_call=10)
    model.fail_every = model.limit_every = 0
    scene.app.add("documents", [{"key": BOOK_OF_61, "path": str(scene.books / BOOK_OF_61)}])
    asked = []
    real = model.decide

    def decide(document: str, idempotency: str, pages: int) -> tuple[int, str]:
        asked.append(pages)
        return (500, "0") if len(asked) == 3 else real(document, idempotency, pages)

    model.decide = decide
    scene.run()
    assert asked == [10, 10, 10, 10, 9]
    assert sorted(scene.paid().values()) == [1, 1, 1, 1]
    assert len(scene.chunks(BOOK_OF_61)) == 61
    assert charged(scene.app, ["item"]) == [{"item": BOOK_OF_61, "amount": 1_600_000, "payments": 4}]
