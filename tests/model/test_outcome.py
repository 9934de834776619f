"""What a handler raises to have everyone wait."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

import pytest

from holdfast import CredentialRefused, OutOfCredit, Overloaded, RateLimited, UsageError

pytestmark = pytest.mark.req("P11")

PAUSES: Any = pytest.mark.parametrize("kind", [RateLimited, Overloaded])


@PAUSES
@pytest.mark.parametrize(
    ("given", "after_seconds"),
    [((), None), ((30,), 30), (("30m",), 1800), (("1.5",), 1.5), ((timedelta(seconds=3),), 3), ((None, "busy"), None)],
)
def test_a_pause_is_as_long_as_it_says(kind: Any, given: tuple[Any, ...], after_seconds: float | None) -> None:
    assert kind(*given).after_seconds == after_seconds


@pytest.mark.parametrize("kind", [RateLimited, Overloaded, OutOfCredit, CredentialRefused])
def test_a_reason_alone_is_a_reason_and_survives_a_copy(kind: Any) -> None:
    for pause in (kind("over"), pickle.loads(pickle.dumps(kind("over"))), kind(reason="over")):
        assert (pause.reason, str(pause), getattr(pause, "after_seconds", None)) == ("over", "over", None)


@PAUSES
@pytest.mark.parametrize("given", [("30 minutes",), ("-5",), (-5,), ("soon", "busy"), (True,)])
def test_what_is_meant_as_a_length_and_is_none_is_refused_in_the_name_of_the_class(kind: Any, given: Any) -> None:
    with pytest.raises(UsageError, match=rf"^{kind.__name__}\(retry_after=…\): "):
        kind(*given)
