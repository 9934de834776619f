"""The database of an earlier program of the newsroom: a row per page, with all its stages in one JSON column.

`holdfast import-legacy holdfast.yaml old.db` takes it over.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

from examples.newsroom.site import Site

STAGES = ("fetch", "extract", "analyse", "index")
PIPELINE = "newsroom"
#: By remainder of the article's number: what had become of it. The last two make no sense.
BECAME: tuple[dict[str, str] | str, ...] = (
    dict.fromkeys(STAGES, "done"),
    {"fetch": "done", "extract": "skipped", "analyse": "skipped", "index": "done"},
    {"fetch": "failed", "fetch_error": "timed out"},
    {"fetch": "pending"},
    {"fetch": "in_progress", "fetch_started": "2026-01-31T23:59:58"},
    {"fetch": "retry_later", "fetch_error": "HTTP 503"},
    {"fetch": "finished"},
    "{'fetch': 'done'",
)


def write_old_database(path: Path, site: Site, base: str) -> list[str]:
    """Write it, with a row for each article that is up; return their keys."""
    keys = []
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE work_items (item_key TEXT, job_id TEXT, stages TEXT, data TEXT)")
        for article in site.up():
            key = base + article.path
            became = BECAME[article.number % len(BECAME)]
            stages = became if isinstance(became, str) else json.dumps(_timed(became))
            row = (key, PIPELINE, stages, json.dumps({"url": key, "title": article.title}))
            connection.execute("INSERT INTO work_items VALUES (?, ?, ?, ?)", row)
            keys.append(key)
    connection.close()
    return keys


def _timed(stages: dict[str, str]) -> dict[str, Any]:
    """With the times that the old program wrote beside each stage that had ended."""
    times: dict[str, Any] = {}
    for number, stage in enumerate(one for one in STAGES if stages.get(one) in ("done", "skipped", "failed")):
        times |= {
            f"{stage}_started": f"2026-01-31T12:00:0{number}", f"{stage}_ended": f"2026-01-31T12:00:0{number + 1}",
            f"{stage}_elapsed_s": 1.0,
        }  # fmt: skip
    return {**stages, **times}
