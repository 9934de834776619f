"""Deep scan: look up a place's listing, and note the business behind it. The look costs money.

Written anew, because it is paid: it gets a job instead of an id and a session. What it found is written by effects, in the
transaction that completes the row; whoever lost the row writes nothing.
"""

from __future__ import annotations

import asyncio
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from examples.curation.models import WORDS, Business, Place, Status
from examples.curation.scheduler import Scheduler
from examples.curation.settings import Settings
from examples.curation.web import Web
from holdfast import Permanent
from holdfast.adopt import Job, TableMapping, insert_once


def deep_scan(settings: Settings, web: Web) -> Scheduler:
    places = TableMapping(
        Place,
        status="deep_scan_status",
        **WORDS,
        error="deep_scan_error",
        attempts="deep_scan_attempts",
        max_attempts=settings.attempts,
        next_attempt="deep_scan_next_at",
        holder="deep_scan_by",
        started="deep_scan_started_at",
        heartbeat="deep_scan_beat_at",
        created="created_at",
    )

    async def scan(job: Job) -> None:
        listing = await asyncio.to_thread(web.get_json, job.row["listing"])
        name, website, phone = (_text(listing, key) for key in ("name", "website", "phone"))
        if name is None:
            raise Permanent(f"{job.row['listing']}: a listing without a name")
        job.set(phone=phone)
        job.effect(save_business, job.key, name, website)

    own: dict[str, Any] = {"order_by": ["-priority", "id"]}
    if settings.city:
        own["where"] = Place.city == settings.city
    return Scheduler("deep scan", places, scan, is_async=True, own=own)


async def save_business(session: AsyncSession, place_id: int, name: str, website: str | None) -> None:
    """The business of this place, once; its domain is to be extracted."""
    row = {"name": name, "website": website, "place_id": place_id, "extraction_status": Status.QUEUED}
    await insert_once(session, Business, row, unique_on="place_id")


def _text(listing: dict[str, Any], key: str) -> str | None:
    found = listing.get(key)
    return found.strip() or None if isinstance(found, str) else None
