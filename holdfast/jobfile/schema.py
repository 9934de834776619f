"""The JSON Schema of the job file, for editors, made from the same tables that check a file."""

from __future__ import annotations

from typing import Any

from holdfast.jobfile.keys import FILE

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """The schema. What depends on other parts of the file, or on code, is left to `holdfast check`."""
    return {
        "$schema": DRAFT,
        "title": "holdfast job file",
        "description": "Pipelines, their stages and sources, what they share, and how fast they may go.",
        **FILE.schema(),
    }
