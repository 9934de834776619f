"""Secrets, taken out of text before it is stored, logged or shown.

Two ways to know one: by its looks or its place (a password in an address, an Authorization header, an API key beside its
name, the shapes of well-known keys, private key blocks), and by having been told (`remember_secret`). Ordinary text comes
back as it is, and what was masked stays as it is when it is masked again. Nothing here raises.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import quote, unquote, urlsplit

MASK = "***"
_VARIABLE = re.compile(r"\$\{(?:secret:)?[A-Za-z_][A-Za-z0-9_]*\}")

#: What is shorter would mask parts of ordinary words.
SHORTEST = 6
#: How many secrets are remembered at most: the newest.
MOST_REMEMBERED = 256
#: Only the ends of a longer text are kept.
LONGEST_TEXT = 1_000_000
#: Values nested deeper than this are masked as a whole.
MAX_DEPTH = 100


@dataclass(frozen=True)
class _Kind:
    """One way to know a secret. The pattern keeps what its groups hold and masks the rest of what it matches; it is not
    asked about a text that has none of the hints, in small letters."""

    hints: tuple[str, ...]
    text: str

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        # When it is first needed: all of them together would keep every command waiting at its start.
        return re.compile(self.text)


# A backslash goes with what it escapes. A quote may itself be escaped: JSON within a text.
_QUOTE = r"(?:\\?[\"'])"
_QUOTED = (
    r"(?:(b?\"{scheme})(?:[^\"\\\r\n]|\\.){{{least},8192}}|(b?'{scheme})(?:[^'\\\r\n]|\\.){{{least},8192}}"
    r"|(\\[\"']{scheme})(?:\\{{3}}.|(?!\\[\"']).){{{least},8192}})"
)
#: Up to a space, or to the next pair.
_BARE = r"(?:[^\s\"'<>\\&;,]|\\[^\"'\s]|[&;,](?!\s?[\w.-]+=))"
_WORD = r"\(?(?:[A-Z]?[a-z'-]+|[A-Z]+)[.,;:!?)]*(?:\s|$)"
_SCHEME = r"(?i:(?:bearer|basic|token|digest|apikey)\s{1,3})?"
#: With a figure in it, or longer than the name of any exception.
_LOOKS_SECRET = r"(?:(?=[\w.+/=~-]{0,400}[\d=])[\w.+/=~-]{8,}|(?=[\w.+/=~-]{0,400}[a-z][A-Z])[\w.+/=~-]{32,})"

#: After a name that means a secret wherever it stands: anything but the next word of a sentence.
_SURELY = (
    rf"(?:({_QUOTE}?\]?\s{{0,3}}(?:=>?|:)\s{{0,3}}){_QUOTED.format(scheme=_SCHEME, least=1)}"
    rf"|(\s?=\s?{_SCHEME}){_BARE}{{1,8192}}"
    rf"|({_QUOTE}?\s{{0,3}}:\s{{0,3}}{_SCHEME})(?!{_WORD}){_BARE}{{4,8192}})"
)
#: After a name that is an ordinary word as well: only where it is plainly a pair, or looks like a secret.
_PERHAPS = (
    rf"(?:({_QUOTE}\]?\s{{0,3}}(?:=>?|:)\s{{0,3}}|\s{{0,3}}=\s{{0,3}}){_QUOTED.format(scheme='', least=4)}"
    rf"|(=){_BARE}{{4,8192}}|({_QUOTE}?\s{{0,3}}[:=]\s{{0,3}}){_LOOKS_SECRET})"
)

_KEYS = ("api", "access", "secret", "private", "account", "signing", "encryption", "subscription")
_TOKENS = ("access", "refresh", "auth", "bearer", "session", "security", "id")


def _any_case(word: str) -> str:
    # Not a flag: a pattern that begins with a set of characters is searched for much faster.
    return "".join(f"[{char.lower()}{char.upper()}]" if char.isalpha() else re.escape(char) for char in word)


def _after(words: tuple[str, ...], last: str) -> str:
    """`last` was just read; one of these words is before it, with or without a joint."""
    return "(?i:" + "|".join(rf"(?<={word}{joint}{last})" for word in words for joint in ("", "[_-]")) + ")"


def _pairs(word: str, rest: str) -> str:
    return f"({_any_case(word)}){rest}"


_SHAPES = (
    r"sk-(?=[A-Za-z_-]{0,40}\d)(?:(?:live|test|proj|ant)[\w-]{4,}|[\w-]{12,})", r"[srp]k_(?:live|test)_\w{8,}",
    r"gh[pousr]_[A-Za-z0-9]{16,}", r"github_pat_\w{20,}", r"glpat-[\w-]{16,}", r"(?:AKIA|ASIA)[0-9A-Z]{16}",
    r"AIza[\w-]{20,}", r"ya29\.[\w-]{20,}", r"xox[abeoprs]-[A-Za-z0-9-]{10,}", r"xapp-[A-Za-z0-9-]{10,}",
    r"hf_[A-Za-z0-9]{20,}", r"npm_[A-Za-z0-9]{30,}", r"pypi-[\w-]{30,}", r"SG\.[\w-]{16,}\.[\w-]{16,}",
    r"eyJ[\w-]{5,}\.[\w-]{5,}(?:\.[\w-]*)?",
)  # fmt: skip

_KINDS = (
    _Kind(
        ("-----begin",),
        r"-----BEGIN[A-Z0-9 ]{0,40}PRIVATE KEY-----[\s\S]*?(?:-----END[A-Z0-9 ]{0,40}PRIVATE KEY-----|\Z)",
    ),
    # scheme://user:password@host, also with an @ or a / in the password; but not host:port/path@x
    _Kind(
        ("://",),
        r"(://[^\s:/?#@\[\"'<>]{0,256}:)(?:[^\s/?#\"'<>]{1,512}(?=@)|(?!\d{1,5}[/?#])[^\s@\"'<>]{1,512}(?=@))",
    ),
    _Kind(("passw",), _pairs("passw", rf"((?i:or)?[dD]){_SURELY}")),
    _Kind(("passphrase",), _pairs("passphrase", _SURELY)),
    _Kind(("pwd",), _pairs("pwd", rf"(?<![A-Za-z]...)(?!\W{{1,4}}/){_SURELY}")),
    _Kind(("key",), _pairs("key", rf"{_after(_KEYS, 'key')}((?i:[_-]?id)?){_SURELY}")),
    _Kind(
        ("token",), _pairs("token", rf"(?:{_after(_TOKENS, 'token')}{_SURELY}|(?<![A-Za-z0-9].....){_PERHAPS})")
    ),
    _Kind(("secret",), _pairs("secret", rf"(?:(?i:(?<=client[_-]secret)){_SURELY}|(?<![A-Za-z0-9]......){_PERHAPS})")),
    _Kind(("credential",), _pairs("credential", rf"([sS]?){_PERHAPS}")),
    _Kind(("authorization",), _pairs("authorization", _SURELY)),
    _Kind(("signature",), _pairs("signature", rf"(?<![A-Za-z].........){_SURELY}")),
    _Kind(
        ("key=", "sig=", "code=", "credential="),
        r"([?&](?:key|sig|code|(?i:x-amz-credential))=)[^\s&\"'<>]{16,8192}",
    ),
    _Kind(
        ("cookie",),
        _pairs("cookie", rf"({_QUOTE}?\s{{0,3}}:\s{{0,3}}{_QUOTE}?)(?=[\w.%-]{{1,100}}=)[^\r\n\"'\\]{{1,8192}}"),
    ),
    _Kind(("bearer",), _pairs("bearer", rf"(\s{{1,3}}){_LOOKS_SECRET}")),
    _Kind(("basic",), _pairs("basic", rf"(\s{{1,3}}){_LOOKS_SECRET}")),
    _Kind(
        ("sk-", "k_live_", "k_test_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "akia", "asia",
         "aiza", "ya29.", "xox", "xapp-", "hf_", "npm_", "pypi-", "sg.", "eyj"),
        rf"(?<![A-Za-z0-9])(?:{'|'.join(_SHAPES)})",
    ),
)  # fmt: skip

#: Names in a JSON object whose value is masked, whatever it is.
_NAME = _Kind(
    ("passw", "passphrase", "key", "secret", "token", "credential", "pwd", "authorization", "cookie"),
    rf"(?is).*(?:passw(?:or)?d|passphrase|(?:{'|'.join(_KEYS)})[_-]?key(?:[_-]?id)?|client[_-]?secret"
    rf"|(?:{'|'.join(_TOKENS)})[_-]?token)|(?:.*[^a-z0-9])?(?:token|secret|credentials?|pwd|authorization|cookie)",
)


#: The same of variables of the environment, whose names are shorter; and a run of characters that no person would write.
_VARIABLE_NAME = re.compile(r"(?i)(?:.*_)?(?:key|pass|auth|pat|sig|signature|cookies)")
_OPAQUE = re.compile(r"(?=\w*[0-9])(?=\w*[A-Za-z])\w{20,}")


class _Remembered:
    """Values that were told to be secret, in every way they are usually written."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, None] = {}
        #: Longest first: one may be part of another.
        self.forms: tuple[str, ...] = ()

    def add(self, value: str) -> None:
        with self._lock:
            self._values.pop(value, None)
            self._values[value] = None
            while len(self._values) > MOST_REMEMBERED:
                del self._values[next(iter(self._values))]
            forms = {form for one in self._values for form in _written(one)}
            self.forms = tuple(sorted(forms, key=lambda form: (-len(form), form)))

    def forget(self) -> None:
        with self._lock:
            self._values.clear()
            self.forms = ()


