"""`transports`: the cost of TLS and compression for gRPC, at 1 and at 100 rows."""

import argparse
import json
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from loadtest.commands.options import Command
from loadtest.commands.variants import (
    Variant,
    add_variant_options,
    measure_variants,
    print_variants,
    variants_report,
)
from loadtest.drive.demo_model import demo_directory, prepare_model
from loadtest.drive.generator import ChannelOptions
from loadtest.report.tables import exit_status, write_json
from serving.base.errors import Unavailable

_CERTIFICATE_DAYS = 2


@dataclass(frozen=True)
class Certificate:
    """The files of a self-signed certificate for 127.0.0.1 and of the server's config with its
    key.
    """

    certificate: Path
    ssl_config: Path


def make_certificate(directory: Path) -> Certificate:
    """Makes the certificate with openssl in `directory`. Raises Unavailable if that fails."""
    key, certificate = directory / "key.pem", directory / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-days", str(_CERTIFICATE_DAYS), "-keyout", str(key), "-out", str(certificate)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError) as error:
        raise Unavailable(f"openssl cannot make a certificate: {error}") from error
    ssl_config = directory / "ssl.config"
    ssl_config.write_text(
        f"server_key: {_quoted(key.read_text())}\nserver_cert: {_quoted(certificate.read_text())}\n"
    )
    return Certificate(certificate, ssl_config)


def _quoted(pem: str) -> str:
    # Protobuf's text format reads JSON's escapes of ASCII text.
    return json.dumps(pem)


def transports(certificate: Certificate) -> Mapping[str, Variant]:
    """Returns the variants, plain gRPC first."""
    flags = {"ssl_config_file": certificate.ssl_config}
    ca = certificate.certificate
    return {
        "plain": Variant(),
        "TLS": Variant(flags, ChannelOptions(ca)),
        "gzip": Variant(channel=ChannelOptions(compression="gzip")),
        "deflate": Variant(channel=ChannelOptions(compression="deflate")),
        "TLS and gzip": Variant(flags, ChannelOptions(ca, "gzip")),
    }


def _run(parsed: argparse.Namespace) -> int:
    console = Console()
    with ExitStack() as stack:
        directory = stack.enter_context(demo_directory(parsed.models))
        secrets = Path(stack.enter_context(TemporaryDirectory(prefix="millpond-tls-")))
        model = prepare_model(directory, parsed.table_rows, console.print)
        variants = transports(make_certificate(secrets))
        measured = measure_variants(parsed, model, variants, console.print)
    report = variants_report(measured, parsed.rate)
    print_variants(report, console)
    write_json(parsed.json, report)
    return exit_status(report)


TRANSPORT = Command("the cost of TLS and compression for gRPC", add_variant_options, _run)
