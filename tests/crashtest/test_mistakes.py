"""Handlers with a mistake that only a crash shows are caught, and told what to change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.crashtest.report import CrashReport
from holdfast.testing import crashtest
from tests.crashtest.subjects.wrong import TEXTS

SUBJECT = Path(__file__).parent / "subjects" / "wrong.py"


def report_on(pipeline: str, **given: Any) -> CrashReport:
    return crashtest(SUBJECT, item="v.epub", pipeline=pipeline, setup="create", **given)


def said(report: CrashReport) -> str:
    with pytest.raises(AssertionError) as raised:
        report.assert_ok()
    return str(raised.value)


@pytest.fixture
def server(database: str, request: pytest.FixtureRequest) -> str:
    return "sqlite:" if database == "sqlite" else str(request.getfixturevalue("postgres"))


@pytest.mark.req("D5", "D6")
@pytest.mark.fault(3)
def test_rows_deleted_and_inserted_outside_an_effect_are_seen_while_the_stage_is_not_done(server):
    report = report_on("outside", store=server, only=[5, 6])
    assert not report
    told = {kill.where.partition(":")[0]: kill.differences for kill in report.different}
    half = told["before a commit of the handler's own"]
    assert [one.kind for one in half] == ["outside"]
    assert half[0].missing == [{"document": "v.epub", "n": 0, "text": "from before"}]
    assert half[0].extra == []
    whole = told["as the handler returns"][0]
    assert [row["text"] for row in whole.extra] == TEXTS
    message = said(report)
    assert "notes is written while outside/deletes_then_inserts runs" in message
    assert "Give the writing to ctx.effect(function, …)" in message


@pytest.mark.req("D5")
def test_a_handler_that_takes_half_of_its_rows_for_all_of_them_ends_with_half():
    report = report_on("halves", only=[5, 6])
    [first, second] = report.kills
    for kill, rows in ((first, 1), (second, 2)):
        [final] = [one for one in kill.differences if one.kind == "table"]
        assert final.text == f"table notes: {3 - rows} rows missing, 0 extra"
        assert len(final.missing) == 3 - rows
    assert "ctx.effect" in said(report)


@pytest.mark.req("D4")
@pytest.mark.fault(4)
def test_a_paid_call_outside_once_is_counted_each_time_it_is_made():
    report = report_on("paying")
    assert {kill.where.partition(":")[0] for kill in report.different} == {
        "as the handler returns",
        "before the commit",
    }
    assert [(kill.paid, kill.in_doubt) for kill in report.different] == [(2, 0), (2, 0)]
    message = said(report)
    assert "2 paid calls in paying/pays_outside_once, 1 undisturbed, and none was in doubt" in message
    assert "ctx.once(name, function, …, cost=…)" in message


@pytest.mark.req("D4", "D11")
def test_money_told_outside_once_is_counted_without_any_hook():
    report = report_on("telling", only=[4])
    assert [kill.where.partition(":")[0] for kill in report.different] == ["after ctx.cost"]
    message = said(report)
    assert "told 0.80 with ctx.cost, 0.40 undisturbed" in message
    assert "ctx.once(name, function, …, cost=…)" in message


@pytest.mark.req("D7")
def test_random_keys_of_follow_ons_are_found_before_anything_is_killed():
    report = report_on("keys")
    assert not report
    assert report.kills == []
    [one] = report.unsteady
    assert (one.kind, one.where, len(one.missing), len(one.extra)) == ("items", "pieces", 1, 1)
    message = said(report)
    assert "does not have the same result twice" in message
    assert "Make keys of what does not change" in message


@pytest.mark.req("D4")
def test_a_name_of_once_that_changes_from_attempt_to_attempt_pays_twice():
    report = report_on("names", only=[7])
    [kill] = report.different
    assert {one.kind for one in kill.differences} == {"cost", "memo"}
    message = said(report)
    assert "has cost 0.80, undisturbed 0.40" in message
    assert "Make names of what does not change" in message


@pytest.mark.req("D4")
def test_a_handler_that_cannot_start_again_never_ends_well_after_a_crash():
    report = report_on("unique", only=[5])
    [kill] = report.different
    assert [one.kind for one in kill.differences] == ["outside", "state"]
    message = said(report)
    assert "unique/cannot_begin_twice of 'v.epub' ended exhausted, not done: IntegrityError" in message
    assert "its handler must be able to start again" in message
