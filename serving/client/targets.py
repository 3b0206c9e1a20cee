"""The targets of a client: addresses that are joined into one gRPC target. Pure."""

import ipaddress
from collections.abc import Sequence

from serving.base.errors import InvalidArgument

# Clients of earlier versions read a fleet's servers at addresses of these schemes.
_GONE_SCHEMES = ("fleet:", "fleet+file:")


class InvalidTargets(InvalidArgument, ValueError):
    """The targets of a client name no server, or servers that one channel cannot reach."""


def target_list(target: str | Sequence[str]) -> tuple[str, ...]:
    """Reads the targets of one server or several.

    Raises InvalidTargets if one is missing or empty, or has a scheme that is gone.
    """
    targets = (target,) if isinstance(target, str) else tuple(target)
    if not targets or not all(targets):
        raise InvalidTargets(f"{target!r} names no server; give HOST:PORT, or a list of IP:PORT")
    for each in targets:
        if each.startswith(_GONE_SCHEMES):
            raise InvalidTargets(
                f"{each!r}: clients read no fleet any more; give the list of its servers, their DNS name "
                "(dns:///NAME:PORT) or HAProxy's HOST:PORT (docs/fleet.md)"
            )
    return targets


def joined(targets: Sequence[str]) -> str:
    """Makes one target from several, whose channel reaches all servers. A single target stays as it is.

    Raises InvalidTargets for several targets that are not all IPv4, all IPv6 or all unix sockets.
    """
    if len(targets) == 1:
        return targets[0]
    addresses = [_address(target) for target in targets]
    schemes = {scheme for scheme, _ in addresses}
    if len(schemes) > 1:
        raise InvalidTargets(
            f"{', '.join(targets)}: gRPC cannot mix {' and '.join(sorted(schemes))} addresses in one "
            "client; give addresses of one kind, or make a client for each kind"
        )
    return f"{schemes.pop()}:{','.join(address for _, address in addresses)}"


def _address(target: str) -> tuple[str, str]:
    """Splits one of several targets into scheme and address."""
    scheme, _, address = target.partition(":")
    if scheme == "unix" and address and "," not in address:
        return scheme, address.removeprefix("//")
    if scheme not in ("ipv4", "ipv6"):
        address = target
    version = _ip_version(address)
    if version is None:
        raise InvalidTargets(
            f"server {target!r}: each of several servers needs an address such as 10.0.0.1:8500, "
            "[::1]:8500 or unix:PATH (without a comma), because gRPC resolves one name only. For localhost write "
            "127.0.0.1. If one name has the addresses of all servers, give only dns:///NAME:PORT and "
            "channel_options={'grpc.lb_policy_name': 'round_robin'}"
        )
    return f"ipv{version}", address


def _ip_version(address: str) -> int | None:
    """4 for IP:PORT, 6 for [IP]:PORT, and None for other text."""
    host, _, port = address.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    try:
        version = ipaddress.ip_address(host[1:-1] if is_bracketed else host).version
    except ValueError:
        return None
    return version if port.isdecimal() and is_bracketed == (version == 6) else None
