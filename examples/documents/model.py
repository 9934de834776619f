"""The caller of the paid model: sends pages, gets Markdown back as it is written, and what it cost.

Any server that speaks the chat-completions protocol will do; DOCUMENTS_MODEL_URL and DOCUMENTS_MODEL_KEY say which.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from examples.documents.settings import Settings
from holdfast import Permanent, seconds

INSTRUCTIONS = (
    "You get pages of a book as rough Markdown, each behind a line <!-- page N -->. Return the same pages, behind the same "
    "lines, as clean Markdown: repair hyphenation, ligatures and spaces, drop page numbers and running heads, keep headings, "
    "lists, tables, links and notes. Change no word and add nothing."
)
#: How pages are told apart, in what is sent and in what comes back.
PAGE_MARK = re.compile(r"<!-- page (\d+) -->\n?")
#: Our own mistakes, which another attempt would repeat.
_OURS = {400, 401, 403, 404, 413, 422}

#: Told whenever another page has come: its number.
Heard = Callable[[int], None]


class Incomplete(Exception):
    """The answer ended before the last page."""


def extract(
    settings: Settings, document: str, pages: Sequence[str], first: int, idempotency: str, heard: Heard
) -> dict[str, Any]:
    """Have pages, numbered from `first`, written as clean Markdown. One call, which is paid for."""
    text = "\n".join(f"<!-- page {n} -->\n{page}" for n, page in enumerate(pages, start=first))
    parts: list[str] = []
    usage: dict[str, Any] = {}
    ending = None
    seen = 0
    for event in _events(settings, document, text, idempotency):
        usage = event.get("usage") or usage
        for choice in event.get("choices", ())[:1]:
            content = choice.get("delta", {}).get("content")
            ending = choice.get("finish_reason") or ending
            if content:
                parts.append(content)
                seen = max([seen, *(int(number) for number in PAGE_MARK.findall(content))])
                heard(seen)
    if ending == "length":
        raise Permanent(
            f"the answer is longer than the model may write: set DOCUMENTS_PAGES_PER_CALL below {len(pages)}"
        )
    if ending != "stop":
        raise Incomplete(f"the answer broke off on page {seen} of {first + len(pages) - 1}")
    cost = usage.get("cost")
    answered = [page.strip() for page in PAGE_MARK.split("".join(parts))[2::2]]
    return {"pages": answered, "cost": settings.price if cost is None else str(cost)}


def _events(settings: Settings, document: str, text: str, idempotency: str) -> Iterator[dict[str, Any]]:
    """The parts of the answer, as they come."""
    body = {
        "model": settings.model_name,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "messages": [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": text}],
    }
    headers = {
        "Content-Type": "application/json",
        "Authorization": f"Bearer {settings.model_key}",
        "Idempotency-Key": idempotency,
        "X-Document": document.encode("ascii", "backslashreplace").decode(),
    }
    request = urllib.request.Request(f"{settings.model_url}/chat/completions", json.dumps(body).encode(), headers)
    timeout = seconds(settings.call_timeout, what="DOCUMENTS_CALL_TIMEOUT")
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            for line in answer:
                data = line.removeprefix(b"data:").strip()
                if line.startswith(b"data:") and data != b"[DONE]":
                    yield json.loads(data)
    except urllib.error.HTTPError as error:
        said = error.read(500).decode(errors="replace")
        if error.code in _OURS:
            raise Permanent(f"{settings.model_url} refuses with {error.code}: {said}") from None
        # What remains is for holdfast to read: 429 and 503 with their Retry-After, 402, and all that may pass.
        raise


def joined(pages: Sequence[str]) -> str:
    """The pages as one text; a sentence that runs over the end of a page stays one."""
    text = ""
    for page in filter(None, pages):
        runs_on = text and text[-1].isalpha() and page[0].islower()
        text += (" " if runs_on else "\n\n" if text else "") + page
    return text
