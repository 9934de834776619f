"""The JSON Schema of the job file, for editors. It is made of the same tables that check a file."""

from __future__ import annotations

from typing import Any

from holdfast.jobfile.keys import FILE

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """What can only be known with the rest of the file, or with the code, is left to `holdfast check`."""
    return {
        "$schema": DRAFT,
        "title": "holdfast job file",
        "description": "Pipelines, their stages and sources, what they share, and how fast they may go.",
        **FILE.schema(),
    }
