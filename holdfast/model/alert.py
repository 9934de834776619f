"""An alert: a rule over events, and how to notify someone when it holds. As its author wrote it, checked.

The address of a webhook may be a secret in itself: neither the rule nor an error about it shows one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from holdfast.clock import microseconds
from holdfast.errors import UsageError
from holdfast.model.did_you_mean import there_are
from holdfast.model.durations import seconds, spoken
from holdfast.model.history import EVENTS, MEANING
from holdfast.model.log_lines import printable
from holdfast.model.redact import redact
from holdfast.model.states import State
from holdfast.model.user_event import is_user_event

#: What `AlertRule.read` understands, with an example each.
KEYS: Mapping[str, Any] = {
    "event": "attempt_failed",
    "pipeline": "books",
    "stage": "extract",
    "state": "exhausted",
    "error": "text that must occur",
    "count": 10,
    "within": "5m",
    "every": "15m",
    "webhook": "https://example.com/hook",
    "headers": {"Authorization": "Bearer ${HOOK_TOKEN}"},
    "command": ["notify", "books"],
    "log": True,
}
#: The ways to notify someone.
WAYS = ("webhook", "command", "log")

EVERY_SECONDS = 300.0
WITHIN_SECONDS = 300.0
MOST_COUNTED = 10_000
#: A shorter path of an address is not a secret, and may be an ordinary word.
LONG_PATH = 12
#: Of a rule in words.
LONGEST_WORDS = 1000

#: An attempt that failed for good leaves an event of this name instead.
_ENDS_OF_ATTEMPTS = (State.EXHAUSTED, State.FAILED)


@dataclass(frozen=True, slots=True)
class AlertRule:
    """A number of events of a kind within a period, and the ways to notify someone of it."""

    name: str
    #: Events of these names count.
    events: tuple[str, ...]
    pipeline: str | None = None
    stage: str | None = None
    error: str | None = None
    count: int = 1
    within_us: int = microseconds(WITHIN_SECONDS)
    #: At most one notification per this period.
    every_us: int = microseconds(EVERY_SECONDS)
    webhook: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    command: tuple[str, ...] = field(default=(), repr=False)
    log: bool = False

    @classmethod
    def read(cls, name: object, given: object, *, where: str = "") -> AlertRule:
        """Read what a person wrote; an error names the key that is wrong."""
        if not isinstance(name, str) or not name.strip() or len(name) > 200 or "\0" in name:
            raise UsageError(f"{where or 'alert'}: {name!r} is not a valid name; give a text of 200 characters at most")
        where = where or f"alert {name!r}"
        if not isinstance(given, Mapping):
            raise UsageError(f"{where}: it is not a mapping; write it like {{'event': 'worker_died', 'log': true}}")
        for key in given:
            if key not in KEYS:
                raise UsageError(f"{where}: {key!r} is unknown; {there_are(key, KEYS)}")
        said = {key: value for key, value in given.items() if value is not None}
        for key in ("event", "pipeline", "stage", "state", "error"):
            if key in said and not (isinstance(said[key], str) and said[key]):
                raise UsageError(f"{where}: {key}: {said[key]!r} is not a text; write it like {KEYS[key]!r}")
        rule = cls(
            name=name,
            events=_events(said.get("event"), said.get("state"), where),
            pipeline=said.get("pipeline"),
            stage=said.get("stage"),
            error=said.get("error"),
            count=_count(said.get("count", 1), where),
            within_us=_length(said.get("within", WITHIN_SECONDS), f"{where}: within"),
            every_us=_length(said.get("every", EVERY_SECONDS), f"{where}: every"),
            webhook=_webhook(said.get("webhook"), where),
            headers=_headers(said.get("headers"), where),
            command=_command(said.get("command"), where),
            log=_flag(said.get("log", False), where),
        )
        if not rule.ways:
            raise UsageError(f"{where}: it notifies nobody; give one of: {', '.join(WAYS)}")
        if rule.headers and rule.webhook is None:
            raise UsageError(f"{where}: headers need a webhook")
        return rule

    @property
    def ways(self) -> tuple[str, ...]:
        """How it notifies."""
        return tuple(way for way in WAYS if getattr(self, way))

    def in_words(self) -> str:
        """When it notifies, and how: neither where to nor by which command, which may be secrets."""
        where = "/".join(name for name in (self.pipeline, self.stage) if name)
        parts = [
            f"{self.count} × {' or '.join(self.events)}",
            f" of {where}" if where else "",
            f" with {redact(self.error)!r} in it" if self.error else "",
            f" within {spoken(self.within_us / 1e6)}" if self.count > 1 else "",
            f", at most every {spoken(self.every_us / 1e6)}, by {' and '.join(self.ways)}",
        ]
        return printable("".join(parts))[:LONGEST_WORDS]

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not be shown: the address, its path, and the headers."""
        found = list(self.headers.values())
        # `Bearer` is not a secret; what follows it is.
        found += [value.split()[-1] for value in found if " " in value.strip()]
        if self.webhook is not None:
            path = self.webhook.partition("//")[2].partition("/")[2]
            found += [self.webhook, *([path] if len(path) >= LONG_PATH else [])]
        return tuple(found)


