"""What running stale results again would cost, and the act that does it.

Both need the code of the pipeline, which says what the versions are today: `holdfast ui FILE` has it, a dashboard that was
given a store alone has not.
"""

from __future__ import annotations

import time
from typing import Any

from holdfast.answers.plan import Plan, about
from holdfast.app import Holdfast
from holdfast.engine.actions import ActionCounts
from holdfast.errors import UsageError
from holdfast.model.did_you_mean import there_are
from holdfast.model.money import micros
from holdfast.model.money import spoken as money
from holdfast.web.act_preview import SAMPLES, Preview, Sample
from holdfast.web.filters import PIPELINE, STAGE, Filter, Query
from holdfast.web.shared_answers import GaveUp

#: A walk over all items is given up after this, before the page is.
WALK_SECONDS = 4.0

NO_CODE = (
    "this dashboard was started without the code of the pipelines, which says what the versions are today: "
    "start it as `holdfast ui FILE`, or ask `holdfast plan FILE`"
)


def amount_of_money(text: str) -> str:
    micros(text, what="it")
    return text


KEY = Filter("key", "Key", hint="* and ? are wildcards")
RESULTS = Filter("results", "Results", choices=("stale", "all"), default="stale", as_chips=True)
BUDGET = Filter("budget", "Spend at most", read=amount_of_money, hint="20.00")
WHICH_RESULTS = (RESULTS, PIPELINE, STAGE, KEY, BUDGET)


def pipelines_known(app: Holdfast) -> tuple[str, ...]:
    """The pipelines whose code is here."""
    return tuple(sorted(spec.name for spec in app.pipelines))


def require_code(app: Holdfast, pipeline: str | None) -> str:
    known = pipelines_known(app)
    if not known:
        raise UsageError(NO_CODE)
    if pipeline is None:
        raise UsageError(f"choose a pipeline; there are: {', '.join(known)}")
    if pipeline not in known:
        raise UsageError(f"the code of pipeline {pipeline!r} is not here; {there_are(pipeline, known)}")
    return pipeline


def forecast(app: Holdfast, query: Query) -> Plan:
    """What a reprocess of this query would do; raises GaveUp where that means to look at too many items."""
    deadline = time.monotonic() + WALK_SECONDS

    def on_walk(why: str, count: int) -> None:
        if time.monotonic() > deadline:
            raise GaveUp(
                f"{why}, so every item has to be looked at, and {count:,} of them took {WALK_SECONDS:g} s; "
                "`holdfast plan FILE` has no time limit"
            )

    pipeline = require_code(app, query["pipeline"])
    return app.plan(
        pipeline, **query.named("stage", "key", "budget"), stale_only=query["results"] != "all", on_walk=on_walk
    )


def price(plan: Plan, budget: str | None) -> str:
    """The expected cost, in the words of a question."""
    total = plan.total
    perhaps = f", perhaps {money(total.perhaps_cost)} more" if total.perhaps_cost else ""
    most = f"; items are sent back as long as their forecast fits {budget}" if budget else ""
    return f"{about(total.cost, total.spread)}{perhaps}, by what the last run of each has cost{most}"


def foresee(app: Holdfast, query: Query) -> Preview:
    """How many would run at which stage, and for what."""
    plan = forecast(app, query)
    samples = [
        Sample(one.key, query["pipeline"], one.stage, why=one.why, cost=one.cost) for one in plan.samples[:SAMPLES]
    ]
    return Preview(
        {one.stage: one.sure for one in plan if one.sure},
        False,
        samples,
        price(plan, query["budget"]),
        begins=sum(one.begins for one in plan),
    )


def reprocess(
    app: Holdfast,
    /,
    *,
    by: str,
    reason: str,
    dry_run: bool,
    request: str,
    previewed: int | None = None,
    **which: Any,
) -> ActionCounts:
    """Send back what is stale, or all that is chosen. What was previewed is how many items would begin, which is what an action
    counts."""
    return app.reprocess(
        require_code(app, which["pipeline"]),
        stage=which["stage"],
        key=which["key"],
        stale_only=which["results"] != "all",
        budget=which["budget"],
        by=by,
        reason=reason,
        dry_run=dry_run,
        request=request,
        previewed=previewed,
    )
