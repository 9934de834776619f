"""What was accepted comes back from either database as it went in, through a connection that never saw it."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.model import codec
from tests.support.forms import FORMS, mixed
from tests.support.harness import connected

pytestmark = pytest.mark.fault(55, 57)

VALUES = [
    None,
    True,
    False,
    0,
    -1,
    2**53 + 1,
    2**63,
    -(2**63),
    10**400,
    0.1,
    -0.0,
    1e308,
    5e-324,
    1e16,
    "",
    " ",
    "null",
    "a'b\"c\\d",
    "\\u0000",
    "\\",
    "%s %(x)s :y {z} $1 ?",
    "\x01\x1f\x7f",
    "\u2028\u2029",
    "\ufeff",
    "\U0001f600",
    "e\u0301",
    "\ufffe\uffff",
    [],
    {},
    [[]],
    [None],
    {"": 1},
    {" ": {"%": "\\"}},
    {"b": 1, "a": 2},
    ["x" * 100_000],
    [[[1]] * 50] * 20,
]


def test_every_result_and_every_payload_is_read_back_as_it_was_written(app):
    app.pipeline({"a": [], "b": ["a"]})
    app.add({"key": f"k{place}", "value": value} for place, value in enumerate(VALUES))
    for lease in app.claim(stage="a", most=len(VALUES)):
        app.complete(lease, VALUES[int(lease.key[1:])])
    with connected(app) as other:
        for place, value in enumerate(VALUES):
            assert repr(other.data(f"k{place}")) == repr({"value": value})
            assert repr(other.outcome(f"k{place}", "a")["result"]) == repr(value)
        for lease in other.claim(stage="b", most=len(VALUES)):
            value = VALUES[int(lease.key[1:])]
            assert repr(codec.decode(lease.data)) == repr({"value": value})
            for result in lease.results.values():
                assert repr(codec.decode(result)) == repr(value)


@pytest.mark.req("P3", "V12")
def test_a_value_of_another_type_is_read_back_as_its_json_form(app):
    app.pipeline({"a": []})
    app.add({"key": name, "value": make()} for name, (make, _) in FORMS.items())
    with connected(app) as other:
        for name, (_, form) in FORMS.items():
            assert repr(other.data(name)) == repr({"value": form})


@pytest.mark.req("P3", "V12")
@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(mixed, min_size=5, max_size=30))
def test_any_mix_of_types_is_read_back_as_its_json_form(app, values_and_forms):
    app.pipeline({"a": []})
    keys = [uuid.uuid4().hex for _ in values_and_forms]
    app.add({"key": key, "value": value} for key, (value, _) in zip(keys, values_and_forms, strict=True))
    for key, (_, form) in zip(keys, values_and_forms, strict=True):
        assert repr(app.data(key)) == repr({"value": form})


@pytest.mark.fault(58)
def test_error_text_made_plain_can_be_stored_whatever_it_was(app):
    app.pipeline({"a": []}, max_attempts=1)
    texts = [
        "a\0b",
        "\ud800",
        "\udfff\ud800",
        "x" * 100_000,
        "\x00" * 50,
        "\U0001f600\ud83d",
        "%",
        "\\u0000",
        "\r\n\x1b[31m",
    ]
    app.add(f"k{place}" for place in range(len(texts)))
    for lease, text in zip(app.claim(most=20), texts, strict=True):
        plain = codec.plain_text(text, 1000)
        app.fail(lease, plain)
        assert app.row(lease.key, "a")["error"] == plain


def test_events_keep_what_was_said(app):
    app.pipeline({"a": []})
    app.add(["x"])
    app.cancel(reason='it\'s "done" \\ 100% \U0001f600\n')
    assert app.events("cancelled")[0]["reason"] == 'it\'s "done" \\ 100% \U0001f600\n'
