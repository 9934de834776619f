"""Every page of the dashboard over very many items, while a worker is at work on them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from holdfast import Context, Holdfast, Item, Permanent, Pipeline
from holdfast.model.states import State
from holdfast.web.pages import pages
from tests.support.effort import effort
from tests.support.waiting import wait_for
from tests.web.conftest import Web

ITEMS = effort(3_000, 1_000_000)
#: Every so many, one fails.
BAD = 20
MOST_BYTES = 100_000
STUCK_SECONDS = effort(600, 7200)


def shelves(url: str, everything_seen: threading.Event, busy: threading.Event) -> Pipeline:
    """The last item is held until every page was seen."""
    made = Pipeline("shelves", store=url)

    @made.stage()
    def read(item: Item, ctx: Context) -> dict[str, int]:
        number = item.data["n"]
        if number == ITEMS // 2:
            busy.set()
        if number == ITEMS - 1:
            assert everything_seen.wait(STUCK_SECONDS)
        if number % BAD == 0:
            raise Permanent(f"book {number} has no pages")
        return {"pages": number}

    return made


def addresses() -> Iterator[str]:
    """Every page in every form, and items by everything that has an index, from several places on."""
    for page in pages():
        path = page.address({"number": 1})
        query = "?key=book-7" if page.name in ("item", "value") else ""
        for form in ("", ".json", ".csv"):
            yield f"{path}{form}{query}"
    for state in State:
        yield f"items?state={state}"
        yield f"items?stage=read&state={state}&after={ITEMS // 2}"
    yield from ("items?key=book-1*", "items?key=book-*&state=done", "items?since=1h", "items?until=1h")
    yield from (f"items?after={ITEMS - 50}", "items?attempts=9", "events?event=failed", "act/retry?state=failed")


@pytest.mark.req("P17")
@pytest.mark.fault(75)
def test_every_page_over_very_many_items_is_small_and_disturbs_no_worker(url: str, serve: Callable[..., Web]):
    everything_seen, busy = threading.Event(), threading.Event()
    with Holdfast(url, [shelves(url, everything_seen, busy).spec]) as app:
        app.add("shelves", [{"key": f"book-{n}", "n": n} for n in range(ITEMS)])
        app.cancel(key="book-9", by="ada", reason="the first action")
        worker = app.worker()
        work = threading.Thread(target=worker.run, kwargs={"until_drained": True})
        work.start()
        assert busy.wait(STUCK_SECONDS)
        web = serve(url, question_seconds=STUCK_SECONDS)
        group = app.errors()[0].group
        # Until it is counted, the answer is to ask again later.
        wait_for(lambda: web.get("/matrix.json").status_code == 200, STUCK_SECONDS)
        for path in [*addresses(), f"items?group={group}", f"act/retry?group={group}"]:
            found = web.get(f"/{path}")
            assert found.status_code == 200, (path, found.text)
            assert len(found.content) < MOST_BYTES, path
        assert len(web.get("/matrix").content) < MOST_BYTES
        assert work.is_alive()
        everything_seen.set()
        work.join()
        [stage] = app.status().pipelines[0].stages
        bad = len(range(0, ITEMS, BAD))
        assert dict(stage.states) == {"done": ITEMS - bad - 1, "failed": bad, "cancelled": 1}
