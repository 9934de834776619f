"""Entries of a media channel or playlist, listed by yt-dlp; nothing is downloaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import msgspec

from holdfast.model import urls
from holdfast.sources import readers
from holdfast.sources.addresses import places_of
from holdfast.sources.contract import Found, Kept, Reader, Source, SourceFailed
from holdfast.sources.subprocess_ import lines, program

SECONDS = 300.0
_KEPT = ("id", "title", "duration", "channel", "uploader", "timestamp", "upload_date", "live_status")


class Media(Source):
    """A channel, as the program yt-dlp sees it."""

    kind = "media"
    options: ClassVar[Mapping[str, Reader]] = {
        "media": urls.read_url, "newest": readers.whole_number, "program": readers.text, "allow_private": readers.flag,
        "program_timeout": readers.some_time,
    }  # fmt: skip

    def look(self, memory: dict[str, Any]) -> Iterator[Found | Kept]:
        url = self.settings["media"]
        parts = urls.split(url)
        # The program makes its own connections; this only keeps an address from being written here by mistake.
        places_of(
            urls.host_of(parts),
            urls.port_of(parts),
            allow_private=self.settings.get("allow_private", False),
            seconds=10,
        )
        command = [
            program(self.settings.get("program", "yt-dlp"), "install it with `pip install yt-dlp`, or set program"),
            "--ignore-config", "--no-cache-dir", "--no-warnings", "--flat-playlist", "--dump-json",
        ]  # fmt: skip
        if "newest" in self.settings:
            command += ["--playlist-end", str(self.settings["newest"])]
            self.missed = True
        for line in lines(
            [*command, "--", url], seconds=self.settings.get("program_timeout", SECONDS), check=self.check
        ):
            if line.strip() and (found := self._entry(line)):
                yield found

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
