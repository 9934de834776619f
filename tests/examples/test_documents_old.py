"""examples.documents takes over the jobs of an earlier program: they go on where they were, and no answer is paid twice."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from examples.documents.demo import violations
from examples.documents.fakes.fake_model import read_ledger
from examples.documents.fakes.fake_old_database import JOB, write_fake_old_database
from holdfast.legacy.importing import import_legacy
from holdfast.legacy.mapping import Mapped
from holdfast.legacy.open_database import open_old
from tests.examples.documents_scene import Scene


@pytest.mark.req("D4", "D5", "D8", "J8")
def test_jobs_of_an_earlier_program_go_on_and_what_the_model_answered_is_not_paid_again(
    scene_on: Callable[..., Scene], undisturbed: Any, tmp_path: Path
):
    scene = scene_on()
    there = write_fake_old_database(tmp_path / "old.db", scene.books)
    kept = {key for key, one in there.items() if one.kept}
    assert {one.stage for one in there.values()} == {"extracted", "chunking"} and 0 < len(kept) < len(there)
    spec = scene.application.documents.spec
    with open_old(tmp_path / "old.db") as old:
        report = import_legacy(scene.app.store, old, Mapped.read({"shape": "job-metadata"}), {JOB: spec})
    assert report.imported == len(there)
    assert {stage: (one.count, one.cost) for stage, one in report.again.items()} == {
        "documents/extract": (len(there) - len(kept), 400_000 * (len(there) - len(kept))),
        "documents/save_markdown": (1, None),
    }
    scene.run()
    assert scene.is_done() and scene.app.check() == [] and violations(scene.url) == []
    assert scene.rows() == undisturbed
    called = {call["document"] for call in read_ledger(scene.model.ledger) if Decimal(call["charged"])}
    assert called == there.keys() - kept
    costs = {row.item: row.costs for row in scene.app.costs(["item"]).sums}
    assert costs == dict.fromkeys(there, Decimal("0.4"))
