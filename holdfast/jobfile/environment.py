"""`${NAME}`, `${NAME:-default}` and `${secret:NAME}` in the texts of a job file, and hiding secrets."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast.jobfile.problems import Problems, below
from holdfast.jobfile.reading import BAD, Node
from holdfast.model.redact import credentials, looks_secret, without_credentials

#: What is shown in place of a secret.
MASK = "***"
#: Shorter secrets occur in too many words to be hidden in every text.
SHORTEST = 4

_REFERENCE = re.compile(r"\$?\$\{([^}]*)(\}?)")
_NAME = re.compile(r"(secret:)?([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
_EXPECTED = "expected ${NAME}, ${NAME:-default} or ${secret:NAME}; a ${ that stands for itself is written $${"


class Secrets:
    """Texts that must not be shown: values of secret variables, and the passwords in addresses."""

    def __init__(self) -> None:
        self._values: set[str] = set()
        self._pattern: re.Pattern[str] | None = None

    def __repr__(self) -> str:
        return f"<{len(self._values)} secrets>"

    def __bool__(self) -> bool:
        return bool(self._values)

    def add(self, value: str) -> None:
        """Hide this text from now on, as it is and as it is quoted, and the password in it if it is an address."""
        found: set[str] = set()
        for one in (value, *passwords(value)):
            found |= {one, one.strip(), *one.splitlines(), repr(one)[1:-1], json.dumps(one)[1:-1], unquote(one)}
        self._hide({form for form in found if len(form) >= SHORTEST})

    def add_passwords(self, address: str) -> None:
        """Hide the password of an address that is not secret otherwise."""
        for one in passwords(address):
            self.add(one)

    def update(self, other: Secrets) -> None:
        """Also hide what the other hides."""
        self._hide(other._values)

    def remember(self, told: Callable[[str], None]) -> None:
        """Pass all of them to a function that remembers them."""
        for value in self._values:
            told(value)

    def _hide(self, values: set[str]) -> None:
        if not values <= self._values:
            self._values = self._values | values
            self._pattern = None

    def mask(self, text: str) -> str:
        """The text with every secret replaced."""
        if not self._values:
            return text
        # Another thread may add one in the meantime.
        pattern = self._pattern
        if pattern is None:
            # Longest first: one may be part of another.
            pattern = re.compile("|".join(map(re.escape, sorted(self._values, key=len, reverse=True))))
            self._pattern = pattern
        return pattern.sub(MASK, text)


def passwords(address: str) -> list[str]:
    """The passwords in a URL, as they are written there."""
    if "://" not in address:
        return []
    try:
        query = parse_qsl(urlsplit(without_credentials(address)).query)
    except ValueError:
        query = []
    return [*credentials(address), *(value for key, value in query if value and "password" in key.lower())]


def without_passwords(address: str) -> str:
    for one in passwords(address):
        address = address.replace(one, MASK)
    return address


def fill(node: Node, environ: Mapping[str, str], secrets: Secrets, problems: Problems, path: str = "") -> None:
    """Put the values of variables into every text of a tree, and remember those that are secrets."""
    if isinstance(node.value, dict):
        for key, one in node.value.items():
            fill(one, environ, secrets, problems, below(path, key))
    elif isinstance(node.value, list):
        for at, one in enumerate(node.value):
            fill(one, environ, secrets, problems, f"{path}[{at}]")
    elif isinstance(node.value, str) and "${" in node.value:
        _fill_text(node, environ, secrets, problems, path)


def _fill_text(node: Node, environ: Mapping[str, str], secrets: Secrets, problems: Problems, path: str) -> None:
    wrong: list[str] = []

    def value(found: re.Match[str]) -> str:
        if found[0].startswith("$$"):
            return found[0][1:]
        named = _NAME.fullmatch(found[1])
        if named is None or not found[2] or "${" in found[1]:
            wrong.append(f"a reference to a variable that cannot be read, {_EXPECTED}")
            return ""
        said_so, name, default = named.groups()
        given = environ.get(name)
        if default is not None and not given:
            return default
        if given is None:
            wrong.append(f"the variable {name} is not set; set it, or write ${{{said_so or ''}{name}:-default}}")
            return ""
        try:
            given.encode()
        except UnicodeEncodeError:
            wrong.append(f"the value of the variable {name} is not UTF-8, expected a text")
            return ""
        # Of an address only the password is hidden, so that the rest can be shown in errors.
        if said_so or looks_secret(name, without_passwords(given)):
            secrets.add(given)
            node.secret = True
        elif passwords(given):
            secrets.add_passwords(given)
            node.secret = True
        return given

    node.value, node.filled = _REFERENCE.sub(value, node.value), True
    for what in wrong:
        problems.add(node.place, path, what)
        node.value = BAD
