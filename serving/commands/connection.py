"""Finds the server of a command, and connects to it."""

import argparse
import os
import sys
from pathlib import Path

from serving.base.errors import InvalidArgument, InvalidConfig, NotFound
from serving.base.name_text import listed, printable
from serving.client import Client, Tls
from serving.commands.argument_types import target
from serving.server.admin_sockets import live_sockets, run_directories

DATA_TARGET = "localhost:8500"


def add_connection(parser: argparse.ArgumentParser, *, is_operator: bool = True) -> None:
    """Adds --target and the TLS options to a command.

    Without --target, the command calls the only server of this user on this machine, through its admin
    socket. If there is none and the command is not for operators (`is_operator` is False), it calls
    localhost:8500, which may be a server of another user.
    """
    found = "the one server that this user runs on this machine"
    parser.add_argument(
        "--target",
        type=target,
        metavar="HOST:PORT",
        help=f"server, or unix:PATH; default {found}{'' if is_operator else f', or {DATA_TARGET}'}",
    )
    parser.set_defaults(is_operator=is_operator)
    tls = parser.add_argument_group("TLS", "used if one of these is given; PEM files")
    tls.add_argument(
        "--tls_ca",
        type=Path,
        metavar="FILE",
        help="certificate of the authority that signed the server's",
    )
    tls.add_argument("--tls_cert", type=Path, metavar="FILE", help="this client's certificate")
    tls.add_argument("--tls_key", type=Path, metavar="FILE", help="the key of --tls_cert")
    tls.add_argument(
        "--tls_server_name",
        default="",
        metavar="NAME",
        help="the name in the server's certificate, if it is not HOST",
    )


def connect(parsed: argparse.Namespace, *, is_announced: bool = False) -> Client:
    """Makes a client of the command's server. Raises InvalidConfig if the TLS files are wrong.

    Prints the server's address to standard error if `is_announced` is True or --target is not given. It does
    not go to standard output, because scripts read the result of the command there.
    """
    if parsed.target is None:
        is_announced = True
        parsed.target = _default_target(parsed)
    try:
        client = Client(parsed.target, tls=_tls(parsed))
    except InvalidArgument as error:
        raise InvalidConfig(str(error)) from error
    if is_announced:
        print(f"server {printable(parsed.target)}", file=sys.stderr)
    return client


def warn(command: str, warning: str) -> None:
    """Prints a server's warning to standard error. Prints nothing if `warning` is ""."""
    if warning:
        print(f"millpond {command}: warning: {warning}", file=sys.stderr)


def _default_target(parsed: argparse.Namespace) -> str:
    # TLS options show that the command should use the network, because an admin socket needs none.
    if _tls(parsed) is not None:
        return DATA_TARGET
    try:
        return found_target()
    except NotFound:
        if parsed.is_operator:
            raise
        return DATA_TARGET


def found_target() -> str:
    """Finds the admin socket of the only server of this user.

    Raises NotFound if there is none, and InvalidConfig if there are several.
    """
    directories = run_directories(os.environ, os.geteuid())
    targets = [f"unix:{path}" for path in live_sockets(directories)]
    if not targets:
        raise NotFound(
            f"no server of this user has an admin socket in {' or '.join(map(str, directories))}; "
            "start one, or give --target=unix:PATH or --target=HOST:PORT"
        )
    if len(targets) > 1:
        raise InvalidConfig(
            f"{len(targets)} servers of this user run on this machine; choose one: "
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
