"""URLs: normalised, so that they can be keys, and shown without what may be secret in them."""

from __future__ import annotations

import re
from ipaddress import IPv6Address
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit, urlunsplit

from holdfast.errors import UsageError
from holdfast.model.found_items import short_hash
from holdfast.model.item import MAX_KEY_BYTES
from holdfast.model.redact import ESCAPE, credentials, without_credentials

_PORTS = {"http": 80, "https": 443}
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_STRAY = re.compile(r"%(?![0-9A-Fa-f]{2})")
_NO_HOST = re.compile(r"[\x00-\x20\x7f/?#@:\[\]\\%<>^|]")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


def read_url(value: Any, what: str) -> str:
    """Check an http or https URL as a person wrote it."""
    if not isinstance(value, str):
        raise UsageError(f"{what}: {value!r} is not a text")
    try:
        split(value)
    except ValueError as error:
        raise UsageError(f"{what}: {shown(value)!r}: {error}") from None
    return value


def split(url: str) -> SplitResult:
    """The parts of an http or https URL; ValueError says what is wrong with it."""
    if any(char in secret for secret in credentials(url) for char in "/?#"):
        raise ValueError(ESCAPE)
    try:
        parts = urlsplit(url.strip())
        is_wrong = parts.port == 0
    except ValueError:
        # Its message may contain part of a password.
        is_wrong = True
    if is_wrong:
        raise ValueError("not a URL: its host or its port cannot be read")
    if parts.scheme not in _PORTS:
        raise ValueError("only http:// and https:// addresses are read")
    if not parts.hostname:
        raise ValueError("it names no host")
    if any(char.isspace() or ord(char) < 32 or ord(char) == 127 for char in parts.netloc):
        raise ValueError("its host has characters that no host has")
    if any("\ud800" <= char <= "\udfff" for char in url):
        raise ValueError("it has half a character in it")
    return parts


def port_of(parts: SplitResult) -> int:
    return parts.port or _PORTS[parts.scheme]


def origin(parts: SplitResult) -> tuple[str, str, int]:
    """Scheme, host and port."""
    return parts.scheme, host_of(parts), port_of(parts)


def host_of(parts: SplitResult) -> str:
    """The host to connect to: in lower case, in ASCII, without escapes; an IPv6 address in its shortest form."""
    host = (parts.hostname or "").rstrip(".")
    try:
        if ":" in host:
            return str(IPv6Address(host))
        host = unquote(host, errors="strict")
        if not host.isascii():
            host = host.encode("idna").decode()
    except ValueError:
        raise ValueError("its host is not a name that can be resolved") from None
    if not host or _NO_HOST.search(host):
        raise ValueError("its host has characters that no host has")
    return host.lower()


def target(parts: SplitResult) -> str:
    """The request target: path and query as they were written, with escapes where they are required."""
    path = quote(parts.path, safe="/:@!$&'()*+,;=~%") or "/"
    query = quote(parts.query, safe="/:@!$&'()*+,;=~%?")
    return f"{path}?{query}" if query else path


def normalise(url: str, *, fragment: bool = False) -> str:
    """One text for all ways to write the same URL, without user and password, and without its fragment unless asked for.
    ValueError if it is not a URL."""
    parts = split(url)
    host = host_of(parts)
    netloc = f"[{host}]" if ":" in host else host
    if port_of(parts) != _PORTS[parts.scheme]:
        netloc = f"{netloc}:{port_of(parts)}"
    path = _plain(parts.path, "/:@!$&'()*+,;=") or "/"
    # Exactly one slash at the beginning.
    path = f"/{_without_dots(path).lstrip('/')}"
    safe = "/:@!$&'()*+,;=?"
    end = _plain(parts.fragment, safe) if fragment else ""
    return urlunsplit((parts.scheme, netloc, path, _plain(parts.query, safe), end))


def joined(base: str, address: str) -> str | None:
    """The absolute form of an address in the document at `base`; None if there is none."""
    try:
        return urljoin(base, address.strip()) if address.strip() else None
    except ValueError:
        return None


def url_key(url: str, *, fragment: bool = True) -> str:
    """An http or https address as the key of an item, however it is written. ValueError if it is not one.

    The fragment may be all that tells two items apart, so it is kept by default.
    """
    return bounded_key(normalise(url, fragment=fragment))


def as_key(text: str) -> str:
    """A text as the key of an item: an address is normalised, anything else is left as it is."""
    if text.lstrip()[:4].lower() != "http":
        return text
    try:
        return url_key(text)
    except ValueError:
        return text


def bounded_key(text: str) -> str:
    """A text as a key. If it is too long, a hash replaces its end."""
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= MAX_KEY_BYTES:
        return text
    return f"{encoded[: MAX_KEY_BYTES - 33].decode('utf-8', 'ignore')}#{short_hash(text)}"


def shown(url: str) -> str:
    """For messages: without user, password, query and fragment, any of which may be secret."""
    bare = without_credentials(url)
    try:
        parts = urlsplit(bare)
        host = parts.hostname or ""
        port = f":{parts.port}" if parts.port else ""
        text = f"{parts.scheme}://{host}{port}{parts.path}" if parts.scheme and host else bare.partition("?")[0]
        if "@" in text and not host:
            text = text.rpartition("@")[2]
    except ValueError:
        text = bare.partition("?")[0].rpartition("@")[2]
    return "".join(char if char.isprintable() else "?" for char in text[:200])


def _without_dots(path: str) -> str:
    """The path without `.` and `..`; empty segments are kept."""
    steps: list[str] = []
    for step in (given := path.split("/")[1:]):
        if step == "..":
            del steps[-1:]
        elif step != ".":
            steps.append(step)
    return "/".join(["", *steps, *([""] if given[-1:] in (["."], [".."]) else [])])


def _plain(text: str, safe: str) -> str:
    """Escapes only where they are needed, in upper case."""

    def escape(found: re.Match[str]) -> str:
        char = chr(int(found[1], 16))
        return char if char in _UNRESERVED else f"%{found[1].upper()}"

    return _ESCAPE.sub(escape, quote(_STRAY.sub("%25", text), safe=f"{safe}%"))
