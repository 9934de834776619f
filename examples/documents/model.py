"""The client of the paid model: sends pages, and gets Markdown back as it is written.

Any server that speaks the chat-completions protocol will do; DOCUMENTS_MODEL_URL and DOCUMENTS_MODEL_KEY say which.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from openai import OpenAI

from examples.documents.settings import Settings
from holdfast import Permanent, seconds
from holdfast.providers import prepare

INSTRUCTIONS = (
    "You get pages of a book as rough Markdown, each behind a line <!-- page N -->. Return the same pages, behind the same "
    "lines, as clean Markdown: repair hyphenation, ligatures and spaces, drop page numbers and running heads, keep headings, "
    "lists, tables, links and notes. Change no word and add nothing."
)
#: How pages are told apart, in what is sent and in what comes back.
PAGE_MARK = re.compile(r"<!-- page (\d+) -->\n?")
#: Called whenever another page has come: its number, of how many, and a line about it.
Progress = Callable[[int, int, str], None]


class Client:
    """For `ctx.call`: the chunks of an answer as they come, and errors as they are."""

    def __init__(self, settings: Settings) -> None:
        timeout = seconds(settings.call_timeout, what="DOCUMENTS_CALL_TIMEOUT")
        self._client = prepare(OpenAI(base_url=settings.model_url, api_key=settings.model_key, timeout=timeout))
        self._model = settings.model_name

    def extract(
        self, pages: Sequence[str], first: int, total: int, document: str, idempotency: str, progress: Progress
    ) -> Iterator[Any]:
        """Have pages, numbered from `first`, written as clean Markdown. One call, which is paid for."""
        text = "\n".join(f"<!-- page {n} -->\n{page}" for n, page in enumerate(pages, start=first))
        escaped = document.encode("ascii", "backslashreplace").decode()
        for chunk in self._client.chat.completions.create(
            model=self._model,
            messages=[{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": text}],
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_headers={"Idempotency-Key": idempotency, "X-Document": escaped},
        ):
            written = "".join(choice.delta.content or "" for choice in chunk.choices)
            for number in PAGE_MARK.findall(written):
                progress(int(number), total, f"page {number} of {total}")
            yield chunk


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
