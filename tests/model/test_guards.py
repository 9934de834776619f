"""Guards as a person writes them, and hours that hold in a zone whatever its clocks do."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import UsageError
from holdfast.model.guard_conditions import KEYS, Guards, Hours, read_size

pytestmark = pytest.mark.req("J18")

at_leisure = settings(deadline=None)

NEW_YORK, LORD_HOWE, SAO_PAULO = "America/New_York", "Australia/Lord_Howe", "America/Sao_Paulo"


def at(zone: str, *moment: int, fold: int = 0) -> datetime:
    return datetime(*moment, tzinfo=ZoneInfo(zone), fold=fold)


# Hours ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("09:00-17:00", [(9, 0), (12, 0), (16, 59)], [(8, 59), (17, 0), (0, 0), (23, 59)]),
        ("22:00-06:00", [(22, 0), (23, 59), (0, 0), (5, 59)], [(6, 0), (12, 0), (21, 59)]),
        ("9:30 - 9:31", [(9, 30)], [(9, 29), (9, 31)]),
        ("18:00-24:00", [(18, 0), (23, 59)], [(0, 0), (17, 59)]),
        ("00:00-06:00", [(0, 0), (5, 59)], [(6, 0), (23, 59)]),
        ("24:00-06:00", [(0, 0), (5, 59)], [(6, 0), (23, 59)]),
    ],
)
def test_hours_are_a_part_of_every_day_and_their_end_is_not_in_them(text, inside, outside):
    hours = Hours.read(text)
    assert all(hours.contain(at("UTC", 2025, 6, 1, *clock)) for clock in inside)
    assert not any(hours.contain(at("UTC", 2025, 6, 1, *clock)) for clock in outside)


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "22-06",
        "22:00",
        "22:00-22:00",
        "00:00-24:00",
        "25:00-06:00",
        "24:30-06:00",
        "12:60-13:00",
        "-1:00-02:00",
        "22:00–06:00",
        22,
        None,
        ("22:00", "06:00"),
    ],
)
def test_what_is_no_part_of_a_day_is_refused(wrong):
    with pytest.raises(UsageError, match=r"^guards: hours: .* is not a part of a day; write it like '22:00-06:00'"):
        Hours.read(wrong, what="guards: hours")


@pytest.mark.parametrize("zone", ["Nowhere/Land", "Europe", "", "../etc/passwd", 5, None, ["UTC"], "UTC\0"])
def test_what_is_no_zone_is_refused(zone):
    with pytest.raises(UsageError, match="is not a time zone; write it like 'Europe/Berlin'"):
        Hours.read("22:00-06:00", zone)


def test_hours_are_those_of_their_zone():
    hours = Hours.read("09:00-17:00", "Asia/Kathmandu")
    assert hours.contain(at("UTC", 2025, 6, 1, 3, 15))
    assert not hours.contain(at("UTC", 2025, 6, 1, 3, 14))
    assert hours.next_begin(at("UTC", 2025, 6, 1, 12)) == at("UTC", 2025, 6, 2, 3, 15)


CLOCK = st.builds(time, st.integers(0, 23), st.integers(0, 59))
ZONES = st.sampled_from(
    [
        "UTC",
        NEW_YORK,
        LORD_HOWE,
        SAO_PAULO,
        "Asia/Beirut",
        "Europe/Berlin",
        "Pacific/Apia",
        "America/Havana",
        "Pacific/Chatham",
    ]
)
#: Every minute of these years, which have every change of these zones.
MINUTES = st.integers(int(datetime(2016, 1, 1).timestamp()) // 60, int(datetime(2019, 12, 1).timestamp()) // 60)


@pytest.mark.fault(54)
@at_leisure
@given(CLOCK, CLOCK, ZONES, MINUTES)
def test_they_begin_when_they_say_and_not_before(begin, end, zone, minute):
    if begin == end:
        return
    hours = Hours(begin, end, zone)
    now = datetime.fromtimestamp(minute * 60, UTC)
    begins = hours.next_begin(now)
    assert now < begins <= now + timedelta(hours=49)
    if not hours.contain(now):
        # A part of the day that lies in a gap does not take place; else the first minute is where they say.
        minutes = [now + timedelta(minutes=n) for n in range(1, int((begins - now).total_seconds() // 60))]
        assert not any(map(hours.contain, minutes))


@pytest.mark.fault(54)
@pytest.mark.parametrize(
    ("zone", "text", "day", "minutes"),
    [
        (NEW_YORK, "01:00-04:00", (2025, 3, 9), 120),
        (NEW_YORK, "02:00-03:00", (2025, 3, 9), 0),
        (NEW_YORK, "02:30-06:00", (2025, 3, 9), 180),
        (NEW_YORK, "01:00-02:00", (2025, 11, 2), 120),
        (NEW_YORK, "01:00-02:00", (2025, 11, 3), 60),
        (LORD_HOWE, "01:00-04:00", (2025, 10, 5), 150),
        (LORD_HOWE, "01:00-04:00", (2025, 4, 6), 210),
        (SAO_PAULO, "00:00-02:00", (2018, 11, 4), 60),
        (SAO_PAULO, "23:00-24:00", (2018, 2, 17), 120),
        ("UTC", "01:00-04:00", (2025, 3, 9), 180),
    ],
)
def test_on_a_day_when_the_clocks_are_set_they_last_as_long_as_the_wall_says(zone, text, day, minutes):
    hours = Hours.read(text, zone)
    # Counted over the whole calendar day there, in steps of real time.
    moment, count = at(zone, *day, 12).astimezone(UTC) - timedelta(hours=26), 0
    for _ in range(60 * 52):
        there = moment.astimezone(ZoneInfo(zone))
        count += (there.year, there.month, there.day) == day and hours.contain(moment)
        moment += timedelta(minutes=1)
    assert count == minutes


@pytest.mark.fault(54)
@pytest.mark.parametrize(
    ("zone", "text", "now", "begins"),
    [
        (NEW_YORK, "02:30-06:00", (2025, 3, 9, 0, 0), "2025-03-09T07:00:00+00:00"),
        (NEW_YORK, "01:30-06:00", (2025, 11, 2, 0, 0), "2025-11-02T05:30:00+00:00"),
        (LORD_HOWE, "02:15-06:00", (2025, 10, 5, 0, 0), "2025-10-04T15:30:00+00:00"),
        (SAO_PAULO, "00:00-06:00", (2018, 11, 3, 12, 0), "2018-11-04T03:00:00+00:00"),
        (NEW_YORK, "22:00-06:00", (2025, 3, 8, 12, 0), "2025-03-09T03:00:00+00:00"),
    ],
)
def test_when_they_begin_is_told_right_across_a_change_of_the_clocks(zone, text, now, begins):
    """In a gap, right after it."""
    found = Hours.read(text, zone).next_begin(at(zone, *now))
    assert found.astimezone(UTC).isoformat() == begins
    assert Hours.read(text, zone).contain(found)
    assert not Hours.read(text, zone).contain(found - timedelta(minutes=1))


# Sizes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("5GB", 5 * 10**9),
        ("5 gb", 5 * 10**9),
        ("5G", 5 * 10**9),
        ("500MB", 5 * 10**8),
        ("1.5TB", 1_500 * 10**9),
        ("1KB", 1000),
        ("5GiB", 5 * 2**30),
        ("1.5KiB", 1536),
        ("1024", 1024),
        ("7B", 7),
        (0, 0),
        (2**40, 2**40),
    ],
)
def test_a_size_is_read_as_it_is_written(text, size):
    assert read_size(text) == size


@pytest.mark.parametrize(
    "wrong", ["", "GB", "five GB", "-5GB", "5PB", "5GBB", "5,0GB", "1e9", -1, 1.5, True, None, [5]]
)
def test_what_is_no_size_is_refused(wrong):
    with pytest.raises(UsageError, match=r"^guards: disk_free: .* is not a size; write it like '5GB' or '500MB'"):
        read_size(wrong, what="guards: disk_free")


@pytest.mark.parametrize("large", ["9" * 400 + "GB", "9" * 30 + "GB", 10**400, 10**19, "9000001TB"])
def test_a_size_that_nothing_has_is_refused(large):
    with pytest.raises(UsageError, match="guards: disk_free: more than 9,000 PB, which nothing has"):
        read_size(large, what="guards: disk_free")


# All of them ---------------------------------------------------------------------------------------------------------


def test_every_guard_is_read_as_its_example_is_written():
    guards = Guards.read(KEYS)
    assert guards == Guards(
        Hours(time(22), time(6), "Europe/Berlin"), 5 * 10**9, ("/mnt/books",), ("my_package.is_quiet",)
    )
    assert guards and not Guards.read({}) and not Guards.read({"hours": None, "exists": ()})


def test_several_paths_and_functions_may_be_given():
    guards = Guards.read({"exists": ["/a", "/b"], "handler": ("x.y", "z")})
    assert (guards.exists, guards.handlers) == (("/a", "/b"), ("x.y", "z"))


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"hour": "22:00-06:00"}, "'hour' is unknown; there are: hours, zone, disk_free, exists, handler"),
        ({"zone": "UTC"}, "zone needs hours"),
        ({"hours": "always"}, "hours: 'always' is not a part of a day"),
        ({"hours": "22:00-06:00", "zone": "Mars"}, "hours: 'Mars' is not a time zone"),
        ({"disk_free": "much"}, "disk_free: 'much' is not a size"),
        ({"exists": ""}, "exists: '' is neither a text nor a list of texts"),
        ({"exists": ["/a", 5]}, "exists: .* is neither"),
        ({"handler": len}, "handler: .* is neither"),
        ("night", "'night' is not a mapping"),
    ],
)
def test_a_guard_that_cannot_be_read_is_refused_with_its_key(given, complaint):
    with pytest.raises(UsageError, match=f"^p: guards: {complaint}"):
        Guards.read(given, where="p: guards")
