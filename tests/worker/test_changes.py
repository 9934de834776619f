"""A pipeline that has changed: what is renamed is not paid again, and new work with a price waits for a word."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from holdfast import Context, DefinitionError, Item, Pipeline
from holdfast.model.money import micros
from tests.support.bench import QUICK, Bench, Ran
from tests.support.processes import wait_for

pytestmark = pytest.mark.req("P4", "V13")

KEYS = ["a", "b", "c"]
#: Of each paid call.
TOKENS = {"tokens_in": 9, "tokens_out": 8, "tokens_cached": 7, "tokens_reasoning": 6}


class Shop:
    """A pipeline whose stages are given by name; what each was paid for is remembered."""

    def __init__(self) -> None:
        self.paid: Counter[tuple[str, str]] = Counter()

    def pipeline(self, stages: Mapping[str, Mapping[str, Any]], *, origin: str = "") -> Pipeline:
        pipeline = Pipeline("books", resources={"model": {}})
        for name, settings in stages.items():
            given = dict(settings)
            price = given.pop("price", 0)

            def handle(item: Item, ctx: Context, name: str = name, price: float = price) -> Any:
                if price:
                    return ctx.once("answer", self._pay, name, item.key, cost=price, facts=TOKENS)
                return f"{name} of {item.key}"

            pipeline.stage(name=name, backoff=QUICK, **given)(handle)
        return pipeline

    def _pay(self, stage: str, key: str) -> str:
        self.paid[stage, key] += 1
        return f"{stage} of {key}"

    def by_stage(self) -> Counter[str]:
        count: Counter[str] = Counter()
        for (stage, _), n in self.paid.items():
            count[stage] += n
        return count


@pytest.fixture
def shop() -> Shop:
    return Shop()


FETCH = {"fetch": {}}
SUMMARY = {"summary": {"after": "fetch", "price": 0.4}}
DIGEST = {"digest": {"after": "fetch", "price": 0.4}}
PRINT = {"print": {"after": "summary"}}


def said(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records if record.name == "holdfast.app")


def costs(ran: Ran) -> dict[str | None, int]:
    return {row.stage: micros(row.costs) for row in ran.app.costs(["stage"]).sums}


# New work with a price ------------------------------------------------------------------------------------------------


def test_new_work_with_a_price_is_on_hold_and_everything_else_goes_on(run: Bench, shop, caplog):
    run(shop.pipeline(FETCH), KEYS)
    embed = {"embed": {"after": "fetch", "price": 0.1, "estimate": "0.1", "resource": "model"}}
    ran = run(shop.pipeline({**FETCH, **embed}), ["new"])
    assert shop.paid == {("embed", "new"): 1}
    assert ran.states("embed") == {"done": 1, "on_hold": 3}
    assert "added    embed: runs for 3 items; expected cost 0.30, time not known" in said(caplog)
    release = "holdfast retry --state on_hold --pipeline books --stage embed"
    assert release in said(caplog)
    why = ran.app.why("a")
    assert why.reason == "on_hold"
    assert "it is new for 3 items and is expected to cost 0.30" in why.text
    [pipeline] = ran.app.status().pipelines
    [held] = pipeline.stages[1].on_hold
    assert (held.kind, held.do) == ("price", release)
    assert run(shop.pipeline({**FETCH, **embed})).states("embed")["on_hold"] == 3, "nobody has said a word"
    ran.app.retry(states=["on_hold"], pipeline="books", stage="embed")
    ran = run(shop.pipeline({**FETCH, **embed}))
    assert ran.states("embed") == {"done": 4}
    assert shop.by_stage() == {"embed": 4}


def test_who_accepts_the_price_gets_the_work_done(run: Bench, shop, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "holdfast.app")
    run(shop.pipeline(FETCH), KEYS)
    monkeypatch.setenv("HOLDFAST_YES", "1")
    embed = {"embed": {"after": "fetch", "price": 0.1, "estimate": "0.1", "resource": "model"}}
    assert run(shop.pipeline({**FETCH, **embed})).states("embed") == {"done": 3}
    assert "expected cost 0.30" in said(caplog)
    assert "on hold" not in said(caplog)


def test_a_release_before_all_of_it_was_put_on_hold_lets_all_of_it_run(run: Bench, shop):
    run(shop.pipeline(FETCH), KEYS)
    embed = {"embed": {"after": "fetch", "price": 0.1, "estimate": "0.1", "resource": "model"}}
    app = run.app(shop.pipeline({**FETCH, **embed}))
    app.register()
    assert app.why("a").reason == "on_hold"
    app.retry(states=["on_hold"], pipeline="books", stage="embed")
    assert run(shop.pipeline({**FETCH, **embed})).states("embed") == {"done": 3}


def test_a_stage_that_is_put_elsewhere_before_all_of_it_is_on_hold_stays_on_hold(run: Bench, shop):
    run(shop.pipeline({**FETCH, "count": {"after": "fetch"}}), KEYS)
    embed = {"price": 0.1, "estimate": "0.1", "resource": "model"}
    run.app(shop.pipeline({**FETCH, "count": {"after": "fetch"}, "embed": {"after": "fetch", **embed}})).register()
    ran = run(shop.pipeline({**FETCH, "count": {"after": "fetch"}, "embed": {"after": "count", **embed}}))
    assert ran.states("embed") == {"on_hold": 3}
    assert shop.paid == {}


def test_new_work_without_a_price_runs(run: Bench, shop, caplog):
    caplog.set_level(logging.INFO, "holdfast.app")
    run(shop.pipeline(FETCH), KEYS)
    assert run(shop.pipeline({**FETCH, "count": {"after": "fetch"}})).states("count") == {"done": 3}
    assert "added    count: runs for 3 items; cost not known, time not known" in said(caplog)


def test_items_that_nothing_was_done_for_yet_are_no_new_work(run: Bench, shop):
    app = run.app(shop.pipeline({"everything": {}}), KEYS)
    first = {"extract": {"price": 0.4, "estimate": "0.4", "resource": "model"}}
    assert app.status().pipelines[0].stages[0].states == {"pending": 3}
    ran = run(shop.pipeline(first))
    assert ran.states("extract") == {"done": 3}


def test_a_stage_that_is_put_first_is_new_work_for_those_that_something_was_done_for(run: Bench, shop):
    app = run.app(shop.pipeline(FETCH), KEYS)
    app.cancel(key="c")
    run(shop.pipeline(FETCH))
    app.retry(key="c")
    app.add("books", ["d"])
    first = {"extract": {"price": 0.4, "estimate": "0.4", "resource": "model"}, "fetch": {"after": "extract"}}
    ran = run(shop.pipeline(first))
    assert ran.states("extract") == {"done": 1, "on_hold": 3}
    assert ran.state("d", "extract") == "done"


def test_a_stage_that_is_back_is_expected_to_cost_what_it_did(run: Bench, shop, caplog):
    run(shop.pipeline({**FETCH, **SUMMARY}), KEYS)
    run(shop.pipeline(FETCH), ["d", "e"])
    ran = run(shop.pipeline({**FETCH, **SUMMARY}))
    assert "is back  summary: runs for 2 items; expected cost 0.80" in said(caplog)
    assert ran.states("summary") == {"done": 3, "on_hold": 2}
    assert shop.by_stage() == {"summary": 3}


def test_a_first_registration_and_one_that_changes_nothing_say_nothing(run: Bench, shop, caplog):
    caplog.set_level(logging.INFO, "holdfast.app")
    run(shop.pipeline({**FETCH, **SUMMARY}), KEYS)
    run(shop.pipeline({**FETCH, **SUMMARY}), ["d"])
    run(shop.pipeline({"fetch": {"version": "2"}, **SUMMARY}), ["d"])
    assert "has changed" not in said(caplog)


def test_what_is_removed_and_rewired_is_said(run: Bench, shop):
    run(shop.pipeline({**FETCH, **SUMMARY, **PRINT}), KEYS)
    [change] = run.app(shop.pipeline({**FETCH, "print": {"after": "fetch"}})).changes()
    assert change.lines() == [
        "removed  summary: 3 results, which cost 1.20, are kept, and nothing of it runs",
        "rewired  print: comes after fetch now (before: summary)",
    ]
    assert change.on_hold == {}


def test_a_priced_stage_that_takes_the_place_of_a_paid_one_is_told_as_a_rename_perhaps(run: Bench, shop):
    run(shop.pipeline({**FETCH, **SUMMARY}), KEYS)
    digest = {"digest": {"after": "fetch", "price": 0.4, "estimate": "0.4", "resource": "model"}}
    [change] = run.app(shop.pipeline({**FETCH, **digest})).changes()
    assert change.on_hold == {
        "digest": "it is new for 3 items and is expected to cost 1.20, while 'summary', which has cost 1.20, is gone; if it "
        "was renamed, say so: renamed_from='summary'"
    }


# Renames --------------------------------------------------------------------------------------------------------------


def test_a_renamed_stage_keeps_results_records_and_history_and_nothing_is_paid_again(run: Bench, shop, caplog):
    caplog.set_level(logging.INFO, "holdfast.app")
    before = run(shop.pipeline({**FETCH, **SUMMARY, **PRINT}), KEYS)
    history = [one.event for one in before.app.history("a")]
    digest = {"digest": {"after": "fetch", "price": 0.4, "renamed_from": "summary"}, "print": {"after": "digest"}}
    ran = run(shop.pipeline({**FETCH, **digest}), ["d"])
    assert shop.by_stage() == {"summary": 3, "digest": 1}
    assert ran.states("digest") == ran.states("print") == {"done": 4}
    assert ran.result("a", "digest") == "summary of a"
    assert [one.event for one in ran.app.history("a")] == history
    assert costs(ran) == {"digest": 1_600_000}
    assert ran.app.plan("books") == ()
    assert "renamed  summary → digest: 3 results and their history come along" in said(caplog)
    assert len(ran.events("stage_renamed")) == 1
    assert run(shop.pipeline({**FETCH, **digest})).states("digest") == {"done": 4}


def test_an_unfinished_call_is_recorded_under_the_old_name_and_used_under_the_new_one(run: Bench, shop):
    broken = [True]

    def pipeline(name: str, **settings: Any) -> Pipeline:
        books = Pipeline("books")

        @books.stage(name=name, backoff=QUICK, max_attempts=1, **settings)
        def summary(item: Item, ctx: Context) -> Any:
            answer = ctx.once("answer", shop._pay, name, item.key, cost=1)
            if broken[0]:
                raise OSError("the disk is full")
            return answer

        return books

    run(pipeline("summary"), ["a"])
    broken[0] = False
    app = run.app(pipeline("digest", renamed_from="summary"))
    app.register()
    app.retry()
    ran = run(pipeline("digest", renamed_from="summary"))
    assert (ran.result("a", "digest"), shop.paid) == ("summary of a", {("summary", "a"): 1})


def test_a_program_that_still_has_the_old_name_means_the_same_stage(run: Bench, shop):
    old = {**FETCH, **SUMMARY}
    new = {**FETCH, "digest": {"after": "fetch", "price": 0.4, "renamed_from": "summary"}}
    run(shop.pipeline(old), KEYS)
    for stages in (new, old, new, old, new):
        run(shop.pipeline(stages))
    assert shop.by_stage() == {"summary": 3}


def test_limits_of_a_stage_that_a_person_has_set_are_still_its_limits(run: Bench, shop):
    ran = run(shop.pipeline({**FETCH, **SUMMARY}), KEYS)
    ran.app.tune("books", {"summary.concurrency": 7}, by="a person", reason="slow")
    new = {**FETCH, "digest": {"after": "fetch", "price": 0.4, "renamed_from": "summary"}}
    ran = run(shop.pipeline(new))
    assert [one.name for one in ran.app.limits() if one.name.startswith("@")] == ["@books/digest"]


def test_a_rename_that_nobody_declared_waits_for_a_word_and_can_be_declared_later(run: Bench, shop, caplog):
    run(shop.pipeline({**FETCH, **SUMMARY, **PRINT}), KEYS)
    printed = {"print": {"after": "digest"}}
    ran = run(shop.pipeline({**FETCH, **DIGEST, **printed}), ["d"])
    assert shop.by_stage() == {"summary": 3, "digest": 1}
    assert ran.states("digest") == {"done": 1, "on_hold": 3}
    assert "if it was renamed, say so: renamed_from='summary'" in said(caplog)
    declared = {"digest": {**DIGEST["digest"], "renamed_from": "summary"}}
    [change] = run.app(shop.pipeline({**FETCH, **declared, **printed})).changes()
    assert change.lines() == ["renamed  summary → digest: 3 results and their history come along"]
    ran = run(shop.pipeline({**FETCH, **declared, **printed}), ["e"])
    assert shop.by_stage() == {"summary": 3, "digest": 2}
    assert ran.states("digest") == ran.states("print") == {"done": 5}
    assert [ran.result(key, "digest") for key in ("a", "d", "e")] == ["summary of a", "digest of d", "digest of e"]
    assert costs(ran) == {"digest": 2_000_000}
    [sums] = ran.app.costs(["stage"]).sums
    assert {name: getattr(sums, name) for name in TOKENS} == {name: 5 * n for name, n in TOKENS.items()}
    assert ran.app.plan("books") == ()
    assert [call.stage for call in ran.app.calls("d")] == ["digest"]


def test_a_worker_that_offers_the_new_name_goes_on_when_it_turns_out_to_be_an_old_stage(run: Bench, shop):
    run(shop.pipeline({**FETCH, **SUMMARY}), KEYS)
    declared = {"digest": {**DIGEST["digest"], "renamed_from": "summary"}}
    with run.serving(shop.pipeline({**FETCH, **DIGEST}), ["d"]) as (worker, ran):
        wait_for(lambda: ran.states("digest").get("done") == 1 and ran.states("digest").get("on_hold") == 3)
        app = run.app(shop.pipeline({**FETCH, **declared}))
        app.register()
        app.add("books", ["e"])
        wait_for(lambda: app.show("e").stages[0].state == "done")
        assert not worker.stopping
    assert run(shop.pipeline({**FETCH, **declared})).states("digest") == {"done": 5}
    assert shop.by_stage() == {"summary": 3, "digest": 2}


def test_two_stages_with_results_of_the_same_items_stay_two(run: Bench, shop):
    ran = run(shop.pipeline({**FETCH, **SUMMARY}), KEYS)
    run(shop.pipeline({**FETCH, **DIGEST}))
    ran.app.retry(states=["on_hold"])
    run(shop.pipeline({**FETCH, **DIGEST}))
    declared = {"digest": {**DIGEST["digest"], "renamed_from": "summary"}}
    with pytest.raises(DefinitionError, match="3 items have results of both"):
        run(shop.pipeline({**FETCH, **declared}))
    assert run(shop.pipeline({**FETCH, **DIGEST})).states("digest") == {"done": 3}


@pytest.mark.parametrize(
    ("stages", "match"),
    [
        ({**SUMMARY, "digest": {"renamed_from": "summary"}}, "which is still a stage of it"),
        (
            {"digest": {"renamed_from": "summary"}, "essay": {"renamed_from": "summary"}},
            "are both renamed_from='summary'",
        ),
        ({"digest": {"renamed_from": "digest"}}, "is its own name"),
        ({"digest": {"renamed_from": "no name"}}, "start with a letter"),
    ],
)
def test_a_former_name_that_cannot_be_is_refused(shop, stages, match):
    with pytest.raises(DefinitionError, match=match):
        _ = shop.pipeline({**FETCH, **stages}).spec


def test_work_goes_on_in_a_worker_that_has_the_old_name(run: Bench, shop):
    old = shop.pipeline({**FETCH, **SUMMARY})
    new = {**FETCH, "digest": {"after": "fetch", "price": 0.4, "renamed_from": "summary"}}
    with run.serving(old, KEYS) as (_, ran):
        wait_for(lambda: ran.states("summary").get("done") == 3)
        app = run.app(shop.pipeline(new))
        app.register()
        app.add("books", ["d"])
        wait_for(lambda: app.show("d").status == "done")
        assert app.show("d").stages[1].stage == "digest"
    assert shop.by_stage() == {"summary": 4}


# Another file ---------------------------------------------------------------------------------------------------------


def test_a_pipeline_that_comes_from_another_file_is_said(run: Bench, tmp_path):
    source = "from holdfast import Pipeline\nbooks = Pipeline('books')\n@books.stage\ndef fetch(item, ctx): pass\n"
    apps = []
    for name in ("one.py", "two.py"):
        file = tmp_path / name
        file.write_text(source)
        names: dict[str, Any] = {}
        exec(compile(source, str(file), "exec"), names)
        apps.append(run.app(names["books"], KEYS if not apps else ()))
    [change] = apps[1].changes()
    assert change.lines() == [f"moved    it comes from {tmp_path / 'two.py'} now (before: {tmp_path / 'one.py'})"]
    apps[1].register()
    assert apps[1].changes() == []
