"""Numbers that no store has room for, in addresses, filters, cursors and forms: each is refused with a sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.model import resource as limiting
from tests.web.conftest import Web
from tests.web.test_dashboard_acting import acts
from tests.web.test_dashboard_operations import busy

pytestmark = pytest.mark.req("P17")

__all__ = ["busy"]

#: One more than 64 bits hold, many digits, many behind zeros, and more than Python reads.
TOO_LARGE = (str(2**63), "9" * 23, "0" * 25 + "9" * 23, "9" * 5000)

#: Addresses that ask for what has this number, or is so old or dear.
NUMBERS = (
    "actions/{n}",
    "events/{n}",
    "actions?after={n}",
    "items?after={n}",
    "items?after={n}/extract",
    "items?attempts={n}",
    "items?cost={n}",
    "items?until={n}",
    "audit?since={n}",
    "errors?within={n}d",
    "throughput?last={n}h",
    "item?id={n}",
    "value?id={n}",
    "value?key=bad-1&part=event&number={n}",
    "value?key=bad-1&part=facts&number={n}",
    "value?key=bad-1&part=error&stage=extract&from={n}",
    "download/value?id={n}",
    "download/blob?id={n}&sha256=0",
    "plan?pipeline=books&budget={n}",
    "act/forget?older_than={n}d",
    "act/reprocess?pipeline=books&budget={n}",
)
#: Places in a list: one that is too far is none, or is its end.
PLACES = ("actions/1?after={n}/{n}", "events?after={n}/{n}", "audit?after={n}/{n}/{n}", "items?since={n}d")


def test_a_number_in_an_address_that_no_store_has_is_refused_with_a_sentence(web: Web, shelf: str):
    with Holdfast(shelf, create=False) as app:
        app.cancel(key="late")
    for address in (*NUMBERS, *PLACES):
        for n in TOO_LARGE:
            path, _, query = address.format(n=n).partition("?")
            for form in ("", ".json", ".csv"):
                if form and path.startswith(("act/", "download/")):
                    continue
                found = web.get(f"/{path}{form}?{query}")
                assert found.status_code in ((400, 404) if address in NUMBERS else (200, 400)), (address, n, found.text)


@pytest.mark.parametrize("n", TOO_LARGE)
def test_a_number_in_a_form_that_no_store_has_is_refused_with_a_sentence(web: Web, shelf: str, n: str):
    token = {"form_token": web.form("/items")["form_token"], "request": "0" * 32}
    call = {"pipeline": "books", "key": "bad-1", "stage": "extract", "name": "pay"}
    refused: list[tuple[str, dict[str, Any]]] = [
        *((f"actions/{n}/{what}", {}) for what in ("stop", "continue", "undo")),
        ("act/retry", {"step": "confirm", "select": f'[{n}, "extract", "bad-1"]'}),
        ("act/forget", {"step": "confirm", "older_than": f"{n}d"}),
        ("act/delete", {"step": "confirm", "key": "late", "typed": n, "count": "1"}),
        ("change/pause", {"name": "books", "kind": "pipeline", "for": f"{n}d"}),
        ("settle", {**call, "decided": "charged", "amount": n}),
        ("settle", {**call, "decided": "charged", "answer": n}),
    ]
    for path, fields in refused:
        found = web.post(f"/{path}", {**token, **fields})
        assert found.status_code in (400, 404), (path, fields, found.text)
    # What a preview has counted is only compared.
    assert "Nothing to do" in web.post("/act/retry", {**token, "step": "confirm", "key": "walden", "count": n}).text
    with Holdfast(shelf, create=False) as app:
        assert (acts(shelf), app.status().pipeline("books").paused) == ([], False)


@pytest.mark.parametrize("n", [*TOO_LARGE, "²"])
def test_a_limit_that_no_store_has_is_refused_with_a_sentence(busy: str, serve: Callable[..., Web], n: str):
    web = serve(busy)
    form = web.form("/change/tune?name=api&kind=resource")
    for key in limiting.KEYS:
        for value in (n, f"{n}/s", f"{n}d", f'{{"failures": {n}}}'):
            found = web.post("/change/tune", {**form, f"set-{key}": value})
            assert found.status_code == 400, (key, value, found.text)
