"""A fake database of an earlier program: background jobs that tell in a metadata column how far they are, and keep there
what the model answered.

`holdfast import-legacy examples/documents/jobs.py old.db --shape job-metadata --pipeline documents --job process_document`
brings it over.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from examples.documents.fakes.fake_tidying import tidy
from examples.documents.model import joined
from examples.documents.reading import FORMATS, Unreadable, read

JOB, PRICE = "process_document", "0.40"

TABLE = """CREATE TABLE background_jobs (
    id INTEGER PRIMARY KEY, job_type TEXT, status TEXT, input_data TEXT, metadata TEXT, retry_count INTEGER, last_error TEXT,
    created_at TEXT)"""


class Became(NamedTuple):
    """Where a job was when its program ended, what it had completed, and whether the model's answer was kept."""

    status: str
    stage: str | None
    completed: tuple[str, ...] = ()
    kept: bool = False


#: By place in the folder.
BECAME = (
    Became("pending", "extracted", ("extracted",)),
    Became("pending", "extracted", ("extracted",), kept=True),
    Became("processing", "chunking", ("extracted", "markdown_saved"), kept=True),
    # From before there were stages.
    Became("pending", None),
)


def write_fake_old_database(path: Path, folder: Path) -> dict[str, Became]:
    """Write it, with a job for each document of a folder; return what had become of them."""
    there: dict[str, Became] = {}
    with sqlite3.connect(path) as connection:
        connection.execute(TABLE)
        for file in sorted(one for one in folder.rglob("*") if one.suffix.lower() in FORMATS and one.is_file()):
            key, one = file.relative_to(folder).as_posix(), BECAME[len(there) % len(BECAME)]
            try:
                metadata = _metadata(file, one)
            except Unreadable:
                one, metadata = BECAME[-1], None
            given = json.dumps({"document_id": key, "path": str(file.resolve())})
            connection.execute(
                "INSERT INTO background_jobs (job_type, status, input_data, metadata, created_at) VALUES (?, ?, ?, ?, ?)",
                (JOB, one.status, given, metadata and json.dumps(metadata), "2025-10-04T09:00:00"),
            )
            there[key] = one
    connection.close()
    return there


def _metadata(file: Path, one: Became) -> dict[str, Any] | None:
    if one.stage is None:
        return None
    kept = {"cached_extract": _extracted(file), "cached_extract_cost": PRICE} if one.kept else {}
    return {
        "processing_stage": one.stage,
        "completed_stages": list(one.completed),
        "stage_timestamps": _times(one.completed),
        **kept,
    }


def _times(words: Sequence[str]) -> dict[str, str]:
    return {word: f"2025-10-04T10:{number:02}:00" for number, word in enumerate(words)}


def _extracted(file: Path) -> dict[str, Any]:
    """What the model had answered."""
    rough = read(file)
    markdown = joined([tidy(page) for page in rough.pages])
    return {"title": rough.title, "format": rough.format, "pages": len(rough.pages), "markdown": markdown}
