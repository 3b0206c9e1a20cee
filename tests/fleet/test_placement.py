from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from fleet.replicas.placement import (
    SWAP_VERSION_COUNT,
    ModelNeed,
    Placement,
    ServerRoom,
    place,
    replicas_needed,
)


def rooms(*memory_bytes: int) -> list[ServerRoom]:
    return [
        ServerRoom(name=f"s{number}", memory_bytes=size) for number, size in enumerate(memory_bytes)
    ]


def test_replicas_lie_on_different_servers() -> None:
    need = ModelNeed(name="m", version_bytes=10, replica_count=2)
    assert place([need], rooms(100, 100, 100)).servers["m"] == ("s0", "s1")


def test_replica_needs_room_for_two_versions() -> None:
    need = ModelNeed(name="m", version_bytes=10)
    assert place([need], rooms(19)).missing == {"m": 1}
    assert place([need], rooms(20)).missing == {}


def test_replica_needs_room_for_its_process() -> None:
    need = ModelNeed(name="m", version_bytes=10, process_bytes=5)
    assert place([need], rooms(24)).missing == {"m": 1}
    assert place([need], rooms(25)).missing == {}


def test_larger_models_are_placed_first() -> None:
    needs = [ModelNeed(name="small", version_bytes=1), ModelNeed(name="large", version_bytes=40)]
    assert place(needs, rooms(30, 82)).servers == {"large": ("s1",), "small": ("s0",)}


def test_models_stay_where_they_are() -> None:
    need = ModelNeed(name="m", version_bytes=10)
    assert place([need], rooms(100, 900), {"m": ["s0"]}).servers["m"] == ("s0",)


def test_models_leave_a_draining_server() -> None:
    need = ModelNeed(name="m", version_bytes=10)
    draining = ServerRoom(name="s0", memory_bytes=100, is_draining=True)
    placed = place([need], [draining, *rooms(1, 50)[1:]], {"m": ["s0"]})
    assert placed.servers["m"] == ("s1",)


def test_models_leave_a_server_that_is_gone() -> None:
    need = ModelNeed(name="m", version_bytes=10)
    assert place([need], rooms(50), {"m": ["gone"]}).servers["m"] == ("s0",)


def test_load_asks_for_more_replicas() -> None:
    need = ModelNeed(name="m", version_bytes=1, requests_per_second=250)
    servers = [
        ServerRoom(name=f"s{number}", memory_bytes=10, requests_per_second=100)
        for number in range(4)
    ]
    assert replicas_needed(need, servers) == 3
    assert len(place([need], servers).servers["m"]) == 3


def test_fewer_replicas_leave_the_last_servers() -> None:
    need = ModelNeed(name="m", version_bytes=1, replica_count=1)
    assert place([need], rooms(9, 9), {"m": ["s1", "s0"]}).servers["m"] == ("s1",)


def test_no_server_leaves_everything_missing() -> None:
    assert place([ModelNeed(name="m", version_bytes=1)], []).missing == {"m": 1}


NEEDS = st.lists(
    st.builds(
        ModelNeed,
        name=st.sampled_from("abcdef"),
        version_bytes=st.integers(0, 50),
        requests_per_second=st.integers(0, 300),
        replica_count=st.integers(1, 4),
    ),
    unique_by=lambda need: need.name,
)
ROOMS = st.lists(
    st.builds(
        ServerRoom,
        name=st.sampled_from([f"s{number}" for number in range(6)]),
        memory_bytes=st.integers(0, 200),
        requests_per_second=st.integers(1, 200),
        is_draining=st.booleans(),
    ),
    unique_by=lambda room: room.name,
)


def _within_limits(
    placed: Placement, needs: Sequence[ModelNeed], servers: Sequence[ServerRoom]
) -> None:
    for room in servers:
        here = [need for need in needs if room.name in placed.servers[need.name]]
        assert not (here and room.is_draining)
        assert sum(SWAP_VERSION_COUNT * need.version_bytes for need in here) <= room.memory_bytes


@given(needs=NEEDS, servers=ROOMS)
def test_placement_never_exceeds_memory(needs: list[ModelNeed], servers: list[ServerRoom]) -> None:
    placed = place(needs, servers)
    _within_limits(placed, needs, servers)
    for names in placed.servers.values():
        assert len({*names}) == len(names)


@given(needs=NEEDS, servers=ROOMS)
def test_placement_repeated_moves_nothing(
    needs: list[ModelNeed], servers: list[ServerRoom]
) -> None:
    placed = place(needs, servers)
    again = place(needs, servers, placed.servers)
    _within_limits(again, needs, servers)
    assert again.servers == placed.servers
