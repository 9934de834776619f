"""Schedules: the next moment something is due, also where clocks are set."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import UsageError
from holdfast.model.schedule import NEVER, Schedule

pytestmark = [pytest.mark.req("J20"), pytest.mark.fault(54)]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
#: Half an hour at a time, an hour at midnight, a whole day left out, none at all.
ZONES = [
    "America/New_York",
    "Europe/Berlin",
    "Australia/Lord_Howe",
    "Africa/Cairo",
    "America/Havana",
    "Asia/Kolkata",
    "UTC",
]


def at(text: str) -> int:
    """A moment in microseconds, from a time in UTC."""
    return (datetime.fromisoformat(text).replace(tzinfo=UTC) - EPOCH) // MICROSECOND


def shown(moment: int, zone: str = "UTC") -> str:
    return (EPOCH + moment * MICROSECOND).astimezone(ZoneInfo(zone)).isoformat()


def ticks(schedule: Schedule, start: str, end: str) -> list[int]:
    found = [schedule.next_after(at(start))]
    while found[-1] < at(end):
        found.append(schedule.next_after(found[-1]))
    return found[:-1]


def cron(text: str, zone: str = "UTC") -> Schedule:
    return Schedule.read({"cron": text, "zone": zone})


# Intervals ------------------------------------------------------------------------------------------------------------


def test_ticks_of_an_interval_lie_on_a_grid_and_do_not_drift_with_the_moment_they_are_asked_for():
    every = Schedule.read({"every": "10m"})
    assert shown(every.next_after(at("2026-03-02 10:03:17.5"))) == "2026-03-02T10:10:00+00:00"
    assert shown(every.next_after(at("2026-03-02 10:10:00"))) == "2026-03-02T10:20:00+00:00"
    assert shown(every.next_after(at("2026-03-02 10:09:59.999999"))) == "2026-03-02T10:10:00+00:00"


@given(st.integers(1, 10**9), st.integers(0, 4 * 10**15))
def test_the_next_tick_of_an_interval_is_later_and_less_than_an_interval_away(seconds, moment):
    every = Schedule.read({"every": seconds})
    assert 0 < every.next_after(moment) - moment <= seconds * 10**6
    assert every.next_after(every.next_after(moment) - 1) == every.next_after(moment)


# Cron -----------------------------------------------------------------------------------------------------------------


def test_a_cron_time_is_a_time_of_its_zone():
    assert shown(cron("0 6 * * *").next_after(at("2026-01-15 05:59:59.9"))) == "2026-01-15T06:00:00+00:00"
    assert shown(cron("0 6 * * *", "Europe/Berlin").next_after(at("2026-01-15 05:00"))) == "2026-01-16T05:00:00+00:00"
    assert shown(cron("0 6 * * *", "Europe/Berlin").next_after(at("2026-07-15 03:00"))) == "2026-07-15T04:00:00+00:00"
    assert shown(cron("30 8 * * MON-FRI").next_after(at("2026-02-27 09:00"))) == "2026-03-02T08:30:00+00:00"


def test_a_time_that_the_clock_skips_is_due_once_right_after_the_gap():
    schedule = cron("30 2 * * *", "America/New_York")
    found = [shown(tick, schedule.zone) for tick in ticks(schedule, "2026-03-07 00:00", "2026-03-10 00:00")]
    assert found == ["2026-03-07T02:30:00-05:00", "2026-03-08T03:00:00-04:00", "2026-03-09T02:30:00-04:00"]


def test_several_times_in_one_gap_are_due_once_together():
    assert len(ticks(cron("0,30 2 * * *", "America/New_York"), "2026-03-08 05:00", "2026-03-09 05:00")) == 1
    assert len(ticks(cron("*/10 2 * * *", "America/New_York"), "2026-03-08 05:00", "2026-03-09 05:00")) == 1


@pytest.mark.parametrize("minutes", range(0, 180, 7))
def test_a_time_that_comes_twice_is_due_the_first_time_only_whenever_it_is_asked_for(minutes):
    schedule = cron("30 1 * * *", "America/New_York")
    first, next_day = at("2026-11-01 05:30"), at("2026-11-02 06:30")
    moment = at("2026-11-01 04:30") + minutes * 60_000_000
    assert schedule.next_after(moment) == (first if moment < first else next_day)


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("text", ["0 0 * * *", "30 0 * * *", "15 1 * * *", "0 2 * * *", "15 2 * * *", "59 23 * * *"])
def test_a_daily_time_is_due_exactly_once_on_every_day_of_the_year(zone, text):
    found = ticks(cron(text, zone), "2026-01-01 12:00", "2027-01-02 12:00")
    days = [(EPOCH + tick * MICROSECOND).astimezone(ZoneInfo(zone)).date() for tick in found]
    assert len(set(days)) == len(days) == 366
    assert max(days) - min(days) == timedelta(days=365)


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("text", ["*/15 * * * *", "0 * * * *", "0 */3 * * *", "30 */2 * * SUN"])
@pytest.mark.parametrize("day", ["2026-03-08", "2026-11-01", "2026-04-04", "2026-10-03", "2026-04-23", "2026-10-29"])
def test_a_schedule_of_every_so_many_hours_follows_real_time(zone, text, day):
    """It is due at each moment at which the clock matches: none left out, none twice at one moment."""
    start = at(f"{day} 00:00")
    minute, hour, *_, weekday = text.split()
    by_hand = []
    for moment in range(start + 60_000_000, start + 60 * 3600 * 1_000_000, 60_000_000):
        clock = (EPOCH + moment * MICROSECOND).astimezone(ZoneInfo(zone))
        if (
            clock.minute in {"*/15": (0, 15, 30, 45), "0": (0,), "30": (30,)}[minute]
            and clock.hour % int(hour[2:] or 1) == 0
            and (weekday == "*" or clock.weekday() == 6)
        ):
            by_hand.append(moment)
    found, moment = [], start
    while (moment := cron(text, zone).next_after(moment)) < start + 60 * 3600 * 1_000_000:
        found.append(moment)
    assert found == by_hand


@given(
    st.sampled_from(ZONES),
    st.sampled_from(["0 2 * * *", "30 1,2 * * *", "*/20 */2 * * *", "5 0 1 * *", "0 12 * * MON#1"]),
    st.integers(at("2024-01-01 00:00"), at("2028-01-01 00:00")),
    st.integers(0, 3 * 86400 * 10**6),
)
def test_the_next_tick_is_always_later_and_asking_later_never_gives_an_earlier_one(zone, text, moment, later):
    schedule = cron(text, zone)
    tick = schedule.next_after(moment)
    assert tick > moment
    assert schedule.next_after(moment + later) >= tick
    if moment + later < tick:
        assert schedule.next_after(moment + later) == tick


def test_a_leap_day_is_waited_for_and_the_end_of_the_calendar_is_never():
    assert shown(cron("0 0 29 2 *").next_after(at("2026-01-01 00:00"))) == "2028-02-29T00:00:00+00:00"
    assert cron("0 0 29 2 *").next_after(at("9999-12-31 00:00")) == NEVER


# What is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "0 0 30 2 *",
        "0 0 31 2,4,6,9,11 *",
        "60 * * * *",
        "0 6 * *",
        "0 6 * * * *",
        "@daily",
        "",
        "* * * * MONDAY",
        "1-",
        "a b c d e",
        5,
        ["0 6"],
        "0 0 * * 5L/2",
    ],
)
def test_a_cron_that_cannot_be_read_or_can_never_be_due_is_refused(text):
    with pytest.raises(UsageError, match=r"^books: cron: .*(five fields|never due)"):
        Schedule.read({"cron": text}, where="books")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "write either 'every'"),
        ({"every": "1h", "cron": "0 6 * * *"}, "write either 'every'"),
        ({"every": "0s"}, "every: '0s' is too short"),
        ({"every": "500ms"}, "too short"),
        ({"every": "soon"}, "every: 'soon'"),
        ({"every": -5}, "zero or more"),
        ({"every": True}, "not a length"),
        ({"every": "1h", "zone": "UTC"}, "zone needs cron"),
        ({"cron": "0 6 * * *", "zone": "Mars/Olympus"}, "'Mars/Olympus' is not a time zone"),
        ({"cron": "0 6 * * *", "zone": 5}, "is not a time zone"),
        ({"cron": "0 6 * * *", "zone": "../x"}, "is not a time zone"),
        ({"evry": "1h"}, "'evry' is unknown; there are: every, cron, zone"),
        ("10m", "not a mapping"),
    ],
)
def test_an_error_names_the_key_and_says_what_to_write(given, said):
    with pytest.raises(UsageError, match=f"^books: .*{said}"):
        Schedule.read(given, where="books")


def test_schedules_that_were_written_equally_are_equal():
    assert (
        Schedule.read({"every": "1h"})
        == Schedule.read({"every": 3600})
        == Schedule.read({"every": "60m", "cron": None})
    )
    assert cron("0  6 * * *") == cron("0 6 * * * ")
    assert Schedule.read({"every": "90s"}).text == "every 90 s"
    assert cron("0 6 * * *", "Europe/Berlin").text == "0 6 * * * (Europe/Berlin)"
