"""Outbound requests: a name is resolved once, its addresses are checked, and one of them is used.

A gate that looks at names alone lets whoever controls a name point it at this machine, at the
network around it or at the metadata service of a cloud. So an address that is not public is refused
unless the gate lists the address itself, and the connection goes to the very address that was
checked. No proxy is used: it would resolve the name again.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

from holdfast.core.capability import Capability
from holdfast.core.errors import CapabilityDenied

SECONDS = 60
REPLY_BYTES = 16 << 20
GATE = "network_hosts"


class OutboundRequests:
    """Sends requests as far as a capability's gate for the network allows."""

    def __init__(self, capability: Capability) -> None:
        self._capability = capability

    def send(self, request: urllib.request.Request) -> dict[str, Any]:
        """Send a request; return the status, headers and body of the reply, whatever the status."""
        self._check_url(request.full_url)
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}),
            _Redirects(self._check_url),
            _Http(self._connect),
            _Https(self._connect),
        )
        try:
            with opener.open(request, timeout=SECONDS) as reply:
                return _read(reply, reply.status)
        except urllib.error.HTTPError as error:
            return _read(error, error.code)

    def _check_url(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise CapabilityDenied(f"{url!r} is not a web address", gate=GATE)
        self._capability.require(GATE, parts.hostname.lower())

    def _connect(self, host: str, port: int, timeout: float | None) -> socket.socket:
        """Return a connection to an allowed address of a host; the first that answers."""
        self._capability.require(GATE, host.lower())
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(where[0]) for *_, where in found))
        allowed = [address for address in addresses if self._is_allowed(host, address)]
        if not allowed:
            raise CapabilityDenied(
                f"{host!r} resolves to {', '.join(addresses)}, which is not a public address; "
                f"list the address itself in {GATE} to reach it",
                gate=GATE,
            )
        for address in allowed[:-1]:
            try:
                return socket.create_connection((address, port), timeout)
            except OSError:
                continue
        return socket.create_connection((allowed[-1], port), timeout)

    def _is_allowed(self, host: str, text: str) -> bool:
        address = ip_address(text)
        if is_public(address):
            return True
        hosts = self._capability.network_hosts
        if host.lower() == "localhost" and address.is_loopback and "localhost" in hosts:
            return True  # the one name that says by itself where it leads
        return any(_lists(entry, address) for entry in hosts)


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Tell whether an address, and one that is embedded in it, lies in the public network."""
    inner: IPv4Address | None = None
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if address in _NAT64:
            inner = IPv4Address(int(address) & 0xFFFFFFFF)
    if inner is not None:
        return is_public(inner)
    return address.is_global and not address.is_multicast


_NAT64 = ip_network("64:ff9b::/96")


def _lists(entry: str, address: IPv4Address | IPv6Address) -> bool:
    """Tell whether an entry of the gate is an address, or a range such as 10.0.0.0/8, with it."""
    try:
        return address in ip_network(entry)
    except ValueError:
        return False


def _read(reply: Any, status: int) -> dict[str, Any]:
    body = reply.read(REPLY_BYTES + 1)
    if len(body) > REPLY_BYTES:
        raise ValueError(f"the reply is larger than {REPLY_BYTES} bytes")
    return {"status": status, "headers": dict(reply.headers.items()), "body": body}


Connect = Callable[[str, int, float | None], socket.socket]


class _PinnedHttp(http.client.HTTPConnection):
    def __init__(self, host: str, *, connector: Connect, **options: Any) -> None:
        super().__init__(host, **options)
        self._connector = connector

    def connect(self) -> None:
        """Connect to an address that was checked."""
        self.sock = self._connector(self.host, self.port, self.timeout)


class _PinnedHttps(http.client.HTTPSConnection):
    def __init__(self, host: str, *, connector: Connect, **options: Any) -> None:
        super().__init__(host, **options)
        self._connector = connector

    def connect(self) -> None:
        """Connect to an address that was checked; the certificate is that of the name."""
        plain = self._connector(self.host, self.port, self.timeout)
        context = ssl.create_default_context()
        self.sock = context.wrap_socket(plain, server_hostname=self.host)


class _Http(urllib.request.HTTPHandler):
    def __init__(self, connector: Connect) -> None:
        super().__init__()
        self._connector = connector

    def http_open(self, req: urllib.request.Request) -> Any:
        """Open a request over a pinned connection."""
        return self.do_open(partial(_PinnedHttp, connector=self._connector), req)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, connector: Connect) -> None:
        super().__init__()
        self._connector = connector

    def https_open(self, req: urllib.request.Request) -> Any:
        """Open a request over a pinned connection."""
        return self.do_open(partial(_PinnedHttps, connector=self._connector), req)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows a redirect only to where the session may go."""

    def __init__(self, check: Callable[[str], None]) -> None:
        self._check = check

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Any:
        """Return the request for the new place once it is allowed."""
        self._check(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)
