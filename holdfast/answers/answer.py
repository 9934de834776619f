"""What all answers have in common: how they are read from the engine's facts, and how they print as text, HTML and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar, get_args

import msgspec

from holdfast.answers.from_facts import read
from holdfast.answers.json_of import json_of
from holdfast.answers.text_tables import in_words, shortened
from holdfast.errors import UsageError
from holdfast.model.did_you_mean import there_are

#: The longest text in a cell of an HTML table, and in a `repr`.
LONGEST_CELL = 300
LONGEST_VALUE = 60
#: A `repr` of several answers shows the first ones.
MOST_SHOWN = 3


class Answer(msgspec.Struct, frozen=True):
    """The base of every answer: an immutable record that prints itself."""

    #: The attributes that a `repr` shows.
    _brief: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Self:
        """The answer for what the engine found."""
        return read(cls, facts)

    def json(self) -> dict[str, Any]:
        """The answer as `--json` prints it."""
        found: dict[str, Any] = json_of(self)
        return found

    def lines(self, width: int | None = None) -> list[str]:
        """The answer as the command line prints it, in lines of at most `width` characters where possible."""
        return [
            f"{name.replace('_', ' ')}: {shortened(in_words(value), 2000)}" for name, value in attributes(self).items()
        ]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def __repr__(self) -> str:
        shown = [(name, getattr(self, name)) for name in self._brief]
        parts = [f"{name}={shortened(_brief(value), LONGEST_VALUE)}" for name, value in shown if value is not None]
        return f"<{' '.join([type(self).__name__, *parts])}>"

    def _repr_html_(self) -> str:
        return html_table([], [[name, value] for name, value in attributes(self).items()])


A = TypeVar("A", bound=Answer, covariant=True)
T = TypeVar("T")


class Answers(tuple[A, ...]):
    """Several answers of one class, in order: a tuple that prints as a table."""

    __slots__ = ()

    _kind: ClassVar[Any]

    def __init_subclass__(cls) -> None:
        [cls._kind] = get_args(cls.__orig_bases__[0])  # type: ignore[attr-defined]

    @classmethod
    def of(cls, found: Iterable[Mapping[str, Any]]) -> Self:
        """The answers for what the engine found."""
        return cls(map(cls._kind.of, found))

    def json(self) -> list[Any]:
        """The answers as `--json` prints them."""
        return [one.json() for one in self]

    def lines(self, width: int | None = None) -> list[str]:
        """The answers as the command line prints them, in lines of at most `width` characters where possible."""
        return [line for one in self for line in one.lines(width)]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def __repr__(self) -> str:
        more = ["…"] if len(self) > MOST_SHOWN else []
        shown = ", ".join([*map(repr, self[:MOST_SHOWN]), *more])
        return f"<{type(self).__name__} of {len(self):,}{f': {shown}' if shown else ''}>"

    def _repr_html_(self) -> str:
        return _table(self)


def attributes(answer: Answer) -> dict[str, Any]:
    """The attributes of an answer, by name."""
    return {name: getattr(answer, name) for name in answer.__struct_fields__}


def named(what: str, name: str, there: Mapping[str, T]) -> T:
    """One of several parts; an error that names the others if it is not there."""
    if name not in there:
        raise UsageError(f"there is no {what} {name!r}; {there_are(name, there)}")
    return there[name]


def _are_answers(value: object) -> bool:
    return isinstance(value, tuple) and any(isinstance(one, Answer) for one in value)


def _brief(value: Any) -> str:
    """A value in a `repr`: text in quotes, and of several answers only how many."""
    if isinstance(value, str):
        return repr(value)
    return f"{len(value):,}" if isinstance(value, Answers) or _are_answers(value) else in_words(value)


def _table(answers: Sequence[Answer]) -> str:
    head = [*attributes(answers[0])] if answers else []
    return html_table(head, [[getattr(one, name) for name in head] for one in answers])


def html_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; every text in it is escaped."""

    def row(cells: Iterable[object], tag: str) -> str:
        return f"<tr>{''.join(f'<{tag}>{_cell(one)}</{tag}>' for one in cells)}</tr>"

    top = f"<thead>{row(head, 'th')}</thead>" if head else ""
    return f"<table>{top}<tbody>{''.join(row(one, 'td') for one in rows)}</tbody></table>"


def _cell(value: Any) -> str:
    """Answers within an answer are tables within the table."""
    # Its table of names takes time to load, and only notebooks need it.
    from html import escape

    if isinstance(value, (Answer, Answers)):
        return value._repr_html_()
    return _table(value) if _are_answers(value) else escape(shortened(in_words(value), LONGEST_CELL))
