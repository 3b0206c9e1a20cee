import ssl
from pathlib import Path

from google.protobuf import text_encoding

from loadtest.drive.transports import make_certificate, transports


def test_plain_is_first_and_only_tls_has_flags(tmp_path: Path):
    made = make_certificate(tmp_path)
    servers = transports(made)
    assert next(iter(servers)) == "plain"
    for name, (flags, channel) in servers.items():
        assert (flags == f"--ssl_config_file={made.ssl_config}") == ("TLS" in name)
        assert (channel.root_certificates == made.certificate) == ("TLS" in name)
        assert (channel.compression == "gzip") == ("gzip" in name)


def test_certificate_names_host_and_config_holds_it(tmp_path: Path):
    made = make_certificate(tmp_path)
    pem = made.certificate.read_text()
    context = ssl.create_default_context(cadata=pem)
    assert context.get_ca_certs()[0]["subjectAltName"] == (("IP Address", "127.0.0.1"),)
    config = made.ssl_config.read_text()
    values = dict(line.split(": ", 1) for line in config.splitlines())
    assert text_encoding.CUnescape(values["server_cert"].strip('"')).decode() == pem
    assert "PRIVATE KEY" in values["server_key"]
