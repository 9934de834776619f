"""Sitemap import: pages from sitemaps, and more sitemaps from indexes of them.

As it always was, too, but awaited: it gets an id and an AsyncSession.
"""

from __future__ import annotations

import asyncio

from sqlalchemy.ext.asyncio import AsyncSession

from examples.curation.domain_extraction import is_of
from examples.curation.models import WORDS, Domain, Page, Sitemap
from examples.curation.scheduler import Scheduler
from examples.curation.settings import Settings
from examples.curation.sitemap_xml import parse
from examples.curation.web import Web
from holdfast import Permanent
from holdfast.adopt import TableMapping, insert_once, with_session

#: How deep indexes may lie in one another; the protocol knows one level.
MOST_DEPTH = 2


def sitemap_import(settings: Settings, web: Web) -> Scheduler:
    sitemaps = TableMapping(
        Sitemap,
        status="import_status",
        **WORDS,
        error="import_error",
        attempts="import_attempts",
        max_attempts=settings.attempts,
        next_attempt="import_next_at",
        holder="import_by",
        heartbeat="import_beat_at",
        created="created_at",
    )

    async def import_sitemap(sitemap_id: int, session: AsyncSession) -> None:
        sitemap = await session.get_one(Sitemap, sitemap_id)
        domain = await session.get_one(Domain, sitemap.domain_id)
        url, depth, name, domain_id = sitemap.url, sitemap.depth, domain.name, domain.id
        await session.commit()  # no transaction is open while the site is asked
        found = parse(url, await asyncio.to_thread(web.get, url))
        if found.is_index and depth >= MOST_DEPTH:
            raise Permanent(f"{url}: indexes lie in one another deeper than {MOST_DEPTH} levels")
        own = [one for one in found.entries if is_of(name, one.url)]
        for one in own:
            if found.is_index:
                below = {"url": one.url, "domain_id": domain_id, "depth": depth + 1}
                await insert_once(session, Sitemap, below, unique_on="url")
            else:
                page = {"url": one.url, "domain_id": domain_id, "last_modified": one.last_modified}
                await insert_once(session, Page, page, unique_on="url")
        await session.refresh(sitemap)
        sitemap.listed = len(own)

    return Scheduler(
        "sitemap import", sitemaps, with_session(import_sitemap), is_async=True, own={"order_by": ["depth", "id"]}
    )
