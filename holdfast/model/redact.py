"""Secrets, taken out of text before it is stored, logged or shown.

Two ways to know one: by its looks or its place (a password in an address, an Authorization header, an API key beside its
name, the shapes of well-known keys, private key blocks), and by having been told (`remember_secret`). Ordinary text comes
back as it is, and what was masked stays as it is when it is masked again. The time grows with the length of the text and
with nothing else, whoever wrote it. Nothing here raises.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import quote, unquote

MASK = "***"
_VARIABLE = re.compile(r"\$\{(?:secret:)?[A-Za-z_][A-Za-z0-9_]*\}")

#: Shorter values would mask parts of ordinary words.
SHORTEST = 6
#: How many secrets are remembered; the newest stay.
MOST_REMEMBERED = 256
#: Only the ends of a longer text are kept.
LONGEST_TEXT = 1_000_000
#: Only private keys are recognised if they are longer.
LONGEST_SECRET = 8192
#: Where a long text is cut, half a secret may be left, which looks like ordinary text.
_SEAM = 512
#: A masked text may look like another secret. One that still changes after this many rounds was crafted.
_ROUNDS = 5
#: Values nested deeper than this are masked as a whole.
MAX_DEPTH = 100

Replace = Callable[[re.Match[str]], str]


def _masked(found: re.Match[str]) -> str:
    """What the groups hold, and the mask; all of it if it is no secret after all."""
    kept = "".join(part for part in found.groups() if part)
    return found[0] if _is_harmless(found[0].removeprefix(kept)) else kept + MASK


def _masked_unless_count(found: re.Match[str]) -> str:
    """The same where a small number is more likely a number of tokens."""
    return found[0] if _COUNT.search(found[0]) else _masked(found)


def _masked_option(found: re.Match[str]) -> str:
    """The value of a command line option: only that of a token may be a number of tokens."""
    return _masked_unless_count(found) if found[1].endswith("token") else _masked(found)


_HARMLESS = frozenset({"", "none", "null", "nil", "undefined", "true", "false", "unset", MASK})
_COUNT = re.compile(r"(?<=[\s=:])[\[{(]{0,2}\d{1,7}[)\]},.;]{0,3}\Z")


def _is_harmless(secret: str) -> bool:
    # The name of a variable, in a job file, is not what it stands for.
    return _VARIABLE.fullmatch(secret) is not None or (
        len(secret) < 32 and secret.strip("\"'\\()[]{},.;:&").lower() in _HARMLESS
    )


@dataclass(frozen=True)
class _Kind:
    """One way to know a secret. The pattern keeps what its groups hold and masks the rest of what it matches; it is not
    asked about a text that has none of the hints, in small letters.

    No pattern may read on from many places over the same stretch of text: repetition is bounded, or ends where the next
    match can begin at the earliest."""

    hints: tuple[str, ...]
    text: str
    replace: Replace = _masked

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        # Compiled when first needed: compiling all of them would delay the start of every command.
        return re.compile(self.text)

    def may_be_in(self, small: str) -> bool:
        for hint in self.hints:  # noqa: SIM110 (any() takes three times as long, and this is asked of every event)
            if hint in small:
                return True
        return False


# A backslash goes with what it escapes. A quote may itself be escaped: JSON within a text.
_QUOTE = r"(?:\\?[\"'])"
_QUOTED = (
    r"(?:([bBrRuU]{{0,2}}\"{scheme})(?:[^\"\\\r\n]|\\.){{{least},8192}}|([bBrRuU]{{0,2}}'{scheme})(?:[^'\\\r\n]|\\.){{{least},8192}}"
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
#: Tokens that open nothing: where a list goes on, and the special ones of a vocabulary.
_OPEN_TOKENS = ("page", "next", "continuation", "eos", "bos", "pad", "unk")


def _any_case(word: str) -> str:
    # Not a flag: a pattern that begins with a set of characters is searched for much faster.
    return "".join(f"[{char.lower()}{char.upper()}]" if char.isalpha() else re.escape(char) for char in word)


def _after(words: tuple[str, ...], last: str) -> str:
    """`last` was just read; one of these words is before it, with or without a joint."""
    return "(?i:" + "|".join(rf"(?<={word}{joint}{last})" for word in words for joint in ("", "[_-]")) + ")"


def _not_after(words: tuple[str, ...], last: str) -> str:
    return "(?i:" + "".join(rf"(?<!{word}{joint}{last})" for word in words for joint in ("", "[_-]")) + ")"


def _pairs(word: str, rest: str) -> str:
    return f"({_any_case(word)}){rest}"


#: What to do about an address that is ambiguous.
ESCAPE = "its user or password has an @, /, ? or # in it; write these as %40, %2F, %3F and %23"

# Addresses ------------------------------------------------------------------------------------------------------------

_WEB = re.compile(r"(?i)(?:https?|wss?)\Z")
_AUTHORITY_END = re.compile(r"[/?#]")
_QUERY = re.compile(r"\?[\w.-]+=")
_PORT = re.compile(r"[^:]*:\d{1,5}")
#: A run of characters that no person would type.
_OPAQUE = re.compile(r"(?=\w*[0-9])(?=\w*[A-Za-z])\w{20,}")


def credentials(address: str) -> tuple[str, ...]:
    """The secrets before the @ of an address: its password, and its user if that looks like a token."""
    scheme, joint, rest = address.partition("://")
    user, password, _ = _user_and_password(rest, _WEB.search(scheme) is not None) if joint else ("", None, "")
    return tuple(one for one in (password, user if _OPAQUE.fullmatch(user) else None) if one)


def without_credentials(address: str) -> str:
    """The address without user and password, even if they are malformed."""
    scheme, joint, rest = address.partition("://")
    return f"{scheme}{joint}{_user_and_password(rest, _WEB.search(scheme) is not None)[2].removeprefix('@')}"


def is_ambiguous(address: str) -> bool:
    """Whether a character in the user or the password of a database's address ends them too early: a driver takes the rest
    for a host, a port or a name, and shows it."""
    rest = address.partition("://")[2]
    query = _QUERY.search(rest)
    place = rest[: query.start()] if query else rest
    before = place[: max(0, place.rfind("@"))]
    return not rest.startswith("/") and ("#" in place or any(char in before for char in "@/?"))


def _masked_addresses(found: re.Match[str]) -> str:
    """A run of text that begins with `://`, in which there may be several addresses."""
    before, shown = found.string[max(0, found.start() - 5) : found.start()], [""]
    for piece in found[0].split("://")[1:]:
        user, password, rest = _user_and_password(piece, _WEB.search(before) is not None)
        if user and not _is_harmless(user) and _is_key(user, password, before):
            user = MASK
        if password and not _is_harmless(password):
            password = MASK
        shown.append(f"{user}{'' if password is None else ':'}{password or ''}{rest}")
        before = piece[-5:]
    return "://".join(shown)


def _user_and_password(piece: str, is_web: bool) -> tuple[str, str | None, str]:
    """What stands before the @ that ends them, and the rest. Where a password may have been written with an @, a / or a #
    as it is, it ends at the last @ that can be meant; but a port, and the path of a web address, are none."""
    found = _AUTHORITY_END.search(piece)
    end = found.start() if found else len(piece)
    at = piece.rfind("@", 0, end)
    has_password = ":" in piece[: end if at < 0 else at]
    if has_password and not (is_web and at >= 0):
        query = _QUERY.search(piece)
        last = piece.find("@", end) if is_web else piece.rfind("@", max(at, 0), query.start() if query else len(piece))
        is_port = piece.startswith("[") or (piece[end : end + 1] != "#" and _PORT.fullmatch(piece, 0, end))
        at = last if at >= 0 or not is_port else -1
    if at < 0:
        return "", None, piece
    user, joint, password = piece[:at].partition(":")
    return user, password if joint else None, piece[at:]


def _is_key(user: str, password: str | None, scheme: str) -> bool:
    """Whether the user part of an address is a credential."""
    if _OPAQUE.fullmatch(user):
        return True
    return user != "git" and _WEB.search(scheme) is not None and password in (None, "", "x-oauth-basic")


# Other places ---------------------------------------------------------------------------------------------------------


def _masked_basic(found: re.Match[str]) -> str:
    """The word after `basic`, if it is a user with a password, or looks like no word at all."""
    kept = f"{found[1]}{found[2]}"
    secret = found[0].removeprefix(kept)
    try:
        pair = base64.b64decode(secret + "=" * (-len(secret) % 4), validate=True).decode()
    except (binascii.Error, ValueError):
        pair = ""
    is_secret = (":" in pair and pair.isprintable()) or re.match(_LOOKS_SECRET, secret) is not None
    return kept + MASK if is_secret else found[0]


def _masked_within(text: str) -> str:
    """A text without the lists, objects and calls that stand under the name of a secret."""
    for names, is_secret in ((_WITHIN, _is_no_sentence), (_PERHAPS_WITHIN, _looks_like_a_secret)):
        shown, at, end = [], 0, 0
        for found in names.pattern.finditer(text):
            # Nested ones were handled with the outer one.
            if found.start() >= end:
                end = _closing(text, found.end())
                inside = text[found.end() : end]
                if not _is_harmless(inside) and is_secret(found, inside):
                    shown += [text[at : found.end()], MASK]
                    at = end
        text = "".join(shown) + text[at:] if shown else text
    return text


def _is_no_sentence(found: re.Match[str], inside: str) -> bool:
    """What stands in brackets after a name that always means a secret, unless it is a remark: `password: (see below)`."""
    return found[1] != ":" or _has_quote(inside) or _BEGINS_SENTENCE.match(inside) is None


def _looks_like_a_secret(found: re.Match[str], inside: str) -> bool:
    """The same after a name that is an ordinary word as well. Without a quote it is part of a sentence, `token: [see below]`,
    or counts, unless it is plainly the value of a setting, or there is a value in it that looks like a secret."""
    if _has_quote(inside) or (found[0].endswith("=") and inside[0] in "[{(" and _LETTERS.search(inside)):
        return True
    return any(any(map(str.isdigit, value)) and any(map(str.isalpha, value)) for value in _VALUE.findall(inside))


def _has_quote(text: str) -> bool:
    return '"' in text or "'" in text


def _masked_lines(found: re.Match[str]) -> str:
    """A list of YAML under the name of a secret. One of sentences, or of ordinary words only, is part of a text."""
    form = _NO_WORD if _SURE_LIST.match(found[1]) else _SECRET_LINE
    items = (line.strip().removeprefix("-").strip() for line in found[3].splitlines())
    is_secret = any(form.fullmatch(item) and not _is_harmless(item) for item in items)
    return f"{found[1]}{found[2]}{MASK}" if is_secret else found[0]


def _closing(text: str, begin: int) -> int:
    """Where the bracket that opens here is closed; if it is not, as far as a secret may reach."""
    depth = 0
    for found in _BRACKETS.finditer(text, begin, begin + LONGEST_SECRET):
        depth += 1 if found[0] in "[{(" else -1 if found[0] in "]})" else 0
        if not depth:
            return found.end()
    return min(len(text), begin + LONGEST_SECRET)


# The kinds ------------------------------------------------------------------------------------------------------------

_SHAPES = (
    r"sk-(?=[A-Za-z_-]{0,40}\d)(?:(?:live|test|proj|ant)[\w-]{4,}|[\w-]{12,})",
    r"[srp]k_(?:live|test)_\w{8,}",
    r"gh[pousr]_[A-Za-z0-9]{16,}",
    r"github_pat_\w{20,}",
    r"glpat-[\w-]{16,}",
    r"(?:AKIA|ASIA)[0-9A-Z]{16}",
    r"AIza[\w-]{20,}",
    r"ya29\.[\w-]{20,}",
    r"xox[abeoprs]-[A-Za-z0-9-]{10,}",
    r"xapp-[A-Za-z0-9-]{10,}",
    r"hf_[A-Za-z0-9]{20,}",
    r"npm_[A-Za-z0-9]{30,}",
    r"pypi-[\w-]{30,}",
    r"SG\.[\w-]{16,}\.[\w-]{16,}",
    r"gsk_[A-Za-z0-9]{16,}",
    r"r8_[A-Za-z0-9]{16,}",
    r"do[opr]_v1_[a-f0-9]{32,}",
    r"xai-[A-Za-z0-9]{20,}",
    r"pplx-[A-Za-z0-9]{20,}",
    r"nvapi-[\w-]{20,}",
    r"whsec_[A-Za-z0-9+/=]{16,}",
    r"shp(?:at|ca|pa|ss)_[a-fA-F0-9]{16,}",
    r"hvs\.[\w-]{20,}",
    r"dckr_pat_[\w-]{16,}",
    # Not behind a joint: of a long run of them, only the first is where one can begin.
    r"(?<![_-])eyJ[\w-]{5,}\.[\w-]{5,}(?:\.[\w-]*)?",
)

_SECRET_FLAG = r"(?:pass(?:word|wd|phrase)?|pwd?|token|secret|otp|(?:api|access|secret|private)-?key)"
#: Between an option and its value: in a command line, or in a list of arguments.
_NEXT = rf"(?:\s{{1,3}}|=|{_QUOTE},\s{{0,3}})"
#: What begins an element of a list in YAML.
_DASH = r"[ \t]{0,60}-[ \t]{1,8}"
#: Words that go on with a sentence about an option.
_PROSE = r"(?:is|was|are|and|or|has|must|may|can(?:not)?|needs?|requires?|expects?|takes?|to|in|for|not|with|from|if)\b"

_KINDS = (
    _Kind(
        ("private key-----",),
        r"-----BEGIN[A-Z0-9 ]{0,40}PRIVATE KEY-----[\s\S]*?(?:-----END[A-Z0-9 ]{0,40}PRIVATE KEY-----|\Z)"
        # Of a text that was cut there may be nothing but the end of one.
        r"|\A[A-Za-z0-9+/=\s\\]+-----END[A-Z0-9 ]{0,40}PRIVATE KEY-----",
    ),
    _Kind(("://",), r"://[^\s\"'<>]+", _masked_addresses),
    _Kind(("slack.com/",), r"(hooks\.slack(?:-gov)?\.com/(?:services|workflows|triggers)/)[\w/%-]+"),
    _Kind(("/webhooks/",), r"(/api/(?:v\d{1,3}/)?webhooks/\d{1,30}/)[\w%-]+"),
    _Kind(("webhook.office.com/",), r"(webhook\.office\.com/webhookb2/)[\w@/%-]+"),
    _Kind(("bot",), r"([bB]ot)\d{5,20}:[\w-]{20,}"),
    _Kind(
        ("password", "passphrase", "key", "secret", "token", "credentials"),
        rf"((?i:passwords?|passphrases?|(?:{'|'.join(_KEYS)})[_-]?keys?"
        rf"|(?<![a-z])(?:secrets?|token{_not_after(_OPEN_TOKENS, 'token')}s?|credentials)){_QUOTE}?:)"
        rf"([ \t]{{0,8}}\r?\n{_DASH})([^\r\n]{{1,8192}}(?:\r?\n{_DASH}[^\r\n]{{1,8192}})*)",
        _masked_lines,
    ),
    _Kind(("passw",), _pairs("passw", rf"((?i:or)?[dD]){_SURELY}")),
    _Kind(("passphrase",), _pairs("passphrase", _SURELY)),
    _Kind(("pass",), _pairs("pass", rf"(?<![A-Za-z]....){_PERHAPS}")),
    _Kind(("_pass",), r"(_PASS\s?:\s{1,3})(?=[^\s\"'\\]{0,40}[A-Za-z])(?=[^\s\"'\\]{0,40}\d)[^\s\"'\\]{4,8192}"),
    _Kind(("pwd",), _pairs("pwd", rf"(?<![A-Za-z]...)(?!\W{{1,4}}/){_SURELY}")),
    _Kind(("pw",), _pairs("pw", rf"(?<![A-Za-z]..){_PERHAPS}")),
    _Kind(("otp",), _pairs("otp", rf"(?<![A-Za-z]...){_SURELY}")),
    _Kind(("key",), _pairs("key", rf"{_after(_KEYS, 'key')}((?i:[_-]?id)?){_SURELY}")),
    _Kind(("token",), _pairs("token", _after(_TOKENS, "token") + _SURELY)),
    _Kind(
        ("token",),
        _pairs("token", rf"{_not_after(_OPEN_TOKENS, 'token')}(?<![A-Za-z0-9].....){_PERHAPS}"),
        _masked_unless_count,
    ),
    _Kind(("secret",), _pairs("secret", rf"(?:(?i:(?<=client[_-]secret)){_SURELY}|(?<![A-Za-z0-9]......){_PERHAPS})")),
    _Kind(("credential",), _pairs("credential", rf"([sS]?){_PERHAPS}")),
    _Kind(("authorization",), _pairs("authorization", _SURELY)),
    _Kind(("signature",), _pairs("signature", rf"(?<![A-Za-z].........){_SURELY}")),
    _Kind(
        ("key=", "sig=", "code=", "credential=", "auth="),
        r"([?&](?:(?:key|sig|code|(?i:x-amz-credential))=(?=[^\s&\"'<>]{16})|(?i:auth)=(?=[^\s&\"'<>]{4})))[^\s&\"'<>]{1,8192}",
    ),
    _Kind(
        ("--pass", "--pw", "-token", "-secret", "--otp", "key"),
        rf"((?<![\w-])--(?!{'|'.join(_OPEN_TOKENS)})[a-z0-9-]{{0,40}}?{_SECRET_FLAG})"
        rf"(?:({_NEXT}\")(?!-)[^\"\r\n]{{1,8192}}|({_NEXT}')(?!-)[^'\r\n]{{1,8192}}"
        rf"|({_NEXT}\\[\"'])(?!-)[^\\\r\n]{{1,8192}}|(\s{{1,3}}|=)(?!{_PROSE})[^\s\"'\\-][^\s\"']{{0,8192}})",
        _masked_option,
    ),
    _Kind(
        ("curl",),
        r"((?<![\w-])(?:-[A-Za-z]{0,8}[uU]|--(?:proxy-)?user(?=[\s=\"',])))"
        r"(?:([\s=\"',]{0,6}\"[^\s:\"']{1,256}:)[^\"\r\n]{1,8192}|([\s=\"',]{0,6}'[^\s:\"']{1,256}:)[^'\r\n]{1,8192}"
        r"|([\s=]{0,6}[^\s:\"']{1,256}:)[^\s\"']{1,8192})",
    ),
    _Kind(
        ("cookie",),
        _pairs("cookie", rf"({_QUOTE}?\s{{0,3}}:\s{{0,3}}{_QUOTE}?)(?=[\w.%-]{{1,100}}=)[^\r\n\"'\\]{{1,8192}}"),
    ),
    _Kind(("bearer",), _pairs("bearer", rf"(\s{{1,3}}){_LOOKS_SECRET}")),
    _Kind(("basic",), _pairs("basic", r"(\s{1,3})[\w.+/=~-]{6,8192}"), _masked_basic),
    _Kind(
        (
            "sk-",
            "k_live_",
            "k_test_",
            "ghp_",
            "gho_",
            "ghu_",
            "ghs_",
            "ghr_",
            "github_pat_",
            "glpat-",
            "akia",
            "asia",
            "aiza",
            "ya29.",
            "xox",
            "xapp-",
            "hf_",
            "npm_",
            "pypi-",
            "sg.",
            "eyj",
            "gsk_",
            "r8_",
            "_v1_",
            "xai-",
            "pplx-",
            "nvapi-",
            "whsec_",
            "shp",
            "hvs.",
            "dckr_pat_",
        ),
        rf"(?<![A-Za-z0-9])(?:{'|'.join(_SHAPES)})",
    ),
)

_BRACKETS = re.compile(r"[\[\](){}]|\\.|\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'", re.DOTALL)
#: What is written in brackets, if it is long enough for a secret and no name of a value.
_VALUE = re.compile(r"[\w.+/~-]{8,}+(?!\s{0,3}[:=])")
_LETTERS = re.compile(r"[A-Za-z]")
_BEGINS_SENTENCE = re.compile(_WORD)
#: Elements of a list in YAML: after a name that always means a secret, and after an ordinary word.
_NO_WORD = re.compile(r"\".*\"|'.*'|(?![A-Za-z'-]+[.,;:!?)]*\Z)\S+")
_SECRET_LINE = re.compile(rf"\".*\"|'.*'|{_LOOKS_SECRET}")
_SURE_LIST = re.compile(r"(?i)pass|.*key")
_OPENS = rf"{_QUOTE}?\]?\s{{0,3}}(=>?|:)\s{{0,3}}(?=[\[{{(]|[A-Za-z_][\w.]{{0,60}}\()"
_SURE_NAMES = (
    rf"passw(?:or)?ds?|passphrases?|(?<![a-z])(?:pwd|otp)s?|(?:{'|'.join(_KEYS)})[_-]?keys?|client[_-]?secrets?"
    rf"|(?:{'|'.join(_TOKENS[:-1])}|(?<![a-z])id)[_-]?token"
)
_WITHIN = _Kind(
    ("passw", "passphrase", "pwd", "otp", "secret", "token", "key"),
    rf"(?i:{_SURE_NAMES}){_OPENS}",
)
_PERHAPS_WITHIN = _Kind(
    ("pass", "pw", "secret", "token", "credential", "auth"),
    rf"(?i:secrets?|token{_not_after(_OPEN_TOKENS, 'token')}s?|credentials?|auth|(?<![a-z])(?:pass|pw)){_OPENS}",
)
_HINTS = {hint for kind in (*_KINDS, _WITHIN, _PERHAPS_WITHIN) for hint in kind.hints}
#: The fewest hints without which there is nothing to be found: of two of which one is part of the other, the shorter.
_ANYTHING = _Kind(tuple(hint for hint in sorted(_HINTS) if not any(one in hint for one in _HINTS - {hint})), "")

#: Names in a JSON object whose value is masked, whatever it is.
_NAME = _Kind(
    ("pass", "key", "secret", "token", "credential", "pwd", "pw", "otp", "authorization", "cookie"),
    rf"(?is)(?!(?:.*[^a-z])?(?:{'|'.join(_OPEN_TOKENS)})[_-]?token)(?:.*(?:passw(?:or)?d|passphrase"
    rf"|(?:{'|'.join(_KEYS)})[_-]?key(?:[_-]?id)?|client[_-]?secret|(?:{'|'.join(_TOKENS)})[_-]?token)s?"
    r"|(?:.*[^a-z0-9])?(?:token|secrets?|credentials?|pwd|pw|otp|authorization|cookie)|(?:.*_)?pass)",
)


#: Of these, numbers are masked too.
_NUMBER_TOO = re.compile(r"(?i)pass|pwd?|otp|secret")
#: Names of variables of the environment are shorter.
_VARIABLE_NAME = re.compile(r"(?i)(?:.*_)?(?:key|pass|auth|pat|sig|signature|cookies)")


class _Remembered:
    """Values known to be secret, in all the ways they are usually written."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, set[str]] = {}
        #: Longest first: one may be part of another.
        self.forms: tuple[str, ...] = ()

    def add(self, value: str) -> None:
        with self._lock:
            self._values.pop(value, None)
            self._values[value] = _written(value)
            while len(self._values) > MOST_REMEMBERED:
                del self._values[next(iter(self._values))]
            forms = set().union(*self._values.values())
            self.forms = tuple(sorted(forms, key=lambda form: (-len(form), form)))

    def forget(self) -> None:
        with self._lock:
            self._values.clear()
            self.forms = ()