_remembered = _Remembered()


def remember_secret(value: object) -> None:
    """Mask this value wherever it occurs from now on; what is too short to be told from ordinary text is left."""
    if isinstance(value, str) and len(value.strip()) >= SHORTEST:
        _remembered.add(value.strip())


def remember_password_of(url: object) -> None:
    """Mask the password of an address from now on, if it has one."""
    try:
        password = urlsplit(url).password if isinstance(url, str) else None
    except ValueError:
        return
    remember_secret(password)


def forget_secrets() -> None:
    """Forget every remembered value."""
    _remembered.forget()


def redact(text: str) -> str:
    """The text with `***` in place of every secret in it."""
    try:
        if len(text) > LONGEST_TEXT:
            half = LONGEST_TEXT // 2
            text = f"{text[:half]}\n[... {len(text) - 2 * half:,} characters left out ...]\n{text[-half:]}"
        for form in _remembered.forms:
            if form in text:
                text = text.replace(form, MASK)
        small = text.lower()
        for kind in _KINDS:
            if any(hint in small for hint in kind.hints):
                text = kind.pattern.sub(_masked, text)
        return text
    except Exception:
        return f"{MASK} (this text could not be searched for secrets)"


def redact_value(value: Any, *, depth: int = 0) -> Any:
    """The same for a JSON value: texts are redacted, and what bears the name of a secret is masked. To redact the text of a
    JSON object instead may leave no JSON."""
    if isinstance(value, str):
        return redact(value)
    if depth > MAX_DEPTH:
        return MASK
    if isinstance(value, dict):
        return {
            redact(name) if isinstance(name, str) else name:
            MASK if isinstance(inner, str) and inner and _is_secret(name) else redact_value(inner, depth=depth + 1)
            for name, inner in value.items()
        }  # fmt: skip
    if isinstance(value, (list, tuple)):
        return [redact_value(inner, depth=depth + 1) for inner in value]
    return value


