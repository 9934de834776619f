"""A fake database of an earlier program of the newsroom, which read the print version of each page: a row per page with all its
stages in one JSON column, the results that it kept, and what it has paid.

`holdfast import-legacy holdfast.yaml old.db` brings it over: this is the shape `stages-json`.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from examples.newsroom.fakes import fake_analyst
from examples.newsroom.fakes.fake_pages import article_page
from examples.newsroom.fakes.fake_site import FakeArticle, FakeSite
from examples.newsroom.reading import read_article

STAGES = ("fetch", "extract", "analyse", "index")
#: The versions of the code that made what was kept.
VERSIONS = {"fetch": "1", "extract": "2026-02-26.1", "analyse": "v3", "index": "1"}
PIPELINE = "newsroom"
PRINT = "?print"

TABLES = """
CREATE TABLE work_items (item_key TEXT, job_id TEXT, status TEXT, stages TEXT, data TEXT);
CREATE TABLE results (job_id TEXT, item_key TEXT, stage TEXT, result TEXT, handler_version TEXT);
CREATE TABLE job_cost_log (ts TEXT, job_id TEXT, stage TEXT, item_key TEXT, cost_usd REAL);
"""


class Became(NamedTuple):
    """What had become of an article, and of which stages the results were kept."""

    stages: dict[str, str] | str | None
    kept: tuple[str, ...] = ()
    status: str | None = None


DONE = dict.fromkeys(STAGES, "done")
#: By remainder of the article's number.
BECAME = (
    Became(DONE, STAGES),
    Became({"fetch": "done", "extract": "skipped", "analyse": "skipped", "index": "done"}),
    Became({"fetch": "failed", "fetch_error": "timed out"}),
    Became({"fetch": "pending"}),
    Became({"fetch": "in_progress", "fetch_started": "2026-01-31T23:59:58"}),
    Became({"fetch": "retry_later", "fetch_error": "HTTP 503"}),
    # Half-way: to be analysed; analysed and paid, and to be indexed; and fetched, with the page lost.
    Became({"fetch": "done", "extract": "done", "analyse": "pending"}, ("fetch", "extract")),
    Became({**DONE, "index": "pending"}, ("extract", "analyse")),
    Became({"fetch": "done", "extract": "pending"}),
    # From before there were stages.
    Became(None, status="done"),
    # These make no sense.
    Became({"fetch": "finished"}),
    Became("{'fetch': 'done'"),
)


def became(article: FakeArticle) -> Became:
    return BECAME[article.number % len(BECAME)]


def write_fake_old_database(path: Path, site: FakeSite, base: str) -> list[str]:
    """Write it, with a row for each article that is up; return their keys."""
    keys = []
    with sqlite3.connect(path) as connection:
        connection.executescript(TABLES)
        for article in site.up():
            key, one = base + article.path + PRINT, became(article)
            stages = json.dumps(_timed(one.stages)) if isinstance(one.stages, dict) else one.stages
            data = json.dumps({"url": base + article.path, "title": article.title})
            connection.execute(
                "INSERT INTO work_items VALUES (?, ?, ?, ?, ?)", (key, PIPELINE, one.status, stages, data)
            )
            made, price = _results(article, site.day)
            connection.executemany(
                "INSERT INTO results VALUES (?, ?, ?, ?, ?)",
                [(PIPELINE, key, stage, json.dumps(made[stage]), VERSIONS[stage]) for stage in one.kept],
            )
            if "analyse" in one.kept:
                paid = ("2026-01-31T12:00:02", PIPELINE, "analyse", key, price)
                connection.execute("INSERT INTO job_cost_log VALUES (?, ?, ?, ?, ?)", paid)
            keys.append(key)
    connection.close()
    return keys


def _results(article: FakeArticle, day: int) -> tuple[dict[str, Any], float]:
    """What each stage makes of an article, and what its analysis costs."""
    html = article_page(article, day, visits=1)
    read = read_article(html)
    assert read is not None
    text = "\n".join(read.paragraphs)
    made = {
        "fetch": html,
        "extract": asdict(read),
        "analyse": fake_analyst.analyse(read.title, text),
        "index": {"words": 0},
    }
    return made, float(fake_analyst.price(text))


def _timed(stages: dict[str, str]) -> dict[str, Any]:
    """With the times that the old program wrote beside each stage that had ended."""
    times: dict[str, Any] = {}
    for number, stage in enumerate(one for one in STAGES if stages.get(one) in ("done", "skipped", "failed")):
        times |= {
            f"{stage}_started": f"2026-01-31T12:00:0{number}",
            f"{stage}_ended": f"2026-01-31T12:00:0{number + 1}",
            f"{stage}_elapsed_s": 1.0,
        }
    return {**stages, **times}
