"""The client of the paid model: sends pages, and gets Markdown back as it is written.

Any server that speaks the chat-completions protocol will do; DOCUMENTS_MODEL_URL and DOCUMENTS_MODEL_KEY say which.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
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
#: Called whenever another page has come: its number, of how many, and a line about it.
Progress = Callable[[int, int, str], None]


class Refused(Exception):
    """An error reply: holdfast reads from its status, headers and body what it means, and how long to wait."""

    def __init__(self, reply: urllib.error.HTTPError) -> None:
        super().__init__(f"the model refuses with {reply.code}")
        self.status_code, self.headers, self.body = reply.code, reply.headers, reply.read(10_000)


@dataclass(frozen=True)
class Client:
    """For `ctx.call`: the chunks of an answer as they come, and errors as they are."""

    settings: Settings

    def extract(
        self, pages: Sequence[str], first: int, total: int, document: str, idempotency: str, progress: Progress
    ) -> Iterator[dict[str, Any]]:
        """Have pages, numbered from `first`, written as clean Markdown. One call, which is paid for."""
        text = "\n".join(f"<!-- page {n} -->\n{page}" for n, page in enumerate(pages, start=first))
        body = {
            "model": self.settings.model_name,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0,
            "messages": [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": text}],
        }
        headers = {
            "Content-Type": "application/json",
            "Authorization": f"Bearer {self.settings.model_key}",
            "Idempotency-Key": idempotency,
            "X-Document": document.encode("ascii", "backslashreplace").decode(),
        }
        request = urllib.request.Request(
            f"{self.settings.model_url}/chat/completions", json.dumps(body).encode(), headers
        )
        timeout = seconds(self.settings.call_timeout, what="DOCUMENTS_CALL_TIMEOUT")
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                for line in answer:
                    for number in PAGE_MARK.findall(line.decode(errors="replace")):
                        progress(int(number), total, f"page {number} of {total}")
                    data = line.removeprefix(b"data:").strip()
                    if line.startswith(b"data:") and data != b"[DONE]":
                        yield json.loads(data)
        except urllib.error.HTTPError as reply:
            raise Refused(reply) from None


def pages_of(answer: dict[str, Any]) -> list[str]:
    """The pages in a whole answer."""
    [choice] = answer["choices"]
    if choice["finish_reason"] != "stop":
        raise Permanent(
            f"the model stopped writing because of {choice['finish_reason']}: set DOCUMENTS_PAGES_PER_CALL to fewer"
        )
    return [page.strip() for page in PAGE_MARK.split(choice["message"]["content"])[2::2]]


def joined(pages: Sequence[str]) -> str:
    """The pages as one text; a sentence that runs over the end of a page stays one."""
    text = ""
    for page in filter(None, pages):
        runs_on = text and text[-1].isalpha() and page[0].islower()
        text += (" " if runs_on else "\n\n" if text else "") + page
    return text
