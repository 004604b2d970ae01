"""The guard: what every request passes before anything is looked up, and every answer after.

Host and Origin are compared with the names of this server, bodies and rates are bounded, and the
caller becomes a principal. A refusal is the same for every address, whether something is there or
not. What a signed-in browser changes must also carry the token of its pages.
"""

from __future__ import annotations

import hmac
import json
import logging
import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.core.events import now
from holdfast.server.access import COOKIE, Access, Principal
from holdfast.server.metrics import Metrics
from holdfast.server.problems import Denied, problem

audit = logging.getLogger("holdfast.audit")
logger = logging.getLogger("holdfast.server")

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
OPEN_PATHS = frozenset({"/healthz", "/readyz", "/login", "/favicon.ico"})
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Not "no-referrer": browsers would then send the forms of our own pages with Origin null.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one caller may ask of the server."""

    body_bytes: int = 64 << 20
    payload_bytes: int = 64 << 20
    requests_per_second: float = 100.0
    burst: int = 400
    streams: int = 64
    all_streams: int = 1024


class Rates:
    """A bucket of requests for each caller; those that were not seen for long are forgotten."""

    MOST = 10_000

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str) -> bool:
        """Tell whether one more request is let in."""
        moment = time.monotonic()
        left, last = self._buckets.pop(caller, (float(self._limits.burst), moment))
        left = min(self._limits.burst, left + (moment - last) * self._limits.requests_per_second)
        self._buckets[caller] = (left - 1 if left >= 1 else left), moment
        if len(self._buckets) > self.MOST:
            self._buckets.popitem(last=False)
        return left >= 1


class Guard:
    """The middleware around the whole application."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        access: Access,
        hosts: frozenset[str],
        limits: Limits,
        metrics: Metrics,
        anyone: Principal | None = None,
        read_only: bool = False,
    ) -> None:
        self._app = app
        self._access = access
        self._hosts = hosts
        self._limits = limits
        self._metrics = metrics
        self._anyone = anyone
        self._read_only = read_only
        self._rates = Rates(limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = secrets.token_hex(8)
        scope.setdefault("state", {})["request_id"] = request_id
        status = 500

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
                headers["x-request-id"] = request_id
            await send(message)

        principal: Principal | None = None
        try:
            principal = await self._admit(scope)
            scope["state"]["principal"] = principal
            receive = await self._whole(scope, receive, principal)
        except Denied as error:
            self._metrics.count(scope["method"], error.status)
            await _refuse(scope, receive, sending, error, request_id)
            return
        await self._app(scope, receive, sending)
        self._metrics.count(scope["method"], status)
        if scope["method"] not in SAFE:
            _audit(scope, principal, status, request_id)

    async def _admit(self, scope: Scope) -> Principal | None:
        headers = Headers(scope=scope)
        if headers.get("host", "").lower() not in self._hosts:
            raise Denied(403, "wrong_host", "this server does not answer under that host name")
        origin = headers.get("origin")
        if origin is not None and origin.lower().partition("://")[2] not in self._hosts:
            raise Denied(403, "wrong_origin", "requests of other origins are refused")
        path: str = scope["path"]
        if path in OPEN_PATHS or path.startswith("/static/"):
            return None
        principal = self._caller(headers)
        if not self._rates.take(f"{principal.tenant}/{principal.name}" if principal else ""):
            raise Denied(429, "too_many_requests", "too many requests; wait a second")
        if principal is None:
            raise Denied(
                401, "unauthenticated", "a valid token is needed; `holdfast token create` makes one"
            )
        if scope["method"] not in SAFE and self._read_only:
            raise Denied(403, "read_only", "this server was started to be looked at only")
        return principal

    def _caller(self, headers: Headers) -> Principal | None:
        given = headers.get("authorization")
        if given is not None:
            kind, _, token = given.partition(" ")
            return self._access.of_token(token.strip()) if kind.lower() == "bearer" else None
        try:
            cookies: SimpleCookie = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            return self._anyone
        if COOKIE in cookies:
            try:
                found = self._access.of_cookie(cookies[COOKIE].value)
            except (ValueError, KeyError, TypeError):
                found = None
            if found is not None:
                return found
        return self._anyone

    async def _whole(self, scope: Scope, receive: Receive, principal: Principal | None) -> Receive:
        """Read the body of a change, as far as it may go, and check what browsers send along."""
        if scope["method"] in SAFE:
            return receive
        headers = Headers(scope=scope)
        told = headers.get("content-length", "")
        if told.isdecimal() and int(told[:18]) > self._limits.body_bytes:
            raise self._too_large()
        body = bytearray()
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Denied(400, "disconnected", "the request was broken off")
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self._limits.body_bytes:
                raise self._too_large()
        if principal is not None and principal.csrf is not None:
            self._check_csrf(headers, bytes(body), principal.csrf)
        sent = False

        async def replay() -> Message:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return {"type": "http.request", "body": bytes(body), "more_body": False}

        return replay

    def _too_large(self) -> Denied:
        return Denied(413, "too_large", f"a request has at most {self._limits.body_bytes} bytes")

    def _check_csrf(self, headers: Headers, body: bytes, expected: str) -> None:
        given = headers.get("x-csrf-token", "")
        if not given and headers.get("content-type", "").startswith(
            "application/x-www-form-urlencoded"
        ):
            given = parse_qs(body.decode("utf-8", "replace")).get("csrf", [""])[0]
        site = headers.get("sec-fetch-site", "same-origin")
        if site not in ("same-origin", "none") or not hmac.compare_digest(
            given.encode(), expected.encode()
        ):
            raise Denied(403, "csrf", "the page is too old or not of this server; load it again")


async def _refuse(
    scope: Scope, receive: Receive, send: Send, error: Denied, request_id: str
) -> None:
    accept = Headers(scope=scope).get("accept", "")
    if error.status == 401 and "text/html" in accept and not scope["path"].startswith("/api/"):
        from holdfast.server.pages import sign_in_page

        await sign_in_page()(scope, receive, send)
        return
    response = problem(error.status, error.code, str(error), request_id=request_id)
    if error.status == 401:
        response.headers["www-authenticate"] = "Bearer"
    if error.status == 429:
        response.headers["retry-after"] = "1"
    await response(scope, receive, send)


def _audit(scope: Scope, principal: Principal | None, status: int, request_id: str) -> None:
    line: dict[str, Any] = {
        "at": now(),
        "by": None if principal is None else principal.name,
        "tenant": None if principal is None else principal.tenant,
        "method": scope["method"],
        "path": scope["path"],
        "status": status,
        "request_id": request_id,
    }
    audit.info("%s", json.dumps(line))