_remembered = _Remembered()


def remember_secret(value: object) -> None:
    """Mask this value wherever it occurs from now on. A value too short to be told from ordinary text is not masked."""
    if isinstance(value, str) and len(value.strip()) >= SHORTEST:
        _remembered.add(value.strip())


def remember_password_of(url: object) -> None:
    """Mask the password of an address from now on, if it has one."""
    for one in credentials(url) if isinstance(url, str) else ():
        remember_secret(one)


def forget_secrets() -> None:
    """Forget every remembered value."""
    _remembered.forget()


def redact(text: str, limit: int = LONGEST_TEXT) -> str:
    """The text with `***` in place of every secret in it. Of a text longer than the limit only both ends are read and
    returned."""
    try:
        clean = _redacted(text) if len(text) <= limit else text
        room = max(0, limit - 60) // 2
        while len(clean) > limit:
            if not room:
                return _redacted(text[: limit + LONGEST_SECRET])[:limit]
            clean = _redacted(_ends(text, room))
            # A mask may be longer than the secret.
            room = room * 3 // 4
        return clean
    except Exception:
        return f"{MASK} (this text could not be searched for secrets)"[:limit]


def redact_value(value: Any, *, depth: int = 0) -> Any:
    """The same for a JSON value: texts are redacted, and values under the name of a secret are masked. Redacting the text of a
    JSON object could leave invalid JSON."""
    if isinstance(value, str):
        return redact(value)
    if depth > MAX_DEPTH:
        return MASK
    if isinstance(value, dict):
        return {
            redact(name) if isinstance(name, str) else name: _hidden(inner, _NUMBER_TOO.search(name) is not None, depth)
            if _is_secret(name)
            else redact_value(inner, depth=depth + 1)
            for name, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [redact_value(inner, depth=depth + 1) for inner in value]
    return value


def looks_secret(name: str, value: str) -> bool:
    """Whether a variable of the environment holds a secret, by its name or by its value."""
    named = _is_secret(name) or _VARIABLE_NAME.fullmatch(name) is not None
    return named or redact(value) != value or _OPAQUE.search(value) is not None


def _redacted(text: str) -> str:
    """The text, masked until nothing more is found."""
    for _ in range(_ROUNDS):
        clean = _masked_once(text)
        if clean == text:
            return text
        text = clean
    return MASK


def _masked_once(text: str) -> str:
    for form in _remembered.forms:
        if form in text:
            text = text.replace(form, MASK)
    small = text.lower()
    if not _ANYTHING.may_be_in(small):
        return text
    # First, since masking single values would take the beginning of a list for one, and leave the rest.
    if ("[" in small or "{" in small or "(" in small) and (
        _WITHIN.may_be_in(small) or _PERHAPS_WITHIN.may_be_in(small)
    ):
        text = _masked_within(text)
    for kind in _KINDS:
        if kind.may_be_in(small):
            text = kind.pattern.sub(kind.replace, text)
    return text


def _ends(text: str, room: int) -> str:
    """This much of the beginning and of the end of a text, neither with half a secret at the cut."""
    look = room + LONGEST_SECRET + _SEAM
    if 2 * look >= len(text):
        clean = _redacted(text)
        head, tail = clean[:room], clean[max(0, len(clean) - room) :]
    else:
        head, tail = _redacted(text[:look])[:-_SEAM][:room], _redacted(text[-look:])[_SEAM:][-room:]
    return f"{head}\n[... {len(text) - 2 * room:,} characters left out ...]\n{tail}"


def _hidden(value: Any, number_too: bool, depth: int) -> Any:
    """A secret value with every part masked, so that only its structure is left."""
    if depth > MAX_DEPTH:
        return MASK
    if isinstance(value, dict):
        return {redact(str(name)): _hidden(inner, number_too, depth + 1) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_hidden(inner, number_too, depth + 1) for inner in value]
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return MASK if (value and isinstance(value, str)) or (is_number and number_too) else value


def _is_secret(name: object) -> bool:
    if not isinstance(name, str) or len(name) > 200:
        return False
    return _NAME.may_be_in(name.lower()) and _NAME.pattern.fullmatch(name) is not None


def _written(value: str) -> set[str]:
    """A value as it is, as part of an address, of a JSON text, of a Python literal and of something in base64."""
    forms = {
        value,
        quote(value, safe=""),
        quote(value),
        unquote(value),
        repr(value)[1:-1],
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        *_in_base64(value),
    }
    return {form for form in forms if len(form) >= SHORTEST}


def _in_base64(value: str) -> set[str]:
    """What a value is in base64, whatever stands before and after it there."""
    content, forms = value.encode("utf-8", "replace"), set()
    for before in range(3):
        # Three bytes are four characters: those that the neighbours have a part in are left out.
        whole = base64.b64encode(b"\0" * before + content).decode()
        begin, end = (0, 2, 3)[before], (before + len(content)) * 8 // 6
        forms |= {whole[begin:end], whole[begin:end].replace("+", "-").replace("/", "_")}
    return forms
