"""Which server a command asks, and how it gets there."""

import argparse
import os
import sys
from pathlib import Path

from serving.admin_sockets import live_sockets, run_directories
from serving.client import Client, Tls
from serving.commands.argument_types import target
from serving.errors import InvalidArgument, InvalidConfig, NotFound
from serving.name_text import listed

DATA_TARGET = "localhost:8500"


def add_connection(parser: argparse.ArgumentParser, *, is_operator: bool = True) -> None:
    """--target, and what TLS needs. `is_operator`: by default the server is found by its socket."""
    found = "the one server that this user runs on this machine"
    parser.add_argument(
        "--target",
        type=target,
        default=None if is_operator else DATA_TARGET,
        metavar="HOST:PORT",
        help=f"server, or unix:PATH; default {found if is_operator else DATA_TARGET}",
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
    if parsed.target is None:
        # Over the network an operator needs a certificate, and on this machine none.
        parsed.target = DATA_TARGET if _tls(parsed) else found_target()
    try:
        return Client(parsed.target, tls=_tls(parsed))
    except InvalidArgument as error:
        raise InvalidConfig(str(error)) from error


def warn(command: str, warning: str) -> None:
    """Prints a server's warning, unless it is "", beside what the command prints."""
    if warning:
        print(f"millpond {command}: warning: {warning}", file=sys.stderr)


def found_target() -> str:
    """The admin socket of the one server that runs as this user. Raises NotFound, InvalidConfig."""
    directories = run_directories(os.environ, os.geteuid())
    targets = [f"unix:{path}" for path in live_sockets(directories)]
    if not targets:
        raise NotFound(
            f"no server of this user has an admin socket in {' or '.join(map(str, directories))}; "
            "start one, or give --target=unix:PATH or --target=HOST:PORT"
        )
    if len(targets) > 1:
        raise InvalidConfig(
            f"{len(targets)} servers run here; choose one: "
            f"{listed((f'--target={item}' for item in targets), ' or ')}"
        )
    return targets[0]


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
