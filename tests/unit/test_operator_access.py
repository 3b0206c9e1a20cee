import pytest

from serving.base.errors import MillpondError, PermissionDenied, Unimplemented
from serving.rpc.operator_access import Caller, OperatorAccess, grpc_caller, http_caller

LOCAL = OperatorAccess()
EVERYONE = OperatorAccess(on_data_port="true")
NOBODY = OperatorAccess(on_data_port="false")
NAMED = OperatorAccess(clients=frozenset({"ops"}))

HERE = Caller("127.0.0.1")
PROXIED = Caller("127.0.0.1", is_forwarded=True)
REMOTE = Caller("192.0.2.7")
OPERATOR = Caller("192.0.2.7", ("ops", "ops.example.com"))
STRANGER = Caller("192.0.2.7", ("other",))


def may(check, caller: Caller) -> bool:
    try:
        check(caller)
    except MillpondError:
        return False
    return True


@pytest.mark.parametrize(
    ("access", "caller", "may_control", "may_admin"),
    [
        (LOCAL, HERE, True, False),
        (LOCAL, Caller(""), True, False),
        (LOCAL, Caller("::1"), True, False),
        (LOCAL, Caller("::ffff:127.0.0.1"), True, False),
        (LOCAL, PROXIED, False, False),
        (LOCAL, REMOTE, False, False),
        (LOCAL, OPERATOR, False, False),
        (EVERYONE, REMOTE, True, True),
        (NOBODY, HERE, False, False),
        (NAMED, HERE, True, False),
        (NAMED, OPERATOR, True, True),
        (NAMED, STRANGER, False, False),
    ],
)
def test_callers_have_rights_of_flags(
    access: OperatorAccess, caller: Caller, may_control: bool, may_admin: bool
):
    assert (may(access.check_control, caller), may(access.check_admin, caller)) == (
        may_control,
        may_admin,
    )
    assert may(access.check_profiling, caller) == may_control


def test_refusals_name_the_caller_and_the_remedy():
    with pytest.raises(PermissionDenied, match=r"192\.0\.2\.7.*--admin_on_data_port=true"):
        LOCAL.check_control(REMOTE)
    with pytest.raises(PermissionDenied, match=r"192\.0\.2\.7 may not profile this server"):
        LOCAL.check_profiling(REMOTE)
    with pytest.raises(PermissionDenied, match=r"127\.0\.0\.1 through a proxy"):
        LOCAL.check_control(PROXIED)
    with pytest.raises(Unimplemented, match="not answered on this port; run the millpond command"):
        LOCAL.check_admin(HERE)
    with pytest.raises(PermissionDenied, match=r"192\.0\.2\.7 \(other\).*--admin_clients"):
        NAMED.check_admin(STRANGER)


@pytest.mark.parametrize(
    ("peer", "is_local"),
    [
        ("ipv4:127.0.0.1:50000", True),
        ("ipv6:%5B::1%5D:50000", True),
        ("ipv6:[::1]:50000", True),
        ("ipv6:%5B::ffff:127.0.0.1%5D:1", True),
        ("unix:", True),
        ("unix:/run/s", True),
        ("ipv4:192.0.2.7:50000", False),
        ("ipv6:%5Bfe80::1%25eth0%5D:1", False),
        ("ipv6:%5B2001:db8::1%5D:1", False),
        ("ipv4:127.0.0.1.evil.com:1", False),
        ("", False),
        ("vsock:1:2", False),
    ],
)
def test_grpc_peers_are_distinguished(peer: str, is_local: bool):
    assert grpc_caller(peer, (), is_forwarded=False).is_local is is_local


@pytest.mark.parametrize(
    ("client", "headers", "is_local"),
    [
        (("127.0.0.1", 5), [], True),
        (("::1", 5), [(b"host", b"h")], True),
        (("192.0.2.7", 5), [], False),
        (("127.0.0.1", 5), [(b"x-forwarded-for", b"192.0.2.7")], False),
        (("127.0.0.1", 5), [(b"via", b"1.1 proxy")], False),
        (("127.0.0.1", 5), [(b"origin", b"https://evil.example.com")], False),
        (None, [], False),
        (("", 0), [], True),
        (("", 0), [(b"x-real-ip", b"192.0.2.7")], False),
    ],
)
def test_proxied_and_browser_callers_are_not_local(client, headers, is_local: bool):
    assert http_caller({"client": client, "headers": headers}).is_local is is_local


def test_certificate_of_an_http_client_names_it():
    scope = {"client": ("192.0.2.7", 5), "headers": [], "client_names": ["admin"]}
    OperatorAccess(clients=frozenset({"admin"})).check_control(http_caller(scope))