def read_alerts(given: object, *, where: str = "alerts") -> tuple[AlertRule, ...]:
    """Read rules by name, as a person wrote them in Python."""
    if not isinstance(given, Mapping):
        example = "{'deaths': {'event': 'worker_died', 'log': True}}"
        raise UsageError(f"{where}: it is not a mapping of names to rules; write it like {example}")
    return tuple(AlertRule.read(name, rule, where=f"{where}: {name}") for name, rule in given.items())


def _events(event: str | None, state: str | None, where: str) -> tuple[str, ...]:
    """The names of the events that count: the one given, or all that leave a stage in the state given."""
    if event is None and state is None:
        raise UsageError(f"{where}: it does not say when to notify; give an event like 'worker_died', or a state")
    if event is not None and event not in EVENTS and not is_user_event(event):
        there = there_are(event, sorted(EVENTS - {"alert_told"}))
        raise UsageError(f"{where}: event: {event!r} is unknown; {there}; events of your own begin with 'user.'")
    if event == "alert_told":
        raise UsageError(f"{where}: event: an alert about alerts would never end")
    if state is None:
        assert event is not None
        return (event,)
    try:
        wanted = State(state)
    except ValueError:
        raise UsageError(f"{where}: state: {state!r} is unknown; {there_are(state, State)}") from None
    leading = tuple(sorted(name for name, meaning in MEANING.items() if meaning is wanted))
    if event is None:
        if not leading:
            raise UsageError(f"{where}: state: no event says that a stage is {state}: name an event")
        return leading
    if event == "attempt_failed" and wanted in _ENDS_OF_ATTEMPTS:
        return (str(wanted),)
    if MEANING.get(event, wanted) is not wanted:
        raise UsageError(f"{where}: state: after {event!r} a stage is {MEANING[event]}, never {state}; leave one out")
    return (event,)


def _count(value: object, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_COUNTED:
        raise UsageError(f"{where}: count: {value!r} is not a whole number from 1 to {MOST_COUNTED:,}")
    return value


def _length(value: Any, what: str) -> int:
    length = seconds(value, what=what)
    if length <= 0:
        raise UsageError(f"{what}: it must be longer than zero")
    return microseconds(length)


def _webhook(value: object, where: str) -> str | None:
    if value is None:
        return None
    wrong = UsageError(f"{where}: webhook: it is not an address (not shown); write it like 'https://example.com/hook'")
    if not isinstance(value, str) or any(char.isspace() or ord(char) < 32 for char in value):
        raise wrong
    try:
        parts = urlsplit(value)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        value.encode("ascii")
    except ValueError:
        raise wrong from None
    if not known:
        raise wrong
    return value


def _headers(value: object, where: str) -> Mapping[str, str]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise UsageError(f"{where}: headers: they are not a mapping of names to texts")
    for name, text in value.items():
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name):
            raise UsageError(f"{where}: headers: {name!r} is not a valid header name")
        if not isinstance(text, str) or re.search(r"[\x00-\x08\x0a-\x1f\x7f]", text) or not text.isascii():
            raise UsageError(f"{where}: headers: {name}: its value (not shown) is not one line of ASCII text")
    return dict(value)


def _command(value: object, where: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise UsageError(f"{where}: command: it is not a list of texts; write it like ['notify', 'books']")
    if not all(isinstance(part, str) and "\0" not in part for part in value) or not value[0]:
        raise UsageError(f"{where}: command: each part must be a text; write it like ['notify', 'books']")
    return tuple(value)


def _flag(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"{where}: log: {value!r} is neither true nor false")
    return value