def looks_secret(name: str, value: str) -> bool:
    """Whether a variable of the environment holds a secret, by its name or by its value."""
    named = _is_secret(name) or _VARIABLE_NAME.fullmatch(name) is not None
    return named or redact(value) != value or _OPAQUE.search(value) is not None


class RedactingFilter(logging.Filter):
    """Takes secrets out of log records. Add it to handlers: a logger's own filter does not see what comes from below it."""

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            said = record.getMessage()
        except Exception:
            said = f"{record.msg} (its arguments do not fit)"
            record.msg, record.args = said, ()
        clean = redact(said)
        if clean != said:
            record.msg, record.args = clean, ()
        if record.exc_info and record.exc_info[0] is not None and not record.exc_text:
            # Formatters take this text, if it is there, and do not make their own.
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = redact(record.exc_text)
        if record.stack_info:
            record.stack_info = redact(record.stack_info)
        return True


def _masked(found: re.Match[str]) -> str:
    kept = "".join(part for part in found.groups() if part)
    # The name of a variable, in a job file, is not what it stands for.
    return found[0] if _VARIABLE.fullmatch(found[0].removeprefix(kept)) else kept + MASK


def _is_secret(name: object) -> bool:
    if not isinstance(name, str) or len(name) > 200:
        return False
    small = name.lower()
    return any(hint in small for hint in _NAME.hints) and _NAME.pattern.fullmatch(name) is not None


def _written(value: str) -> set[str]:
    """A value as it is, as part of an address, of a JSON text and of a Python literal."""
    forms = {
        value, quote(value, safe=""), quote(value), unquote(value), repr(value)[1:-1],
        json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1],
    }  # fmt: skip
    return {form for form in forms if len(form) >= SHORTEST}
