"""Days where their author lives: each moment is in one, they follow each other without a gap, whatever the clocks do."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.budget_day import day_of, next_day_at

pytestmark = [pytest.mark.req("J10"), pytest.mark.fault(54)]

at_leisure = settings(deadline=None)
SECOND = 1_000_000
HOUR = 3600 * SECOND

ZONES = (
    "UTC",
    "America/New_York",
    "Australia/Lord_Howe",
    "Europe/Berlin",
    "Asia/Kathmandu",
    "Pacific/Apia",
    "America/Sao_Paulo",
    "Africa/Cairo",
    "Asia/Beirut",
    "America/Havana",
    "Pacific/Chatham",
    "Etc/GMT-14",
    "Etc/GMT+12",
)


def us(zone: str, *moment: int, fold: int = 0) -> int:
    return round(datetime(*moment, tzinfo=ZoneInfo(zone), fold=fold).timestamp()) * SECOND


def day(*parts: int) -> int:
    return (date(*parts) - date(1970, 1, 1)).days


@at_leisure
@given(
    st.sampled_from(ZONES), st.integers(int(datetime(2012, 1, 2).timestamp()), int(datetime(2037, 1, 1).timestamp()))
)
def test_the_next_day_begins_after_now_and_nothing_lies_between(zone, second):
    at = second * SECOND
    begins = next_day_at(at, zone)
    assert at < begins <= at + 26 * HOUR
    assert day_of(begins, zone) == day_of(at, zone) + 1
    assert day_of(begins - 1, zone) == day_of(at, zone)


@at_leisure
@given(st.sampled_from(ZONES), st.integers(0, int(datetime(2037, 1, 1).timestamp())))
def test_a_moment_is_in_the_day_that_the_wall_says(zone, second):
    wall = datetime.fromtimestamp(second, ZoneInfo(zone))
    assert day_of(second * SECOND, zone) == (wall.date() - date(1970, 1, 1)).days
    assert day_of(second * SECOND + 999_999, zone) == day_of(second * SECOND, zone)


#: Days with more or fewer than 24 hours: the zone, the day, its hours.
ODD_DAYS = {
    "an hour is missing in New York": ("America/New_York", (2025, 3, 9), 23),
    "an hour comes twice in New York": ("America/New_York", (2025, 11, 2), 25),
    "half an hour is missing on Lord Howe": ("Australia/Lord_Howe", (2025, 10, 5), 23.5),
    "half an hour comes twice on Lord Howe": ("Australia/Lord_Howe", (2025, 4, 6), 24.5),
    "midnight does not exist in São Paulo": ("America/Sao_Paulo", (2018, 11, 4), 23),
    "the hour before midnight comes twice in São Paulo": ("America/Sao_Paulo", (2018, 2, 17), 25),
    "midnight does not exist in Beirut": ("Asia/Beirut", (2025, 3, 30), 23),
    "midnight comes twice in Havana": ("America/Havana", (2025, 11, 2), 25),
    "an ordinary day": ("Asia/Kathmandu", (2025, 11, 2), 24),
}


@pytest.mark.parametrize("name", ODD_DAYS)
def test_a_day_has_as_many_hours_as_it_has(name):
    zone, (year, month, number), hours = ODD_DAYS[name]
    noon = us(zone, year, month, number, 12)
    ends = next_day_at(noon, zone)
    begins = next_day_at(noon - 24 * HOUR, zone)
    assert (ends - begins) / HOUR == hours
    assert {day_of(at, zone) for at in range(begins, ends, HOUR // 4)} == {day(year, month, number)}


def test_where_midnight_does_not_exist_the_day_begins_at_one():
    before = us("America/Sao_Paulo", 2018, 11, 3, 23, 59)
    begins = datetime.fromtimestamp(next_day_at(before, "America/Sao_Paulo") / SECOND, ZoneInfo("America/Sao_Paulo"))
    assert begins.isoformat() == "2018-11-04T01:00:00-02:00"


def test_where_a_whole_day_does_not_exist_the_next_one_follows():
    """Samoa went from the 29th of December 2011 to the 31st."""
    begins = next_day_at(us("Pacific/Apia", 2011, 12, 29, 20), "Pacific/Apia")
    assert day_of(begins, "Pacific/Apia") == day(2011, 12, 31)
    assert day_of(begins - 1, "Pacific/Apia") == day(2011, 12, 29)


def test_the_hour_that_comes_twice_is_in_one_day_both_times():
    zone = "America/New_York"
    assert day_of(us(zone, 2025, 11, 2, 1, 30), zone) == day_of(us(zone, 2025, 11, 2, 1, 30, fold=1), zone)
    ends = next_day_at(us(zone, 2025, 11, 2, 1, 30, fold=1), zone)
    assert datetime.fromtimestamp(ends / SECOND, UTC) == datetime(2025, 11, 3, 5, tzinfo=UTC)


@at_leisure
@given(
    st.sampled_from(["America/New_York", "Australia/Lord_Howe", "America/Sao_Paulo", "Asia/Beirut"]),
    st.integers(2012, 2036),
)
def test_a_year_has_every_day_once(zone, year):
    at, days = us(zone, year, 1, 1, 12), []
    while datetime.fromtimestamp(at / SECOND, ZoneInfo(zone)).year == year:
        days.append(day_of(at, zone))
        at = next_day_at(at, zone)
    first = date(year, 1, 1)
    assert days == [day(*(first + timedelta(n)).timetuple()[:3]) for n in range((date(year + 1, 1, 1) - first).days)]
