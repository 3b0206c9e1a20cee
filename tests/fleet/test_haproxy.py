import shutil
import subprocess
from pathlib import Path

import pytest

from fleet.config.config import parse_fleet_config
from fleet.files.haproxy import (
    PREFACE,
    Backend,
    HaproxySettings,
    haproxy_text,
    health_call,
)
from serving.base.errors import InvalidConfig

BACKENDS = [
    Backend(name="b", address="10.0.0.2:8500"),
    Backend(name="a", address="[::1]:8500", is_draining=True),
]


def frames_of(wire: bytes) -> list[tuple[int, int, int, bytes]]:
    assert wire.startswith(PREFACE)
    rest, frames = wire[len(PREFACE) :], []
    while rest:
        length = int.from_bytes(rest[:3], "big")
        frames.append((rest[3], rest[4], int.from_bytes(rest[5:9], "big"), rest[9 : 9 + length]))
        rest = rest[9 + length :]
    return frames


def test_health_call_is_a_whole_request() -> None:
    settings, headers, data = frames_of(health_call())
    assert settings == (4, 0, 0, b"")
    assert headers[:3] == (1, 4, 1)
    assert b"/grpc.health.v1.Health/Check" in headers[3]
    assert data == (0, 1, 1, bytes(5))


def test_health_call_over_tls_has_its_scheme() -> None:
    assert frames_of(health_call(is_tls=True))[1][3][1] == 0x87


def test_configuration_has_servers_by_name() -> None:
    lines = haproxy_text(BACKENDS, HaproxySettings()).splitlines()
    assert lines[-2:] == [
        "    server a [::1]:8500 weight 0",
        "    server b 10.0.0.2:8500",
    ]


def test_configuration_does_not_depend_on_the_order() -> None:
    settings = HaproxySettings()
    assert haproxy_text(BACKENDS, settings) == haproxy_text(BACKENDS[::-1], settings)


def test_configuration_with_an_authority_uses_tls() -> None:
    text = haproxy_text(BACKENDS, HaproxySettings(ca_file="/etc/ca.pem"))
    assert "ssl verify required ca-file /etc/ca.pem alpn h2" in text
    assert "tcp-check connect ssl alpn h2" in text


@pytest.mark.parametrize(
    "backend",
    [
        Backend(name="a b", address="h:1"),
        Backend(name="a\nlisten evil", address="h:1"),
        Backend(name="a", address="h:1 check\n"),
        Backend(name="", address="h:1"),
    ],
)
def test_name_that_is_more_than_a_word_is_refused(backend: Backend) -> None:
    with pytest.raises(InvalidConfig):
        haproxy_text([backend], HaproxySettings())


def test_bind_that_is_more_than_a_word_is_refused() -> None:
    with pytest.raises(InvalidConfig):
        HaproxySettings(bind="*:80\n")


BINDS = {"ctr": "0.0.0.0:8600", "ads": "0.0.0.0:8601"}
OF_MODELS = [
    Backend(name="a", address="10.0.0.1:8500", models=frozenset({"ctr"})),
    Backend(name="b", address="10.0.0.2:8500", models=frozenset({"ads"})),
    Backend(name="c", address="10.0.0.3:8500", models=frozenset({"ctr", "ads"})),
    Backend(name="new", address="10.0.0.4:8500"),
]


def servers_by_backend(text: str) -> dict[str, list[str]]:
    """Returns the names of the servers of each backend of a configuration."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        word, _, rest = line.strip().partition(" ")
        if word == "backend":
            found[rest] = []
        elif word == "server":
            [*found.values()][-1].append(rest.split()[0])
    return found


def test_each_model_has_its_own_address() -> None:
    text = haproxy_text(OF_MODELS, HaproxySettings(binds=BINDS))
    assert servers_by_backend(text) == {"servers-ads": ["b", "c"], "servers-ctr": ["a", "c"]}
    assert "bind 0.0.0.0:8600 proto h2\n    default_backend servers-ctr\n" in text
    assert "bind 0.0.0.0:8601 proto h2\n    default_backend servers-ads\n" in text
    assert HaproxySettings().bind not in text


def test_one_address_refuses_different_models() -> None:
    with pytest.raises(InvalidConfig, match="servers a and b do not have the same models"):
        haproxy_text(OF_MODELS, HaproxySettings())


def test_draining_or_unknown_server_is_no_difference() -> None:
    backends = [
        OF_MODELS[0],
        Backend(name="b", address="h:1", models=frozenset({"ads"}), is_draining=True),
        OF_MODELS[3],
    ]
    assert servers_by_backend(haproxy_text(backends, HaproxySettings())) == {
        "servers": ["a", "b", "new"]
    }


def test_binds_are_read_from_the_file() -> None:
    text = '[coordinator]\nstate_directory = "/x"\n[servers.a]\nadmin = "h:1"\n[haproxy]\nfile = "/f"\n'
    config = parse_fleet_config(f'{text}binds = {{ctr = "10.0.0.9:1", ads = "10.0.0.9:2"}}\n')
    assert config.haproxy is not None
    assert config.haproxy.settings.binds == {"ctr": "10.0.0.9:1", "ads": "10.0.0.9:2"}


@pytest.mark.parametrize(
    "binds", [{"a b": "h:1"}, {"a": "* 1"}, {"a": 1}, {"a": "h:1", "b": "h:1"}, ["h:1"]]
)
def test_other_binds_are_refused(binds: object) -> None:
    with pytest.raises(InvalidConfig):
        HaproxySettings(binds=binds)  # type: ignore[arg-type]


HAPROXY = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")


@pytest.mark.skipif(HAPROXY is None, reason="HAProxy is not installed")
@pytest.mark.parametrize(
    ("backends", "settings"),
    [
        ([], {}),
        (BACKENDS, {}),
        (OF_MODELS, {"binds": BINDS}),
        # A name that cannot be resolved now keeps no other server out of the file.
        ([*BACKENDS, Backend(name="gone", address="gone.invalid:8500")], {}),
    ],
)
def test_haproxy_takes_the_configuration(
    backends: list[Backend], settings: dict[str, object], tmp_path: Path
) -> None:
    path = tmp_path / "haproxy.cfg"
    stats = str(tmp_path / "stats.sock")
    path.write_text(haproxy_text(backends, HaproxySettings(stats_socket=stats, **settings)))  # type: ignore[arg-type]
    done = subprocess.run(
        [str(HAPROXY), "-c", "-f", str(path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
