"""The address is the query: what a page can be filtered by is declared once, and parsed, checked, shown and linked from there.

A page declares `Filter`s. `read_query` turns the parameters of an address into a `Query`, or raises `WrongQuery`, which says
what is allowed. Templates link to the same page with something changed: `query.link(state="failed")`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from starlette.convertors import IntegerConvertor, register_url_convertor

from holdfast.errors import UsageError
from holdfast.model.did_you_mean import there_are
from holdfast.model.durations import seconds
from holdfast.model.money import micros
from holdfast.model.states import State

#: No value in an address is longer.
LONGEST_VALUE = 4_000
MOST_VALUES = 200
#: Longer than anything was ever recorded.
LONGEST_SECONDS = 200 * 365.25 * 86400


class WrongQuery(Exception):
    """An address that asks for something that cannot be; the message says what can."""


@dataclass(frozen=True, slots=True)
class Filter:
    """A parameter of a page's address."""

    name: str
    label: str = ""
    #: Turns the text into what the question gets; raises UsageError or ValueError with the reason.
    read: Callable[[str], Any] = str
    #: The only values there are, for a list to choose from.
    choices: Sequence[str] = ()
    #: May be given several times; the question gets a tuple.
    many: bool = False
    #: What to type, in a few words.
    hint: str = ""
    default: Any = None
    #: Part of the address that is no filter, such as the place in a list: it has no chip, and does not outlive a change.
    is_place: bool = False
    #: How the page is shown rather than what is on it: every choice is a chip, and one is always in force.
    as_chips: bool = False

    def parse(self, given: Sequence[str]) -> Any:
        if not given:
            return self.default or () if self.many else self.default
        if len(given) > (MOST_VALUES if self.many else 1):
            raise WrongQuery(
                f"{self.name} is given {len(given)} times; {MOST_VALUES if self.many else 'once'} is allowed"
            )
        found = tuple(map(self._one, given))
        return found if self.many else found[0]

    def _one(self, text: str) -> Any:
        if len(text) > LONGEST_VALUE:
            raise WrongQuery(f"{self.name} is longer than {LONGEST_VALUE:,} characters")
        if self.choices and text not in self.choices:
            raise WrongQuery(f"{self.name} {text!r} is unknown; {there_are(text, self.choices)}")
        try:
            return self.read(text)
        except (UsageError, ValueError) as error:
            raise WrongQuery(f"{self.name} {text!r}: {error}{f' ({self.hint})' if self.hint else ''}") from None


# Kinds of values ------------------------------------------------------------------------------------------------------


def whole_number(least: int = 0, most: int = 2**62) -> Callable[[str], int]:
    def read(text: str) -> int:
        # Python reads no number of thousands of digits.
        digits = text.lstrip("0") or text[:1]
        if not text.isascii() or not text.isdecimal() or len(digits) > 20 or not least <= int(digits) <= most:
            raise ValueError(f"it is not a whole number from {least} to {most}")
        return int(digits)

    return read


class NumberInPath(IntegerConvertor):
    """`{number:holdfast_number}` in a path: no more digits than every store has room for. Nothing is at any other address."""

    regex = "[0-9]{1,18}"


#: All applications of a process share the names of convertors.
NUMBER = "holdfast_number"
register_url_convertor(NUMBER, NumberInPath())


def length_of_time(text: str) -> str:
    """`90m`, `2d`: as the command line takes it."""
    seconds(text, what="it")
    return text


def moment(text: str) -> datetime:
    """A day or an instant in ISO 8601; UTC if it does not say."""
    at = datetime.fromisoformat(text)
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def moment_or_age(text: str) -> datetime:
    """The same, or how long ago it was: `90m`. To the minute, so that everybody who looks asks the same."""
    try:
        length = seconds(text, what="it")
    except UsageError:
        return moment(text)
    return datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(seconds=min(length, LONGEST_SECONDS))


def amount(text: str) -> str:
    """An amount of money, as the app takes it."""
    micros(text, what="it")
    return text


