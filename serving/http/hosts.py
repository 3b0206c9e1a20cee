"""The names that a request over HTTP may have in its Host header. The data plane refuses others.

A page of another site can have a browser ask this server: it points a name of its own at 127.0.0.1
or at this machine (DNS rebinding), and then reads the answers, as both have one origin. Such a
request has the site's name in its Host header. A server with a list of its own names refuses it.
"""

import ipaddress
import socket
from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class HostRule:
    """The hosts that are answered: `names`, in lower case, and loopback names.

    If `names` is None, every host is answered.
    """

    names: frozenset[str] | None = None

    def permits(self, header: str, local_address: str) -> bool:
        """True if a Host header names this server. Pure.

        The address at which the request arrived always does, because a rebound name never looks like an
        address.
        """
        if self.names is None:
            return True
        host = host_name(header)
        return host in self.names or is_loopback(host) or (host != "" and host == local_address)


def host_rule(given: Collection[str], bound_host: str, machine_name: str) -> HostRule:
    """Makes the rule of a server that listens on `bound_host`. Pure.

    `given` is --http_hosts. Without it a server that only this machine can reach answers loopback
    names and `machine_name`, and any other server answers every name.
    """
    if given:
        return HostRule(frozenset(map(host_name, given)))
    if is_loopback(bound_host):
        return HostRule(frozenset({machine_name.lower(), machine_name.lower().partition(".")[0]}))
    return HostRule()


def host_name(header: str) -> str:
    """The host of HOST, HOST:PORT or [IPV6]:PORT, in lower case; "" if there is none. Pure."""
    text = header.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    is_bare_ipv6 = text.count(":") > 1
    return (text if is_bare_ipv6 else text.partition(":")[0]).removesuffix(".")


def is_loopback(host: str) -> bool:
    """True if a name or address means this machine for every resolver. Pure."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def own_name() -> str:
    """The machine's name, without a resolver."""
    return socket.gethostname()
