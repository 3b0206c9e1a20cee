"""Decides which clients may operate a server, beyond sending requests to its models. Pure.

Operator calls change what is served, or show what other clients have sent. They are answered on the
admin listener, which only the server's own user can reach. The data port refuses them, with three
exceptions. Reloads of the configuration, loads by name and traces of the profiler may come from this
machine (`local`). The flag --admin_on_data_port=true allows all of them to everyone. The flag
--admin_clients allows them to the client certificates that it names.

A proxy on this machine makes each of its clients look local. Its HTTP headers reveal it
(`FORWARDING_HEADERS`). A proxy without such headers needs --admin_on_data_port=false.
"""

import ipaddress
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from serving.base.errors import PermissionDenied, Unimplemented

FORWARDING_HEADERS = frozenset({"forwarded", "via", "x-forwarded-for", "x-real-ip"})
"""A request with one of these came through a proxy. The data plane has the same list for gRPC."""

LOCAL, EVERYONE, NOBODY = "local", "true", "false"
"""The values of --admin_on_data_port."""


@dataclass(frozen=True)
class Caller:
    """The other end of a call. `address` is an IP address, or "" for a UNIX socket.

    `names` are the names of its verified certificate. `is_forwarded` is True if a proxy forwarded the
    call.
    """

    address: str
    names: Collection[str] = ()
    is_forwarded: bool = False

    @property
    def is_local(self) -> bool:
        """True if the call was made on this machine."""
        if self.is_forwarded:
            return False
        return self.address == "" or _is_loopback(self.address)


def grpc_caller(peer: str, names: Collection[str], *, is_forwarded: bool) -> Caller:
    """Reads the caller from a gRPC peer, like "ipv4:127.0.0.1:5", "ipv6:%5B::1%5D:5" or "unix:"."""
    scheme, _, rest = peer.partition(":")
    if scheme.startswith("unix"):
        return Caller("", names, is_forwarded)
    address = unquote(rest).rpartition(":")[0].strip("[]").partition("%")[0]
    # An unknown peer does not count as local.
    return Caller(address or peer or "unknown", names, is_forwarded)


def http_caller(scope: Mapping[str, Any]) -> Caller:
    """Reads the caller from the ASGI scope of an HTTP request.

    A client on a UNIX socket has the address "". A request with an Origin header counts as forwarded,
    because a browser has sent it for a page, which may be of any site.
    """
    names = {name.decode("latin-1") for name, _ in scope["headers"]}
    client = scope.get("client")
    is_forwarded = not names.isdisjoint(FORWARDING_HEADERS | {"origin"})
    return Caller(client[0] if client else "unknown", scope.get("client_names", ()), is_forwarded)


@dataclass(frozen=True, kw_only=True)
class OperatorAccess:
    """The rule of the data port, from --admin_on_data_port and --admin_clients."""

    on_data_port: str = LOCAL
    clients: frozenset[str] = frozenset()

    def check_admin(self, caller: Caller) -> None:
        """Raises Unimplemented or PermissionDenied unless `caller` may call millpond.v1.Admin here."""
        if self.on_data_port == EVERYONE or self._is_admin_client(caller):
            return
        if self.clients:
            raise PermissionDenied(
                f"{_described(caller)} may not operate this server: --admin_clients does not list "
                "a name of the client's certificate"
            )
        raise Unimplemented(
            "millpond.v1.Admin is not answered on this port; run the millpond command on the "
            "server's machine as the server's user without --target, or with --target=unix:PATH of its "
            "admin socket; or start the server with --admin_clients=NAME (mTLS) or "
            "--admin_on_data_port=true"
        )

    def check_control(self, caller: Caller) -> None:
        """Raises PermissionDenied unless `caller` may reload the configuration or load models here."""
        self._check_local(caller, "change what is served")

    def check_profiling(self, caller: Caller) -> None:
        """Raises PermissionDenied unless `caller` may record what this process runs."""
        self._check_local(caller, "profile this server")

    def _check_local(self, caller: Caller, deed: str) -> None:
        if self.on_data_port == EVERYONE or self._is_admin_client(caller):
            return
        if self.on_data_port == LOCAL and caller.is_local:
            return
        where = "from this machine" if self.on_data_port == LOCAL else "on the admin listener"
        raise PermissionDenied(
            f"{_described(caller)} may not {deed}: that is done {where}; start the "
            "server with --admin_clients=NAME (mTLS) or --admin_on_data_port=true to allow it here"
        )

    def _is_admin_client(self, caller: Caller) -> bool:
        return not self.clients.isdisjoint(caller.names)


def _described(caller: Caller) -> str:
    text = caller.address or "a UNIX socket's client"
    named = f" ({', '.join(sorted(caller.names)[:3])})" if caller.names else ""
    return f"{text}{named}{' through a proxy or a browser' if caller.is_forwarded else ''}"


def _is_loopback(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
