"""Access: tokens with rights of one tenant, one-time links, and browser sessions by a cookie.

Secrets are random, so a plain hash of one is enough to recognise it; no token is stored. The file
is read again when it has changed, so a revoked token ends at once in every server. A cookie is
signed and carries what it allows, so that browsers stay signed in when the server is started again.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.core.errors import InvalidInput, NotFound
from holdfast.core.events import now
from holdfast.core.ids import check_id
from holdfast.stores.tenancy import DEFAULT_TENANT

RIGHTS = ("read", "act", "answer", "admin")
FILE_NAME = "access.json"
COOKIE = "holdfast_session"
COOKIE_SECONDS = 7 * 24 * 3600
LINK_SECONDS = 600
PREFIX = "hf"


@dataclass(frozen=True, slots=True)
class Principal:
    """Who makes a request, for which tenant, with which rights."""

    name: str
    tenant: str = DEFAULT_TENANT
    rights: frozenset[str] = frozenset(RIGHTS)
    csrf: str | None = None
    """What a browser must send along with a change; None where no cookie is involved."""

    def may(self, right: str) -> bool:
        """Tell whether the principal has a right; `admin` brings all, each brings `read`."""
        return right in self.rights or "admin" in self.rights or right == "read"


@dataclass(frozen=True, slots=True)
class TokenInfo:
    """A token as it is listed: everything but its secret."""

    id: str
    name: str
    tenant: str
    rights: tuple[str, ...]
    created_at: str
    revoked_at: str | None = None


@dataclass(slots=True)
class _Kept:
    """What the file holds."""

    secret: str
    tokens: list[dict[str, Any]] = field(default_factory=list)


class Access:
    """The tokens of one store, in a file beside it; without a file they live in memory."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._kept = _Kept(secrets.token_hex(32))
        self._stamp: tuple[int, int] | None = None
        self._links: dict[str, tuple[Principal, float]] = {}
        self._read()
        if path is not None and self._stamp is None:
            self._write()

    def create(
        self, name: str, rights: Iterable[str], tenant: str = DEFAULT_TENANT
    ) -> tuple[TokenInfo, str]:
        """Make a token; its text is returned here and never again."""
        chosen = tuple(dict.fromkeys(rights))
        unknown = [right for right in chosen if right not in RIGHTS]
        if unknown or not chosen:
            said = ", ".join(unknown) or "nothing"
            raise InvalidInput(f"{said} is not a valid right; use some of {', '.join(RIGHTS)}")
        if not name or len(name) > 100 or not name.isprintable():
            raise InvalidInput("the name of a token has 1 to 100 printable characters")
        check_id(tenant, "tenant")
        self._read()
        secret = secrets.token_urlsafe(32)
        info = TokenInfo(secrets.token_hex(6), name, tenant, chosen, now())
        record = {
            "id": info.id,
            "name": name,
            "tenant": tenant,
            "rights": list(chosen),
            "hash": _hash(secret),
            "created_at": info.created_at,
            "revoked_at": None,
        }
        self._kept.tokens.append(record)
        self._write()
        return info, f"{PREFIX}_{info.id}_{secret}"

    def revoke(self, token_id: str) -> TokenInfo:
        """End a token."""
        self._read()
        for record in self._kept.tokens:
            if record["id"] == token_id:
                record["revoked_at"] = record["revoked_at"] or now()
                self._write()
                return _info(record)
        raise NotFound(f"there is no token {token_id!r}; `holdfast token list` shows all")

    def tokens(self) -> list[TokenInfo]:
        """Return every token, revoked ones included."""
        self._read()
        return [_info(record) for record in self._kept.tokens]

    def of_token(self, text: str) -> Principal | None:
        """Return whose token a text is; None where it is not a valid one."""
        self._read()
        prefix, _, rest = text.partition("_")
        token_id, _, secret = rest.partition("_")
        found = None
        for record in self._kept.tokens:
            if record["id"] == token_id:
                found = record
        # The same work is done where there is no such token.
        matches = hmac.compare_digest(_hash(secret), found["hash"] if found else _hash(""))
        if prefix != PREFIX or not secret or not found or not matches or found["revoked_at"]:
            return None
        return Principal(found["name"], found["tenant"], frozenset(found["rights"]))

    def link_code(self, principal: Principal, seconds: float = LINK_SECONDS) -> str:
        """Return the code of a one-time link."""
        code = secrets.token_urlsafe(24)
        self._links[_hash(code)] = principal, time.monotonic() + seconds
        return code

    def use_link(self, code: str) -> Principal | None:
        """Return whom a one-time link signs in, once."""
        principal, until = self._links.pop(_hash(code), (None, 0.0))
        return principal if principal is not None and time.monotonic() < until else None

    def cookie(self, principal: Principal) -> str:
        """Return the signed cookie of a browser session."""
        about = {
            "name": principal.name,
            "tenant": principal.tenant,
            "rights": sorted(principal.rights),
            "until": int(time.time()) + COOKIE_SECONDS,
            "nonce": secrets.token_hex(8),
        }
        body = base64.urlsafe_b64encode(json.dumps(about).encode()).decode().rstrip("=")
        return f"{body}.{self._sign('cookie', body)}"

    def of_cookie(self, text: str) -> Principal | None:
        """Return whose browser session a cookie is; None where it is not a valid one."""
        body, _, signature = text.partition(".")
        if not hmac.compare_digest(self._sign("cookie", body), signature):
            return None
        about = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        if about["until"] < time.time():
            return None
        csrf = self._sign("csrf", body)
        return Principal(about["name"], about["tenant"], frozenset(about["rights"]), csrf)

    def _sign(self, purpose: str, text: str) -> str:
        key = bytes.fromhex(self._kept.secret)
        return hmac.new(key, f"{purpose}:{text}".encode(), hashlib.sha256).hexdigest()

    def _read(self) -> None:
        if self._path is None:
            return
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return
        stamp = found.st_mtime_ns, found.st_size
        if stamp != self._stamp:
            record = json.loads(self._path.read_text())
            self._kept, self._stamp = _Kept(record["secret"], record["tokens"]), stamp

    def _write(self) -> None:
        if self._path is None:
            return
        record = {"secret": self._kept.secret, "tokens": self._kept.tokens}
        beside = self._path.with_name(f"{self._path.name}.{secrets.token_hex(4)}")
        number = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(number, "w") as file:
            json.dump(record, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, self._path)
        found = self._path.stat()
        self._stamp = found.st_mtime_ns, found.st_size


def access_path(url: str) -> Path | None:
    """Return where the tokens of a store are kept; None where it has no folder."""
    kind, _, place = url.partition(":")
    return Path(place) / FILE_NAME if kind in ("sqlite", "files") else None


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _info(record: dict[str, Any]) -> TokenInfo:
    return TokenInfo(
        record["id"],
        record["name"],
        record["tenant"],
        tuple(record["rights"]),
        record["created_at"],
        record["revoked_at"],
    )
