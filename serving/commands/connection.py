"""Which server a command asks, and how it gets there."""

import argparse
import sys
from pathlib import Path

from serving.client import Client, Tls
from serving.commands.argument_types import target
from serving.errors import InvalidArgument, InvalidConfig


def add_connection(parser: argparse.ArgumentParser) -> None:
    """--target, and what TLS needs."""
    parser.add_argument(
        "--target",
        type=target,
        default="localhost:8500",
        metavar="HOST:PORT",
        help="server, or unix:PATH; default %(default)s",
    )
    tls = parser.add_argument_group("TLS", "used where one of these is given; PEM files")
    tls.add_argument(
        "--tls_ca", type=Path, metavar="FILE", help="who signed the server's certificate"
    )
    tls.add_argument("--tls_cert", type=Path, metavar="FILE", help="this client's certificate")
    tls.add_argument("--tls_key", type=Path, metavar="FILE", help="the key of --tls_cert")
    tls.add_argument(
        "--tls_server_name",
        default="",
        metavar="NAME",
        help="the name in the server's certificate, where it is not HOST",
    )


def connect(parsed: argparse.Namespace) -> Client:
    """A client of the server that was asked for. Raises InvalidConfig where its TLS files are wrong."""
    try:
        return Client(parsed.target, tls=_tls(parsed))
    except InvalidArgument as error:
        raise InvalidConfig(str(error)) from error


def warn(command: str, warning: str) -> None:
    """Prints a server's warning, unless it is "", beside what the command prints."""
    if warning:
        print(f"millpond {command}: warning: {warning}", file=sys.stderr)


def _tls(parsed: argparse.Namespace) -> Tls | None:
    files = (parsed.tls_ca, parsed.tls_cert, parsed.tls_key)
    if not any((*files, parsed.tls_server_name)):
        return None
    return Tls(
        ca_file=parsed.tls_ca,
        certificate_file=parsed.tls_cert,
        key_file=parsed.tls_key,
        server_name=parsed.tls_server_name,
    )
