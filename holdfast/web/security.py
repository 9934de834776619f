"""What every request has to pass, and what every answer carries.

In this order: the method, the Host (a page that a hostile name resolves to must not reach a dashboard on this machine: DNS
rebinding), then who it is (a token that was exchanged for a cookie, or the `access` function), and for changes where they come
from (Origin, Sec-Fetch-Site). The token of a form is checked by `require_form_token`, which every POST calls.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from urllib.parse import quote, urlencode, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.web.access import Access, Judge, judged, reading_only

HEADERS = {
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
    ),
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    # Not `no-referrer`: browsers then send `Origin: null` with our own forms, and nobody could tell them from those of others.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
METHODS = ("GET", "HEAD", "POST")
LOCAL_NAMES = ("localhost", "localhost.localdomain")
SESSION_BYTES = 24
#: The one address that a program reads, and gives the token for in a header.
METRICS_PATH = "/metrics"
LONGEST_COOKIE = 300

#: Makes the page that refuses a request.
Refuse = Callable[[Request, int, str], Awaitable[Response]]


class Token:
    """The secret in the address that `holdfast ui` prints. A browser that opens it gets a cookie that only this token could
    have made, so nothing is kept, and a new token ends all sessions."""

    def __init__(self, secret: str, access: Access) -> None:
        self._secret = secret.encode()
        self.access = access
        # Browsers send a cookie to all ports of a host: two dashboards must not overwrite each other's.
        self.cookie = f"holdfast_{hashlib.sha256(self._secret).hexdigest()[:8]}"

    def is_right(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(errors="replace"), self._secret)

    def new_session(self) -> str:
        name = secrets.token_urlsafe(SESSION_BYTES)
        return f"{name}.{self._sign(name)}"

    def knows(self, session: str) -> bool:
        name, _, signature = session.partition(".")
        return hmac.compare_digest(signature.encode(errors="replace"), self._sign(name).encode())

    def _sign(self, name: str) -> str:
        return hmac.new(self._secret, f"session {name}".encode(errors="replace"), "sha256").hexdigest()


@dataclass(frozen=True)
class Policy:
    """How requests are judged: by a token or by an access function."""

    token: Token | None
    judge: Judge | None
    read_only: bool = False
    #: Names under which the dashboard is reached; None to leave that to the application it is mounted in.
    hosts: Collection[str] | None = None


@dataclass(frozen=True)
class Visit:
    """Who looks, and the session that the token of forms is bound to."""

    access: Access
    session: str

    @property
    def form_token(self) -> str:
        # Derived from a cookie that scripts cannot read, so that it holds for all processes of a server.
        return hmac.new(self.session.encode(), b"form", "sha256").hexdigest()


def path_within(scope: Scope) -> str:
    """The path of a request below the dashboard's own address."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def visit(request: Request) -> Visit:
    found: Visit = request.scope["holdfast.visit"]
    return found


def require_form_token(request: Request, given: str) -> None:
    if not hmac.compare_digest(given.encode(errors="replace"), visit(request).form_token.encode()):
        raise HTTPException(
            403, "This form is from another session. Nothing was changed: reload the page and try again."
        )


