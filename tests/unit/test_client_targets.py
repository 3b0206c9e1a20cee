import pytest

from serving.base.errors import InvalidArgument
from serving.client import Client
from serving.client.targets import joined, target_list


@pytest.mark.parametrize("target", ["localhost:8500", "dns:///m:8500", "unix:/a,b", "10.0.0.1:80"])
def test_single_target_stays_as_it_is(target: str):
    assert joined(target_list(target)) == joined(target_list([target])) == target


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        (["10.0.0.1:8500", "10.0.0.2:8501"], "ipv4:10.0.0.1:8500,10.0.0.2:8501"),
        (["ipv4:10.0.0.1:80", "10.0.0.2:80"], "ipv4:10.0.0.1:80,10.0.0.2:80"),
        (["[::1]:80", "ipv6:[fe80::2]:81"], "ipv6:[::1]:80,[fe80::2]:81"),
        (["unix:/a/b", "unix:c", "unix:///d"], "unix:/a/b,c,/d"),
    ],
)
def test_addresses_of_one_kind_are_joined(targets: list[str], expected: str):
    assert joined(targets) == expected


@pytest.mark.parametrize(
    "target",
    [
        *("localhost:8500", "models.example:8500", "dns:///m:80", "10.0.0.1", "10.0.0.1:x"),
        *("::1:80", "[::1]", "[10.0.0.1]:80", "unix:/a,b", "unix:", "unix-abstract:a", ":80"),
    ],
)
def test_other_targets_of_several_are_refused(target: str):
    with pytest.raises(ValueError, match="each of several servers needs an address") as raised:
        joined([target, "10.0.0.2:8500"])
    assert repr(target) in str(raised.value)
    assert "For localhost write 127.0.0.1" in str(raised.value)


def test_targets_of_two_kinds_are_refused():
    with pytest.raises(ValueError, match=r"cannot mix ipv4 and unix.*make a client for each kind"):
        joined(["10.0.0.1:8500", "unix:/a"])


@pytest.mark.parametrize("target", ["", [], ["10.0.0.1:8500", ""]])
def test_client_without_a_server_is_refused(target: str | list[str]):
    with pytest.raises(InvalidArgument, match="names no server"):
        Client(target)


@pytest.mark.parametrize("target", ["fleet://127.0.0.1:8600", "fleet+file:/run/fleet.json"])
def test_client_of_a_scheme_that_is_gone_is_refused(target: str):
    for given in (target, ["10.0.0.1:8500", target]):
        with pytest.raises(
            InvalidArgument, match=r"list of its servers.*DNS name.*HAProxy"
        ) as raised:
            Client(given)
        assert repr(target) in str(raised.value)
