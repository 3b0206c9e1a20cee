from collections import Counter

import pytest
from google.protobuf import wrappers_pb2
from hypothesis import given
from hypothesis import strategies as st

from serving.base.errors import StatusCode
from serving.client.rotation import (
    Health,
    Rotation,
    health_of_failed_watch,
    health_of_response,
    next_index,
    watch_request,
)

DOWN, UNKNOWN, SERVING = Health
HEALTHS = st.lists(st.sampled_from(Health), min_size=1, max_size=5)


@pytest.mark.parametrize(
    ("healths", "last", "avoid", "expected"),
    [
        ([SERVING, SERVING, SERVING], 0, None, 1),
        ([SERVING, SERVING, SERVING], 2, None, 0),
        ([SERVING, DOWN, SERVING], 0, None, 2),
        ([DOWN, SERVING, DOWN], 1, None, 1),
        ([UNKNOWN, SERVING], 1, None, 1),
        ([UNKNOWN, DOWN], 0, None, 0),
        ([DOWN, DOWN], 0, None, 1),
        # After a failure another server is chosen if there is one; a server that is down comes
        # last.
        ([SERVING, SERVING], 1, 0, 1),
        ([SERVING, UNKNOWN], 1, 0, 1),
        ([SERVING, DOWN], 0, 0, 0),
        ([DOWN, DOWN], 1, 0, 0),
        ([SERVING], 0, 0, 0),
    ],
)
def test_next_index_takes_the_healthiest_in_turn(
    healths: list[Health], last: int, avoid: int | None, expected: int
):
    assert next_index(healths, last, avoid) == expected


@given(HEALTHS, st.integers(0, 4))
def test_rotation_spreads_evenly_over_best_servers(healths: list[Health], round_count: int):
    rotation = Rotation(len(healths))
    for index, health in enumerate(healths):
        rotation.report(index, health)
    best = [index for index, health in enumerate(healths) if health is max(healths)]
    taken = Counter(rotation.take() for _ in range(round_count * len(best)))
    assert taken == {index: round_count for index in best if round_count}


def test_rotation_returns_to_recovered_server():
    rotation = Rotation(2)
    rotation.report(0, SERVING)
    rotation.report(1, DOWN)
    assert {rotation.take() for _ in range(4)} == {0}
    rotation.report(1, SERVING)
    assert {rotation.take() for _ in range(4)} == {0, 1}
    assert rotation.healths == (SERVING, SERVING)


@pytest.mark.parametrize(("service", "expected"), [("", b""), ("ctr", b"\x0a\x03ctr")])
def test_watch_request_has_the_services_name(service: str, expected: bytes):
    assert watch_request(service) == expected


def test_watch_request_of_a_long_name_is_a_message():
    name = "m" * 300
    assert wrappers_pb2.StringValue.FromString(watch_request(name)).value == name


@pytest.mark.parametrize(
    ("response", "expected"),
    [(b"\x08\x01", SERVING), (b"\x08\x02", DOWN), (b"\x08\x03", DOWN), (b"", DOWN)],
    ids=["serving", "not_serving", "service_unknown", "unknown"],
)
def test_health_of_a_response(response: bytes, expected: Health):
    assert health_of_response(response) is expected


def test_server_without_health_service_takes_turns():
    assert health_of_failed_watch(StatusCode.UNIMPLEMENTED) is SERVING
    assert health_of_failed_watch(StatusCode.UNAVAILABLE) is DOWN
