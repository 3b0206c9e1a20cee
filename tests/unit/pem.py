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


def make_expired(directory: Path, name: str, issuer: Identity) -> Identity:
    """Makes a certificate for 127.0.0.1 that was valid for a day in 2020."""
    home = directory / f"{name}.ca"
    home.mkdir()
    for file, text in {
        "ca.crt": issuer.certificate,
        "ca.key": issuer.key,
        "index.txt": "",
        "serial": "01",
        "ext.cnf": "subjectAltName=IP:127.0.0.1,DNS:localhost",
        "ca.cnf": "[ca]\ndefault_ca=d\n[d]\ndatabase=index.txt\nnew_certs_dir=.\nserial=serial\n"
        "default_md=sha256\npolicy=p\n[p]\ncommonName=supplied\n",
    }.items():
        (home / file).write_text(text)
    request = ["openssl", "req", "-nodes", "-subj", f"/CN={name}", "-newkey", "ec"]
    request += ["-pkeyopt", "ec_paramgen_curve:prime256v1", "-keyout", "own.key", "-out", "own.csr"]
    sign = ["openssl", "ca", "-batch", "-notext", "-config", "ca.cnf", "-extfile", "ext.cnf"]
    sign += ["-cert", "ca.crt", "-keyfile", "ca.key", "-in", "own.csr", "-out", "own.crt"]
    sign += ["-startdate", "20200101000000Z", "-enddate", "20200102000000Z"]
    for command in (request, sign):
        subprocess.run(command, check=True, capture_output=True, cwd=home)
    return Identity((home / "own.key").read_text(), (home / "own.crt").read_text())


def config_text(
    key: str, certificate: str, custom_ca: str = "", *, client_verify: bool = False
) -> str:
    """Returns an SSLConfig in text form."""
    fields = {"server_key": key, "server_cert": certificate, "custom_ca": custom_ca}
    lines = [f'{name}: "{text}"'.replace("\n", "\\n") for name, text in fields.items() if text]
    return "\n".join([*lines, f"client_verify: {str(client_verify).lower()}"])


def show_identity(file: Path, identity: Identity, ca: Identity | None = None) -> None:
    """Replaces an SSLConfig file at once. With `ca`, clients need a certificate of it."""
    custom_ca = ca.certificate if ca is not None else ""
    beside = file.with_suffix(".new")
    beside.write_text(
        config_text(identity.key, identity.certificate, custom_ca, client_verify=ca is not None)
    )
    beside.rename(file)
