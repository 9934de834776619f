"""Lore: every requirement gets an entry in the world bible, and all that name the same thing get the same one.

A loop claims requirements. The entry is inserted, if it is not there, and linked, in the transaction that completes the
requirement: no entry without a requirement, no requirement that is Complete without its entry, whoever races or dies.
"""

from __future__ import annotations

import logging
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from examples.fiction.database import Database
from examples.fiction.models import Entry, Requirement
from examples.fiction.storyteller import Storyteller
from holdfast import Backoff, Duration
from holdfast.adopt import Job, Loop, insert_once

log = logging.getLogger("examples.fiction")

#: The edition of the world bible that requirements are linked to.
EDITION = 1


def fulfiller(
    database: Database,
    storyteller: Storyteller,
    *,
    stale: Duration = "2m",
    retry: Backoff | Duration | None = "5s",
    batch: int = 5,
    concurrency: int = 2,
    guarded: bool = True,
    **settings: Any,
) -> Loop:
    """A loop over the requirements; `.run()` it, in as many processes as you like."""

    def fulfil(job: Job) -> None:
        """Explain what a requirement names, unless that has been done."""
        if job.row["entry_id"] is not None:
            return
        slug = str(job.row["slug"])
        text = known(database, slug) or storyteller.explain(slug, job.attempt)
        job.effect(link, job.key, slug, text)

    return Loop(
        database.sessions,
        database.requirements,
        fulfil,
        stale_after=stale,
        retry=retry,
        batch=batch,
        concurrency=concurrency,
        guarded=guarded,
        order_by="id",
        **settings,
    )


def link(session: Session, requirement: int, slug: str, text: str) -> None:
    """Insert the entry, or find the one that is there, and let the requirement point to it."""
    values = {"slug": slug, "version": EDITION, "text": text}
    entry, created = insert_once(session, Entry, values, unique_on=("slug", "version"))
    session.execute(sa.update(Requirement).where(Requirement.id == requirement).values(entry_id=entry.id))
    if created:
        log.info("the world bible has a new entry, %r", slug)


def known(database: Database, slug: str) -> str | None:
    """What the world bible says, so that nothing is made up twice; two that look at the same time may both do so."""
    with database.sessions() as session:
        return session.scalar(sa.select(Entry.text).where(Entry.slug == slug, Entry.version == EDITION))
