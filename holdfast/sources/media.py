"""Entries of a media channel, a playlist or a search, listed by yt-dlp; nothing is downloaded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import msgspec

from holdfast.errors import UsageError
from holdfast.model import urls
from holdfast.runtime.allowed_addresses import HostRefused, places_of
from holdfast.sources import readers
from holdfast.sources.contract import Found, Kept, Reader, Source, SourceFailed
from holdfast.sources.subprocess_ import lines, program

SECONDS = 300.0
_KEPT = ("id", "title", "duration", "channel", "uploader", "timestamp", "upload_date", "live_status")


#: A search as yt-dlp writes it: where, how many results, and for what. One for `all` of them would not end.
_SEARCH = re.compile(r"[a-z]{2,10}search(?:date)?[0-9]{0,4}:\s*[^\s].*")


def _place(value: Any, what: str) -> str:
    """An address, or a search."""
    if isinstance(value, str) and not re.match(r"\s*[a-z]+://", value, re.IGNORECASE):
        if not _SEARCH.fullmatch(value) or not value.isprintable():
            raise UsageError(
                f"{what}: {value!r} is neither an http address nor a search like 'ytsearch20:harbour ferry'"
            )
        return readers.text(value, what)
    return urls.read_url(value, what)


class Media(Source):
    """A channel or a search, as yt-dlp lists it."""

    kind = "media"
    templates = ("media",)
    options: ClassVar[Mapping[str, Reader]] = {
        "media": _place,
        "newest": readers.whole_number,
        "program": readers.text,
        "allow_private": readers.flag,
        "program_timeout": readers.some_time,
    }

    def look(self, memory: dict[str, Any]) -> Iterator[Found | Kept]:
        place = self.settings["media"]
        if _SEARCH.fullmatch(place):
            # A search returns only the best results, not all.
            self.missed = True
        else:
            self._check_address(place)
        command = [
            program(self.settings.get("program", "yt-dlp"), "install it with `pip install yt-dlp`, or set program"),
            "--ignore-config",
            "--no-cache-dir",
            "--no-warnings",
            "--flat-playlist",
            "--dump-json",
        ]
        if "newest" in self.settings:
            command += ["--playlist-end", str(self.settings["newest"])]
            self.missed = True
        for line in lines(
            [*command, "--", place], seconds=self.settings.get("program_timeout", SECONDS), check=self.check
        ):
            if line.strip() and (found := self._entry(line)):
                yield found

    def _check_address(self, url: str) -> None:
        """yt-dlp makes its own connections; this only refuses addresses written by mistake."""
        parts, private = urls.split(url), self.settings.get("allow_private", False)
        try:
            places_of(urls.host_of(parts), urls.port_of(parts), allow_private=private, seconds=10)
        except HostRefused as refused:
            raise SourceFailed(f"{urls.host_of(parts)} {refused}") from None

    def _entry(self, line: bytes) -> Found | None:
        try:
            given = msgspec.json.decode(line)
            if not isinstance(given, dict) or not isinstance(given.get("id"), str) or not given["id"]:
                raise SourceFailed("an entry without an id")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, SourceFailed) as error:
            self.skip(f"yt-dlp wrote {str(error)[:200]}")
            return None
        data = {name: given[name] for name in _KEPT if given.get(name) is not None}
        address = given.get("webpage_url") or given.get("url")
        if isinstance(address, str):
            data["url"] = address
        site = str(given.get("ie_key") or given.get("extractor_key") or given.get("extractor") or "media").lower()
        return Found(f"{site}:{given['id']}", data)
