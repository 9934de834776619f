"""Alerts: match new events against each rule, queue notifications, and keep track of their delivery.

A notification is queued in the transaction that advances the rule, so each event counts once, whichever worker looks. It is
delivered at least once: a worker claims it, delivers it outside of any transaction, and records the result. What a dead
worker had claimed is claimed again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from holdfast.clock import SECOND, microseconds
from holdfast.engine.stray_rows import set_aside
from holdfast.model import codec, shapes
from holdfast.model.alert import AlertRule
from holdfast.model.backoff import Backoff
from holdfast.model.error_fingerprint import storable
from holdfast.model.log_lines import logger
from holdfast.model.plausible import LAST, is_time
from holdfast.store import Transaction

log = logger("holdfast.alert")

#: Events read at a time, fewer where their text is read too; and the most in one transaction.
PAGE, PAGE_WITH_TEXT, MOST_READ = 1000, 200, 20_000
#: Numbers are assigned before the commit: a missing number may still appear for this long.
STRAGGLER_US = 30 * SECOND
#: How many of the newest events are searched for missing numbers.
NEWEST = 2000
EXAMPLES = 5

#: The time between two attempts to deliver, and how many there are.
BACKOFF = Backoff(first_seconds=10.0, factor=2.0, most_seconds=3600.0)
MOST_ATTEMPTS = 10
#: No attempt is due later than this; if one seems to be, the clock was changed.
_BEYOND_US = microseconds(2 * BACKOFF.most_seconds)


class Delivery(NamedTuple):
    """A notification to deliver in one way, claimed by this worker."""

    id: int
    alert: str
    #: `webhook`, `command` or `log`.
    by: str
    body: dict[str, Any]
    attempt: int
    worker: int


def anything_to_do(tx: Transaction, rules: Sequence[AlertRule]) -> bool:
    """Whether there are events that a rule has not seen, or notifications to deliver. Takes no locks."""
    names = [rule.name for rule in rules]
    seen = {name: (looked, told_at) for name, looked, told_at in tx.run("look_at_alerts", names=names)}
    if len(seen) < len(rules):
        return True
    newest = _newest_event(tx)
    if any(newest != seen[rule.name][0] and not _is_quiet(tx, rule, seen[rule.name][1]) for rule in rules):
        return True
    return bool(tx.run("any_delivery", alerts=names, now=tx.now, beyond=tx.now + _BEYOND_US))


class Declared(NamedTuple):
    """How the rules of a program differ from what the store knows of them."""

    #: Rules that are new or have changed, each with the end of its quiet period and in words.
    to_declare: list[tuple[str, int, str]]
    #: Rules that programs with these pipelines have had, and this one does not.
    to_retire: list[str]


def undeclared(tx: Transaction, pipelines: Sequence[str], rules: Sequence[AlertRule]) -> Declared:
    """What `declare` would change."""
    names = [rule.name for rule in rules]
    known = {row["name"]: row for row in tx.records("declared_alerts", names=names, pipelines=list(pipelines))}
    wanted = {
        rule.name: (_quiet_until(rule, known[rule.name]["told_at"] if rule.name in known else None), rule.in_words())
        for rule in rules
    }
    as_known = {
        name: (row["quiet_until"], row["says"])
        for name, row in known.items()
        if row["active"] and row["owner"] == _owner(pipelines)
    }
    return Declared(
        [(name, *now) for name, now in wanted.items() if as_known.get(name) != now],
        [name for name in known if name not in wanted],
    )


def declare(tx: Transaction, pipelines: Sequence[str], rules: Sequence[AlertRule]) -> None:
    """Say which rules a program with these pipelines has. New ones see what happens from now on, and nothing before. Those that
    it no longer has need no worker, until one that has them looks again."""
    differing = undeclared(tx, pipelines, rules)
    if differing.to_declare:
        tx.run_rows("declare_alerts", differing.to_declare, newest=_newest_event(tx), owner=_owner(pipelines))
    if differing.to_retire:
        tx.run("retire_alerts", names=differing.to_retire)


def learn(tx: Transaction, rules: Sequence[AlertRule]) -> None:
    """Have rules that the store does not know see what happens from now on, and nothing before."""
    names = [rule.name for rule in rules]
    known = {row[0] for row in tx.run("look_at_alerts", names=names)}
    if new := [(name,) for name in names if name not in known]:
        tx.run_rows("add_alerts", new, newest=_newest_event(tx))


def watch_events(tx: Transaction, rules: Sequence[AlertRule]) -> int:
    """Advance each rule over the new events, and queue notifications; return how many rules have some."""
    learn(tx, rules)
    newest = tx.run("newest_events", most=NEWEST)
    settled = _settled(newest, tx.now)
    raised = 0
    for rule in rules:
        for looked_until, told_at in tx.run("hold_alert", name=rule.name):
            # In its quiet period nothing is read: what happens meanwhile counts afterwards.
            if settled > looked_until and not _is_quiet(tx, rule, told_at):
                raised += _watch(tx, rule, looked_until, told_at, settled)
            # Another worker may have looked further meanwhile, but not further than the newest event.
            elif looked_until > settled and looked_until > (last := _newest_event(tx)):
                log.warning(
                    "alert %r had looked beyond the newest event; it looks at what happens from now on", rule.name
                )
                _move(tx, rule, last, told_at)
    return raised


def take_deliveries(tx: Transaction, rules: Sequence[AlertRule], worker: int, most: int) -> list[Delivery]:
    """Claim the due notifications of these rules; the attempt counts from here. A dead worker holds none."""
    rows = tx.run(
        "take_deliveries",
        alerts=[rule.name for rule in rules],
        worker=worker,
        most=most,
        now=tx.now,
        beyond=tx.now + _BEYOND_US,
    )
    taken = []
    for id_, alert, text, attempt in sorted(rows):
        if codec.is_json(text, shapes.Notice):
            body = codec.decode(text)
            taken.append(Delivery(id_, alert, body["by"], {"delivery": id_, **body}, attempt, worker))
        else:
            tx.run("end_delivery", id=id_, worker=worker)
            set_aside(tx, "deliveries", {"id": id_, "alert": alert, "body": text}, "its body cannot be read")
    return taken


def delivered(tx: Transaction, one: Delivery) -> bool:
    """Record a delivery; False if another worker has claimed the notification by now."""
    if not tx.run("end_delivery", id=one.id, worker=one.worker):
        return False
    tx.record("alert_told", alert=one.alert, by=one.by, attempt=one.attempt, count=one.body["count"])
    return True


def failed_delivery(tx: Transaction, one: Delivery, error: str) -> bool:
    """Record a failed delivery: it is tried again later, or given up after the last attempt."""
    text = storable(error, 500)
    if one.attempt < MOST_ATTEMPTS:
        due_at = tx.now + microseconds(BACKOFF.ceiling(one.attempt))
        return bool(tx.run("delay_delivery", id=one.id, worker=one.worker, due_at=due_at, error=text))
    if not tx.run("end_delivery", id=one.id, worker=one.worker):
        return False
    tx.record("alert_given_up", alert=one.alert, by=one.by, attempts=one.attempt, error=text, said=one.body["text"])
    return True


def _newest_event(tx: Transaction) -> int:
    return max((id_ for id_, _ in tx.run("newest_events", most=1)), default=0)


def _owner(pipelines: Sequence[str]) -> str | None:
    """Whose rules they are: a program is known by the first of its pipelines."""
    return min(pipelines, default=None)


def _quiet_until(rule: AlertRule, told_at: int | None) -> int:
    return 0 if told_at is None or not is_time(told_at) else told_at + rule.every_us


def _is_quiet(tx: Transaction, rule: AlertRule, told_at: int | None) -> bool:
    """Whether its latest notification is recent. One far in the future is from before the clock was changed."""
    return told_at is not None and -STRAGGLER_US <= tx.now - told_at < rule.every_us


def _settled(newest: Sequence[tuple[int, int]], now: int) -> int:
    """The event up to which none is missing, given the newest (id, at) first. Nothing is read after a missing number that
    may still appear."""
    settled = newest[0][0] if newest else 0
    for (later, at), (earlier, _) in pairwise(newest):
        if at <= now - STRAGGLER_US:
            break
        if later - earlier > 1:
            settled = earlier
    return settled


@dataclass(slots=True)
class _Matches:
    """The events that raise an alert."""

    count: int = 0
    first_at: int = 0
    last_at: int = 0
    newest: deque[int] = field(default_factory=lambda: deque(maxlen=EXAMPLES))

    def add(self, id_: int, at: int) -> None:
        self.first_at = at if not self.count else self.first_at
        self.last_at = at
        self.count += 1
        self.newest.append(id_)


def _watch(tx: Transaction, rule: AlertRule, looked_until: int, told_at: int | None, until: int) -> int:
    # Events of earlier notifications do not count again.
    told = told_at if told_at is not None and told_at <= tx.now + STRAGGLER_US else 0
    window: deque[tuple[int, int]] | None = None
    raised: _Matches | None = None
    for read, (id_, at) in enumerate(_new(tx, rule, looked_until, until), start=1):
        if window is None:
            window = deque(_old(tx, rule, looked_until, since=max(at - rule.within_us, told)))
        if raised is not None:
            raised.add(id_, at)
        else:
            window.append((id_, at))
            while window[0][1] <= at - rule.within_us:
                window.popleft()
            if len(window) >= rule.count:
                raised = _Matches()
                for one in window:
                    raised.add(*one)
        if read >= MOST_READ:
            # The rest is for the next pass; if there is a notification by now, the rest is more of the same.
            until = id_ if raised is None else until
            break
    if raised is None:
        _move(tx, rule, until, told_at)
        return 0
    bodies = [(rule.name, msgspec.json.encode({**_body(tx, rule, raised), "by": way}).decode()) for way in rule.ways]
    tx.run_rows("add_deliveries", bodies, now=tx.now)
    # This transaction may have begun before the events that it sees.
    _move(tx, rule, until, max(tx.now, raised.last_at))
    return 1


def _move(tx: Transaction, rule: AlertRule, until: int, told_at: int | None) -> None:
    tx.run("move_alert", name=rule.name, until=until, told_at=told_at, quiet_until=_quiet_until(rule, told_at))


def _new(tx: Transaction, rule: AlertRule, after: int, until: int) -> Iterator[tuple[int, int]]:
    """New events that match the rule, oldest first."""
    page = PAGE if rule.error is None else PAGE_WITH_TEXT
    while True:
        rows = tx.run(
            "new_matches", after=after, until=until, last=LAST, events=list(rule.events), most=page, **_filters(rule)
        )
        yield from ((id_, at) for id_, at, data in rows if _says(rule, data))
        if len(rows) < page:
            return
        after = rows[-1][0]


def _old(tx: Transaction, rule: AlertRule, until: int, since: int) -> list[tuple[int, int]]:
    """Matching events it has seen without notifying: as many as can reach the count together with one more."""
    if rule.count == 1:
        return []
    most = rule.count - 1 if rule.error is None else 4 * rule.count
    found = [
        (id_, at)
        for event in rule.events
        for id_, at, data in tx.run(
            "old_matches", event=event, since=since, until=until, last=LAST, most=most, **_filters(rule)
        )
        if _says(rule, data)
    ]
    return sorted(found)[-(rule.count - 1) :]


def _filters(rule: AlertRule) -> dict[str, Any]:
    # As JSON writes it: the database searches the whole text of an event, and `_says` then looks at the right field.
    error = None if rule.error is None else msgspec.json.encode(rule.error).decode()[1:-1]
    return {"pipeline": rule.pipeline, "stage": rule.stage, "error": error}


def _says(rule: AlertRule, data: str | None) -> bool:
    return rule.error is None or (data is not None and rule.error in _said(codec.stored(data, {})))


def _said(data: dict[str, Any]) -> str:
    """The text of an event that says why."""
    return next((str(data[name]) for name in ("error", "reason", "why") if data.get(name)), "")


def _body(tx: Transaction, rule: AlertRule, raised: _Matches) -> dict[str, Any]:
    examples = [
        {
            "at": _iso(row["at"]),
            **{name: row[name] for name in ("event", "pipeline", "stage", "item") if row[name] is not None},
            "error": storable(_said(codec.stored(row["data"], {})), 500),
        }
        for row in tx.records("events_of_alert", events=list(raised.newest))
    ]
    event = " or ".join(rule.events)
    last = examples[-1] if examples else {}
    place = "/".join(str(last[name]) for name in ("pipeline", "stage", "item") if name in last)
    many = f"{raised.count:,} × {event}" if raised.count > 1 else event
    since = f" since {_iso(raised.first_at)}" if raised.count > 1 else ""
    why = f": {last['error']}" if last.get("error") else ""
    return {
        "alert": rule.name,
        "event": event,
        "count": raised.count,
        "first": _iso(raised.first_at),
        "last": _iso(raised.last_at),
        "examples": examples,
        "text": storable(f"{rule.name}: {many}{since}{f', last {place}' if place else ''}{why}", 500),
    }


def _iso(micros: int) -> str:
    return datetime.fromtimestamp(micros // SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
