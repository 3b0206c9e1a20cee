import pytest

from serving.base.errors import InvalidConfig
from serving.fleet.haproxy import (
    PREFACE,
    Backend,
    HaproxySettings,
    haproxy_text,
    health_call,
)

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
