"""A question reads the pipelines, stages and resources once, however many there are."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from holdfast import Context, Holdfast, Item, Pipeline
from holdfast.store import Transaction


def nothing(item: Item, ctx: Context) -> None:
    pass


@pytest.mark.req("V14")
def test_status_and_limits_read_the_stages_once_for_all_that_wait(url: str, monkeypatch: pytest.MonkeyPatch):
    made = Pipeline("books", store=url, resources={f"api-{n}": {"rate": "5/s"} for n in range(6)})
    for n in range(6):
        made.stage(name=f"stage-{n}", resource=f"api-{n}")(nothing)
    made.add(["emma"])
    ran: Counter[str] = Counter()
    run = Transaction.run

    def counting(tx: Transaction, statement_name: str, /, **params: Any) -> Any:
        ran[statement_name] += 1
        return run(tx, statement_name, **params)

    monkeypatch.setattr(Transaction, "run", counting)
    with Holdfast(url, create=False) as app:
        assert [dict(one.states) for one in app.status().pipelines[0].stages] == [{"pending": 1}] * 6
        assert ran["read_stages"] == 1
        app.limits()
        assert ran["read_stages"] == 2
        # What has changed since is seen.
        app.pause("books", reason="a look")
        assert app.status().pipelines[0].paused