class Guard:
    """Stands before the application: nothing passes by."""

    def __init__(self, app: ASGIApp, policy: Policy, refuse: Refuse) -> None:
        self.app, self._policy, self._refuse = app, policy, refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        request = Request(scope, receive)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message["headers"])
                for name, value in HEADERS.items():
                    headers[name] = value
                message["headers"] = headers.raw
            await send(message)

        answer, cookie = await self._judged(request)
        if answer is None:
            await self.app(scope, receive, _setting(cookie, request, with_headers))
        else:
            await answer(scope, receive, _setting(cookie, request, with_headers))

    async def _judged(self, request: Request) -> tuple[Response | None, tuple[str, str] | None]:
        """The answer to a request that goes no further, or None; and the cookie to set."""
        # Refusals are pages too.
        request.scope["holdfast.visit"] = Visit(Access(verbs=()), "")
        if request.method not in METHODS:
            return await self._refuse(request, 405, "Only GET, HEAD and POST are understood here."), None
        if (wrong := self._wrong_host(request)) is not None:
            return await self._refuse(request, 421, wrong), None
        if path_within(request.scope).startswith("/static/"):
            return None, None
        access, session, answer = await self._who(request)
        if answer is not None or access is None:
            cookie = (self._cookie, session) if session else None
            return answer or await self._refuse(request, 403, "You have no access to this dashboard."), cookie
        request.scope["holdfast.visit"] = Visit(reading_only(access) if self._policy.read_only else access, session)
        if request.method == "POST" and (wrong := self._wrong_origin(request)) is not None:
            return await self._refuse(request, 403, wrong), None
        is_new = request.cookies.get(self._cookie) != session
        return None, (self._cookie, session) if session and is_new else None

    @property
    def _cookie(self) -> str:
        return self._policy.token.cookie if self._policy.token else "holdfast_forms"

    async def _who(self, request: Request) -> tuple[Access | None, str, Response | None]:
        """Who it is, their session, and perhaps an answer that ends the request."""
        had = request.cookies.get(self._cookie, "")[:LONGEST_COOKIE]
        token = self._policy.token
        if token is None:
            assert self._policy.judge is not None
            found = await judged(self._policy.judge, request)
            if found is not None and found.redirect is not None:
                return None, "", RedirectResponse(found.redirect, 303)
            return found, had if len(had) >= SESSION_BYTES else secrets.token_urlsafe(SESSION_BYTES), None
        if (given := request.query_params.get("token")) is not None and request.method != "POST":
            if token.is_right(given):
                return None, token.new_session(), RedirectResponse(_without_token(request), 303)
            return None, "", await self._refuse(request, 401, "This token is wrong or old. " + _HOW_TO_ENTER)
        if (bearer := _bearer(request)) is not None and path_within(request.scope) == METRICS_PATH:
            if token.is_right(bearer):
                return reading_only(token.access), "", None
            return None, "", await self._refuse(request, 401, "This token is wrong or old.")
        if had and token.knows(had):
            return token.access, had, None
        return None, "", await self._refuse(request, 401, "This dashboard asks for a token. " + _HOW_TO_ENTER)

    def _wrong_host(self, request: Request) -> str | None:
        hosts, host = self._policy.hosts, request.headers.get("host", "")
        if hosts is None or _is_harmless(host) or _name(host) in {one.lower() for one in hosts}:
            return None
        return f"The dashboard is not known under the name {host[:100]!r}: allow it where the dashboard is started."

    def _wrong_origin(self, request: Request) -> str | None:
        """What speaks against a change: a browser says where a form comes from."""
        origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
        if site not in (None, "same-origin", "none"):
            return "This form comes from another site. Nothing was changed."
        if origin is not None and not self._is_own(origin, request.headers.get("host", "")):
            return "This form comes from another site. Nothing was changed."
        return None

    def _is_own(self, origin: str, host: str) -> bool:
        """Whether the dashboard's own pages can have this origin. A proxy may have put another Host in place of the name that
        people use. On this machine each port may be somebody else's."""
        try:
            there = urlsplit(origin)
        except ValueError:
            return False
        if there.netloc.lower() == host.lower():
            return True
        return not _is_harmless(there.netloc) and _name(there.netloc) in {
            one.lower() for one in self._policy.hosts or ()
        }


_HOW_TO_ENTER = "Open the address that was printed when it was started, with ?token=… at its end."


def _setting(cookie: tuple[str, str] | None, request: Request, send: Send) -> Send:
    """Sends a cookie with the answer."""
    if cookie is None:
        return send
    path = quote(request.scope.get("root_path", "")) + "/"
    secure = "; Secure" if request.scope.get("scheme") == "https" else ""
    text = f"{cookie[0]}={cookie[1]}; HttpOnly; SameSite=Strict; Path={path}{secure}"

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (b"set-cookie", text.encode("latin-1"))]
        await send(message)

    return sending


def _without_token(request: Request) -> str:
    """The same address without its token: relative, so that it leads nowhere else, whatever the path is."""
    last = request.scope["path"].rpartition("/")[2]
    rest = urlencode([(name, value) for name, value in request.query_params.multi_items() if name != "token"])
    return f"./{quote(last)}{'?' if rest else ''}{rest}"


def _bearer(request: Request) -> str | None:
    """The token in the header of a program, if it sends one."""
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    return given.strip() if kind.lower() == "bearer" else None


def _name(host: str) -> str:
    """The name in a Host header, without its port."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _is_harmless(host: str) -> bool:
    """A number, or a name of this machine itself: nobody can make a name of their own resolve to it."""
    name = _name(host)
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name in LOCAL_NAMES or name.endswith(".localhost")
    return True
