"""Finds faults in the heads of requests. A request with such a fault reaches no application. Pure."""

import re
from collections.abc import Sequence

Fields = Sequence[tuple[bytes, bytes]]
"""The headers of a request: names in lower case, and values."""

TRANSFER_ENCODING_REMEDY = "send 'chunked' alone, or Content-Length alone"

_UNNAMED_HOST_VERSIONS = ("0.9", "1.0")

# HOST or HOST:PORT of RFC 3986, 3.2.2: an address in brackets, or a name or IPv4 address.
_HOST = re.compile(
    rb"(?:\[[0-9A-Fa-f:.]+(?:%25[\w.~-]+)?\]|(?:[\w.~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)(?::[0-9]*)?",
    re.ASCII,
)
_ABSOLUTE = re.compile(rb"[a-z][a-z0-9+.-]*://([^/?#]*)", re.IGNORECASE)


def head_fault(version: str, target: bytes, fields: Fields) -> str:
    """The reason to refuse a head with 400, and the remedy; "" if it has no fault."""
    return transfer_encoding_fault(fields) or host_fault(version, target, fields)


def transfer_encoding_fault(fields: Fields) -> str:
    """The reason why a body with these fields cannot be read; "" if it can.

    If a server and a proxy disagree about the end of a body, one client's bytes can be read as another
    client's request. So only `chunked` is accepted, which every proxy supports.
    """
    encodings = [value for name, value in fields if name.lower() == b"transfer-encoding"]
    if not encodings:
        return ""
    if [value.strip(b" \t").lower() for value in encodings] == [b"chunked"]:
        return ""
    given = b", ".join(encodings).decode("latin-1")
    return f"Transfer-Encoding {given!r} is not supported; {TRANSFER_ENCODING_REMEDY}"


def host_fault(version: str, target: bytes, fields: Fields) -> str:
    """The reason why the host of a request is not certain (RFC 9112, 3.2); "" if it is.

    A proxy may take another host from such a request than this server does, and let the wrong requests pass.
    """
    hosts = [value.strip(b" \t") for name, value in fields if name == b"host"]
    if len(hosts) > 1:
        return f"the request has {len(hosts)} Host headers; send one"
    if not hosts:
        needs_host = version not in _UNNAMED_HOST_VERSIONS
        return f"HTTP/{version} without a Host header; send one" if needs_host else ""
    if not _HOST.fullmatch(hosts[0]):
        return f"Host {hosts[0].decode('latin-1')!r} is not HOST or HOST:PORT"
    named = _ABSOLUTE.match(target)
    if named and named[1].lower() != hosts[0].lower():
        given = named[1].decode("latin-1")
        return f"the request's target names the host {given!r}, and its Host header another one"
    return ""


def without_upgrade(method: bytes, target: bytes, version: str, fields: Fields) -> bytes:
    """The bytes of a head without its Upgrade header."""
    kept = [b"%s: %s\r\n" % field for field in fields if field[0] != b"upgrade"]
    line = b"%s %s HTTP/%s\r\n" % (method, target, version.encode())
    return b"".join([line, *kept, b"\r\n"])
