"""Mappings for the most common shapes of old databases, for `--shape`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_WORDS = {
    "poison": "exhausted",
    "complete": "done",
    "completed": "done",
    "processing": "in_progress",
    "running": "in_progress",
    "queued": "pending",
    "error": "failed",
    "canceled": "cancelled",
}

SHAPES: Mapping[str, Mapping[str, Any]] = {
    "stages-json": {
        "table": "work_items",
        "key": "item_key",
        "pipeline": "job_id",
        "data": "data",
        "priority": "priority",
        "status": "status",
        "attempts": "attempts",
        "error": "error",
        "added": "created_at",
        "ended": "updated_at",
        "stages": {
            "state": "stages.{stage}",
            "started": "stages.{stage}_started",
            "ended": "stages.{stage}_ended",
            "elapsed": "stages.{stage}_elapsed_s",
            "error": "stages.{stage}_error",
            "attempts": "stages.{stage}_attempts",
        },
        "results": {
            "table": "results",
            "pipeline": "job_id",
            "key": "item_key",
            "stage": "stage",
            "result": "result",
            "version": "handler_version",
        },
        "costs": {
            "table": "job_cost_log",
            "pipeline": "job_id",
            "key": "item_key",
            "stage": "stage",
            "amount": "cost_usd",
            "at": "ts",
        },
        "events": {
            "table": "job_events",
            "pipeline": "job_id",
            "key": "item_key",
            "stage": "stage",
            "event": "event",
            "at": "ts",
            "data": "data",
        },
        "states": _WORDS,
    },
    "job-metadata": {
        "table": "background_jobs",
        "key": "input_data.document_id",
        "pipeline": "job_type",
        "data": "input_data",
        "priority": "priority",
        "status": "status",
        "attempts": "retry_count",
        "error": "last_error",
        "added": "created_at",
        "ended": "completed_at",
        "stages": {
            "current": "metadata.processing_stage",
            "completed": "metadata.completed_stages",
            "started": "metadata.stage_timestamps.{running}",
            "ended": "metadata.stage_timestamps.{done}",
            "result": "metadata.cached_{stage}",
            "version": "metadata.cached_{stage}_version",
            "cost": "metadata.cached_{stage}_cost",
            "words": {
                "extract": ["extracting", "extracted"],
                "save_markdown": ["saving_markdown", "markdown_saved"],
                "chunk": ["chunking", "chunked"],
                "embed": ["embedding", "embedded"],
            },
        },
        "states": _WORDS,
    },
}
