"""The page curation service: what curated pages are good for. It finds whom one can write to or call.

The other of the pair that works on `pages`: an object with a method, which gets an id and an AsyncSession. It has no token
and no heartbeat, only a time and a number: enough to be fenced, not enough to run for long.
"""

from __future__ import annotations

import re

from sqlalchemy.ext.asyncio import AsyncSession

from examples.curation.models import WORDS, Contact, Page, Status
from examples.curation.scheduler import Scheduler
from examples.curation.settings import Settings
from holdfast.adopt import TableMapping, insert_once, with_session

_MAIL = re.compile(r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+")
_PHONE = re.compile(r"\+\d[\d ]{6,18}\d")


class PageCurationService:
    async def process(self, page_id: int, session: AsyncSession) -> None:
        page = await session.get_one(Page, page_id)
        for kind, value in contacts_in(page.text or ""):
            row = {"page_id": page_id, "kind": kind, "value": value}
            await insert_once(session, Contact, row, unique_on=("page_id", "kind", "value"))


def contacts_in(text: str) -> list[tuple[str, str]]:
    """Addresses and numbers, each once, in the order in which they stand."""
    mails = [("mail", found.rstrip(".").lower()) for found in _MAIL.findall(text)]
    phones = [("phone", "".join(found.split())) for found in _PHONE.findall(text)]
    return list(dict.fromkeys([*mails, *phones]))


def page_service(settings: Settings) -> Scheduler:
    pages = TableMapping(
        Page,
        status="service_status",
        **WORDS,
        error="service_error",
        attempts="service_attempts",
        max_attempts=settings.attempts,
        started="service_started_at",
    )
    handler = with_session(PageCurationService().process)
    # Not before its curation is done with it: both write to the same row.
    curated = Page.curation_status == Status.COMPLETED
    return Scheduler("page service", pages, handler, is_async=True, own={"where": curated})