#: The filters that several pages share; those of acts on many items are exactly these.
PIPELINE = Filter("pipeline", "Pipeline")
STAGE = Filter("stage", "Stage")
STATE = Filter("state", "State", choices=tuple(state.value for state in State), many=True)
KEY = Filter("key", "Key", many=True, hint="* and ? are wildcards")
ERROR = Filter("error", "Error", hint="part of the error text")
GROUP = Filter("group", "Error group")
SINCE = Filter("since", "Since", read=moment_or_age, hint="2h, 2026-02-01")
OLDER_THAN = Filter("older_than", "Older than", read=length_of_time, hint="90m, 2d")
WHICH_ITEMS = (PIPELINE, STAGE, STATE, KEY, ERROR, GROUP)
#: What lists of items can be narrowed by, and acts cannot.
NARROWED = (
    Filter("attempts", "Attempts, at least", read=whole_number(most=10**6)),
    Filter("version", "Version"),
    Filter("cost", "Cost, at least", read=amount, hint="0.25"),
    Filter("since", "Updated since", read=moment_or_age, hint="90m, 2026-02-01"),
    Filter("until", "Updated before", read=moment_or_age, hint="90m, 2026-02-01"),
)


# A query --------------------------------------------------------------------------------------------------------------


def link(path: str, **parameters: str | Iterable[str] | None) -> str:
    """An address of another page, relative to the dashboard's own: templates put `root` before it."""
    several = {name: (value,) if isinstance(value, str) else value or () for name, value in parameters.items()}
    text = urlencode([(name, str(one)) for name, values in several.items() for one in values])
    return f"{path}{'?' if text else ''}{text}"


@dataclass(frozen=True, slots=True)
class Chip:
    """A filter in force, and the address without it."""

    label: str
    value: str
    without: str


@dataclass(frozen=True, slots=True)
class Choice:
    """A value that a filter may have, and the address with it; without it, if it is one of several in force."""

    value: str
    in_force: bool
    address: str


@dataclass(frozen=True, slots=True)
class Query:
    """The checked parameters of an address."""

    #: The address of the page, relative to the dashboard's own, without a query.
    path: str
    filters: tuple[Filter, ...]
    values: Mapping[str, Any]
    #: As they were given, by name.
    given: Mapping[str, tuple[str, ...]]
    #: Parts of the path: the number of an action, say.
    parts: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.parts[name] if name in self.parts else self.values[name]

    def link(self, path: str | None = None, **changes: str | Iterable[str] | None) -> str:
        """The address with some parameters changed, and back at the beginning of its list; None takes one away."""
        names = {one.name: () if one.is_place else self.given.get(one.name, ()) for one in self.filters}
        for name, value in changes.items():
            names[name] = () if value is None else (value,) if isinstance(value, str) else tuple(value)
        return link(self.path if path is None else path, **names)

    def chips(self) -> list[Chip]:
        return [
            Chip(
                one.label or one.name,
                value,
                self.link(None, **{one.name: [other for other in self.given[one.name] if other != value]}),
            )
            for one in self.filters
            if not one.is_place and not one.as_chips
            for value in self.given.get(one.name, ())
        ]

    def choices(self, one: Filter) -> list[Choice]:
        """The choices of a filter, as chips."""
        value = self.values[one.name]
        now = list(value) if one.many else [value]

        def chosen(choice: str) -> list[str]:
            if not one.many:
                return [choice]
            return [other for other in now if other != choice] if choice in now else [*now, choice]

        return [Choice(choice, choice in now, self.link(None, **{one.name: chosen(choice)})) for choice in one.choices]

    def named(self, *names: str) -> dict[str, Any]:
        """These values, as arguments of a method of the app."""
        return {name: self.values[name] for name in names}

    @property
    def text(self) -> str:
        """Everything that was given, in one order."""
        return urlencode(sorted((name, one) for name, several in self.given.items() for one in several))


def read_query(
    path: str,
    filters: Sequence[Filter],
    pairs: Iterable[tuple[str, str]],
    parts: Mapping[str, Any] | None = None,
) -> Query:
    """The parameters of an address, checked. An empty value is none: a form sends its empty fields too."""
    known = {one.name: one for one in filters}
    given: dict[str, tuple[str, ...]] = {}
    for name, value in pairs:
        if name not in known:
            raise WrongQuery(
                f"there is no filter {name!r} on this page; {there_are(name, known) if known else 'it has none'}"
            )
        if "\0" in value or any("\ud800" <= one <= "\udfff" for one in value):
            raise WrongQuery(f"{name}: nothing that is stored can have such a character in it")
        if value:
            given[name] = (*given.get(name, ()), value)
    values = {one.name: one.parse(given.get(one.name, ())) for one in filters}
    return Query(path, tuple(filters), values, given, dict(parts or {}))
