"""The dashboard as a Prometheus scrapes it: with the token in a header, and nothing else of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.scrapes import check_with_promtool, value
from tests.web.conftest import Web

pytestmark = pytest.mark.req("P18")

TOKEN = "a-token-that-nobody-guesses"


@pytest.fixture
def locked(shelf: str, serve: Callable[..., Web]) -> Web:
    return serve(shelf, token=TOKEN, name="ada")


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_a_prometheus_with_the_token_reads_the_gauges_and_gets_no_session(locked: Web) -> None:
    answer = locked.client.get("/metrics", headers=bearer(TOKEN))
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "set-cookie" not in answer.headers
    assert value(answer.text, "holdfast_stages", pipeline="books", stage="extract", state="pending") == 1
    assert value(answer.text, "holdfast_stages", pipeline="books", stage="extract", state="failed") == 2
    check_with_promtool(answer.text)


def test_without_the_token_it_reads_nothing(locked: Web) -> None:
    for headers in ({}, bearer("another-token-of-the-length"), bearer(""), {"authorization": "Basic YTpi"}):
        answer = locked.client.get("/metrics", headers=headers)
        assert answer.status_code == 401
        assert "holdfast_stages" not in answer.text


def test_the_token_in_a_header_opens_no_other_page_and_changes_nothing(locked: Web) -> None:
    assert locked.client.get("/items.json", headers=bearer(TOKEN)).status_code == 401
    assert locked.client.post("/metrics", headers=bearer(TOKEN)).status_code in (401, 405)
    assert locked.client.post("/items/retry", headers=bearer(TOKEN)).status_code == 401


def test_who_has_entered_with_a_browser_sees_it_too(locked: Web) -> None:
    locked.get(f"/?token={TOKEN}")
    assert "holdfast_stages" in locked.client.get("/metrics").text
