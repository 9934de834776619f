"""The status of alerts: how far each rule has read the events, which notifications wait, and what became of the others."""

from __future__ import annotations

from collections import Counter
from typing import Any

from holdfast.engine.event_pages import newest_events
from holdfast.model import codec
from holdfast.model.facts import Facts
from holdfast.store import Transaction

#: So many notifications that wait are counted and told.
MOST_QUEUED = 1000


def alert_status(tx: Transaction, most: int) -> Facts:
    """The rules, and the notifications: those that wait, the next first; then up to `most` that ended, the newest first."""
    queued = [_queued(row) for row in tx.records("queued_deliveries", most=MOST_QUEUED)]
    waiting = Counter(one["alert"] for one in queued)
    rules = [
        {**row, "active": bool(row["active"]), "queued": waiting[row["name"]]} for row in tx.records("list_alerts")
    ]
    return {"rules": rules, "deliveries": [*queued[:most], *_ended(tx, most)]}


def _queued(row: Facts) -> Facts:
    body = codec.stored(row["body"], {})
    state = "being delivered" if row["held"] else "to be retried" if row["attempts"] else "queued"
    known = {name: row[name] for name in ("alert", "due_at", "attempts", "error")}
    return {
        "at": None,
        "by": body.get("by", ""),
        "state": state,
        "count": body.get("count"),
        "text": body.get("text"),
        **known,
    }


def _ended(tx: Transaction, most: int) -> list[Facts]:
    rows = [
        row for event in ("alert_told", "alert_given_up") for row in newest_events(tx, event=event, most=most)["events"]
    ]
    rows.sort(key=lambda row: (row["at"], row["id"]), reverse=True)
    return [_told(row["event"], row["at"], row["data"]) for row in rows[:most]]


def _told(event: str, at: int, data: dict[str, Any]) -> Facts:
    return {
        "alert": data.get("alert", ""),
        "by": data.get("by", ""),
        "state": "delivered" if event == "alert_told" else "given up",
        "at": at,
        "due_at": None,
        "attempts": data.get("attempt", data.get("attempts", 0)),
        "count": data.get("count"),
        "text": data.get("said"),
        "error": data.get("error"),
    }
