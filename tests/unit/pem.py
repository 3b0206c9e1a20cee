"""Keys and certificates for tests, which `openssl` makes."""

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Identity:
    """A key and its certificate."""

    key: str
    certificate: str


def make_identity(directory: Path, name: str, issuer: Identity | None = None) -> Identity:
    """Makes a certificate for localhost and 127.0.0.1.

    Without `issuer` it is self-signed and a CA.
    """
    key, certificate = directory / f"{name}.key", directory / f"{name}.crt"
    command = ["openssl", "req", "-x509", "-nodes", "-days", "1", "-subj", f"/CN={name}"]
    command += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    command += ["-keyout", str(key), "-out", str(certificate)]
    if issuer is not None:
        paths = directory / f"{name}.ca.crt", directory / f"{name}.ca.key"
        for path, text in zip(paths, (issuer.certificate, issuer.key), strict=True):
            path.write_text(text)
        command += ["-CA", str(paths[0]), "-CAkey", str(paths[1])]
        command += ["-addext", "basicConstraints=critical,CA:FALSE"]
    subprocess.run(command, check=True, capture_output=True)
    return Identity(key.read_text(), certificate.read_text())


def config_text(
    key: str, certificate: str, custom_ca: str = "", *, client_verify: bool = False
) -> str:
    """Returns an SSLConfig in text form."""
    fields = {"server_key": key, "server_cert": certificate, "custom_ca": custom_ca}
    lines = [f'{name}: "{text}"'.replace("\n", "\\n") for name, text in fields.items() if text]
    return "\n".join([*lines, f"client_verify: {str(client_verify).lower()}"])
