import pytest

from serving.http.hosts import HostRule, host_name, host_rule, is_loopback

LOOPBACK = host_rule((), "127.0.0.1", "Box.example.com")
NAMED = host_rule(("Models.Example.com", "10.0.0.9", "[fd00::1]:8501"), "0.0.0.0", "box")
OPEN = host_rule((), "0.0.0.0", "box")


@pytest.mark.parametrize(
    ("rule", "header", "is_permitted"),
    [
        (LOOPBACK, "localhost", True),
        (LOOPBACK, "LOCALHOST.:8501", True),
        (LOOPBACK, "a.localhost:8501", True),
        (LOOPBACK, "127.0.0.1:8501", True),
        (LOOPBACK, "127.9.9.9", True),
        (LOOPBACK, "[::1]:8501", True),
        (LOOPBACK, "[::ffff:127.0.0.1]", True),
        (LOOPBACK, "box.example.com:8501", True),
        (LOOPBACK, "box", True),
        (LOOPBACK, "evil.example.com", False),
        (LOOPBACK, "127.0.0.1.evil.com", False),
        (LOOPBACK, "localhost.evil.com", False),
        (LOOPBACK, "notlocalhost", False),
        (LOOPBACK, "10.0.0.1", False),
        (LOOPBACK, "0.0.0.0", False),
        (LOOPBACK, "", False),
        (LOOPBACK, "user@localhost", False),
        (NAMED, "models.example.com", True),
        (NAMED, "10.0.0.9:8501", True),
        (NAMED, "[fd00::1]", True),
        (NAMED, "localhost:8501", True),
        (NAMED, "box", False),
        (NAMED, "evil.example.com", False),
        (OPEN, "evil.example.com", True),
    ],
)
def test_host_rule_permits_own_names(rule: HostRule, header: str, is_permitted: bool):
    assert rule.permits(header, "127.0.0.1") is is_permitted


def test_own_address_of_request_is_permitted():
    assert NAMED.permits("192.0.2.7:8501", "192.0.2.7")
    assert not NAMED.permits("192.0.2.8:8501", "192.0.2.7")
    assert not NAMED.permits("", "")


@pytest.mark.parametrize(
    ("header", "name"),
    [("A.b:1", "a.b"), ("[::1]:1", "::1"), ("::1", "::1"), ("a.", "a"), ("", ""), (" a ", "a")],
)
def test_host_name_is_without_port(header: str, name: str):
    assert host_name(header) == name


@pytest.mark.parametrize("bound", ["localhost", "127.0.0.2", "::1"])
def test_loopback_binds_are_known(bound: str):
    assert is_loopback(bound)
