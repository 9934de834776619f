"""What a person writes about a resource is read, or refused with the key that is wrong."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import DefinitionError, UsageError
from holdfast.model.breaker import BreakerSpec
from holdfast.model.resource import COOL_MOST_SECONDS, COOL_SECONDS, KEYS, ResourceSpec
from holdfast.model.stage import StageSpec
from holdfast.model.tuning import TUNABLE, Tuning, merged, own_resource

pytestmark = pytest.mark.req("J14", "J17")

at_leisure = settings(deadline=None)


def test_every_key_is_read_as_its_example_is_written():
    spec = ResourceSpec.read("api", KEYS)
    assert spec.rate is not None and spec.rate.per_second == 1
    assert (spec.burst, spec.concurrency, spec.adaptive, spec.zone) == (5, 8, True, "Europe/Berlin")
    assert spec.units["tokens"].per_second == pytest.approx(100_000 / 60)
    assert (spec.budget_per_day, spec.budget) == (20_000_000, 500_000_000)
    assert (spec.cool_seconds, spec.cool_most_seconds) == (30, 86_400)
    assert spec.breaker == BreakerSpec(5, 0.5, 20, 60)


def test_nothing_said_is_no_limit():
    spec = ResourceSpec.read("api", {})
    assert spec == ResourceSpec("api")
    assert (spec.cool_seconds, spec.cool_most_seconds) == (COOL_SECONDS, COOL_MOST_SECONDS)
    assert not spec.limits_anything and not spec.has_budget
    assert ResourceSpec.read("api", {"rate": None, "budget": None}) == spec


@pytest.mark.parametrize("key", [key for key in KEYS if key != "burst"])
def test_each_key_alone_is_a_limit(key):
    assert ResourceSpec.read(
        "api", {key: KEYS[key] if key != "cool" else "5s" if key == "cool" else ""}
    ).limits_anything or (
        key == "cool_most"  # the example is the default
    )


WRONG = {
    "an unknown key": ({"speed": 1}, r"'speed' is unknown; there are: rate, burst, concurrency"),
    "no mapping": ("10/s", r"'10/s' is not a mapping"),
    "a list": ([("rate", "10/s")], "is not a mapping"),
    "a rate that is none": ({"rate": "often"}, "rate: 'often' is not a rate"),
    "a burst without a rate": ({"burst": 5}, "burst needs a rate"),
    "a burst of none": ({"rate": "1/s", "burst": 0}, "burst: 0 is not a whole number of 1 or more"),
    "a burst in parts": ({"rate": "1/s", "burst": 1.5}, "burst: 1.5 is not a whole number"),
    "slots that are none": ({"concurrency": 0}, "concurrency: 0 is not"),
    "slots below none": ({"concurrency": -1}, "concurrency: -1 is not"),
    "slots that are true": ({"concurrency": True}, "concurrency: True is not"),
    "slots as a word": ({"concurrency": "many"}, "concurrency: 'many' is not"),
    "slots beyond counting": ({"concurrency": 10**10}, "concurrency"),
    "a unit without a rate": ({"units": {"tokens": 5}}, "units: tokens: 5 is not a rate"),
    "a unit without a name": ({"units": {"": "5/s"}}, "units: .* is not a mapping"),
    "units that are none": ({"units": "5/s"}, "units: '5/s' is not a mapping"),
    "a budget below none": ({"budget": -1}, "budget: -1 is negative"),
    "a budget that is none": ({"budget_per_day": "much"}, "budget_per_day: 'much' is not an amount"),
    "a budget that is not a number": ({"budget": float("nan")}, "budget: nan is not an amount"),
    "a zone that is none": ({"zone": "Nowhere/Land"}, "zone: 'Nowhere/Land' is not a time zone"),
    "a zone that is a folder": ({"zone": "Europe"}, "zone: 'Europe' is not a time zone"),
    "a zone that is a path": ({"zone": "../../etc/passwd"}, "is not a time zone"),
    "a zone that is a number": ({"zone": 1}, "zone: 1 is not a time zone"),
    "a zone that is empty": ({"zone": ""}, "zone: '' is not a time zone"),
    "a time that is none": ({"cool": "a while"}, "cool: 'a while' is not a length of time"),
    "a time below none": ({"cool_most": -1}, "cool_most: -1 must be zero or more"),
    "a time without end": ({"cool": float("inf")}, "cool: inf must be"),
    "neither yes nor no": ({"adaptive": 1}, "adaptive: 1 is neither true nor false"),
    "a breaker that is a word": ({"breaker": "on"}, "breaker: 'on' is not a mapping"),
    "an unknown key of a breaker": (
        {"breaker": {"tries": 3}},
        "breaker: 'tries' is unknown; there are: failures, share",
    ),
    "a breaker that opens after none": ({"breaker": {"failures": 0}}, "breaker: failures: 0 is not"),
    "a share over one": ({"breaker": {"share": 2}}, "breaker: share: 2 is no share"),
    "a share of none": ({"breaker": {"share": 0}}, "breaker: share: 0 is no share"),
    "a share that is not a number": ({"breaker": {"share": float("nan")}}, "share"),
    "a probe before now": ({"breaker": {"probe_after": -1}}, "breaker: probe_after: -1 must be"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_read_is_refused_with_its_key(name):
    given, complaint = WRONG[name]
    with pytest.raises(
        UsageError, match=f"^resource 'api': .*{complaint}" if "mapping" not in complaint else complaint
    ):
        ResourceSpec.read("api", given)


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.binary(max_size=3),
)


@at_leisure
@given(st.dictionaries(st.sampled_from(list(KEYS)), VALUES, max_size=4))
def test_whatever_is_written_is_read_or_refused_in_one_line(given):
    try:
        ResourceSpec.read("api", given)
    except UsageError as error:
        assert "\n" not in str(error)  # noqa: PT017


def test_yes_and_no_may_be_words():
    assert ResourceSpec.read("api", {"adaptive": "yes"}).adaptive
    assert not ResourceSpec.read("api", {"adaptive": "False"}).adaptive


def test_a_breaker_may_be_switched_on_with_the_defaults_and_off():
    assert (
        ResourceSpec.read("api", {"breaker": True}).breaker
        == BreakerSpec()
        == ResourceSpec.read("a", {"breaker": {}}).breaker
    )
    assert ResourceSpec.read("api", {"breaker": False}).breaker is None


@at_leisure
@given(st.integers(1, 10_000), st.integers(1, 10_000))
def test_fewer_are_granted_at_once_than_may_be_begun_but_one_always_is(rate, burst):
    """Between a grant and its call there is a commit and a hand-over: what is granted apart may begin together."""
    granted = ResourceSpec.read("api", {"rate": f"{rate}/s", "burst": burst}).bursts
    assert 1 <= granted <= burst
    assert granted >= burst / 2
    late = rate * 0.05
    assert granted <= max(1, burst - late) or granted == burst - burst // 2


# Tuning --------------------------------------------------------------------------------------------------------------


def test_limits_of_a_pipeline_and_of_its_stages_are_resources_of_their_own():
    tuning = Tuning.read(
        "p", ["a", "b"], {"rate": "1/s", "stages": {"b": {"concurrency": 2}}, "guards": {"disk_free": "1GB"}}
    )
    assert tuning.limits == {"@p": {"rate": "1/s"}, "@p/b": {"concurrency": 2}}
    assert tuning.guards == {"disk_free": "1GB"}
    assert own_resource("p") == "@p" and own_resource("p", "b") == "@p/b"


def test_no_resource_can_have_the_name_of_a_pipelines_own():
    for name in ("@p", "@p/a", "a/b"):
        with pytest.raises(DefinitionError, match="resource name"):
            StageSpec("a", lambda item, ctx: None, resources=(name,))


WRONG_TUNINGS = {
    "an unknown key": ({"speed": 1}, "'speed' is unknown; there are: rate, .*guards, stages"),
    "an unknown stage": ({"stages": {"c": {}}}, "stages: 'c' is unknown; there are: a, b"),
    "a wrong value": ({"rate": 5}, "rate: 5 is not a rate"),
    "a wrong value of a stage": ({"stages": {"b": {"rate": 5}}}, "stages: b: rate: 5 is not a rate"),
    "stages that are none": ({"stages": ["a"]}, r"stages: \['a'\] is not a mapping"),
    "a stage that is none": ({"stages": {"a": 5}}, "stages: a: 5 is not a mapping"),
    "a wrong guard": ({"guards": {"hours": "always"}}, "guards: hours: 'always' is not a part of a day"),
    "guards that are none": ({"guards": "night"}, "guards: 'night' is not a mapping"),
    "no mapping": (5, "5 is not a mapping"),
}


@pytest.mark.parametrize("name", WRONG_TUNINGS)
def test_a_tuning_that_cannot_be_read_is_refused_with_its_place(name):
    given, complaint = WRONG_TUNINGS[name]
    with pytest.raises(UsageError, match=f"^pipeline 'p': tuning: {complaint}"):
        Tuning.read("p", ["a", "b"], given)


def test_a_key_within_a_key_takes_the_place_of_that_one_alone():
    declared = {"rate": "1/s", "breaker": {"failures": 5, "probe_after": "5s"}, "units": {"tokens": "1/s"}}
    assert merged(declared, {"breaker": {"failures": 3}, "rate": "2/s", "burst": 4}) == {
        "rate": "2/s",
        "burst": 4,
        "breaker": {"failures": 3, "probe_after": "5s"},
        "units": {"tokens": "1/s"},
    }
    assert merged({"breaker": True}, {"breaker": {"failures": 3}}) == {"breaker": {"failures": 3}}
    assert merged({"breaker": {"failures": 3}}, {"breaker": False}) == {"breaker": False}


def test_every_key_that_can_be_tuned_is_a_limit_or_a_guard():
    assert set(TUNABLE) == {*KEYS, "hours", "disk_free", "exists", "handler", "zone"}


# A stage that uses resources -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings_", "complaint"),
    [
        ({"resources": ("a", "a")}, "names one twice"),
        ({"resources": ("not a name",)}, "resource name"),
        ({"estimate": 1}, "an estimate, or units, need a resource"),
        ({"units": {"tokens": len}}, "an estimate, or units, need a resource"),
        ({"resources": ("a",), "units": {"tokens": 5}}, "units: 'tokens' needs a function of the item, not 5"),
        ({"resources": ("a",), "estimate": -1}, "estimate -1 is neither"),
        ({"resources": ("a",), "estimate": 0.4}, "estimate 0.4 is neither"),
        ({"resources": ("a",), "estimate": "0.40"}, "estimate '0.40' is neither"),
        ({"resources": ("a",), "estimate": True}, "estimate True is neither"),
    ],
)
def test_what_a_stage_says_of_its_resources_is_checked(settings_, complaint):
    with pytest.raises(DefinitionError, match=f"^stage 'work': .*{complaint}"):
        StageSpec("work", lambda item, ctx: None, **settings_)
