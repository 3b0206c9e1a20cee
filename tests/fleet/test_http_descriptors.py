import resource

import pytest

from fleet.http.descriptors import connection_count_max


@pytest.mark.parametrize(
    ("wanted", "limit", "expected"),
    [
        (512, 1_048_576, 512),
        (512, 1_024, 170),
        (512, 3, 1),
        (512, resource.RLIM_INFINITY, 512),
    ],
)
def test_http_has_a_part_of_the_descriptors(wanted: int, limit: int, expected: int) -> None:
    assert connection_count_max(wanted, limit) == expected


def test_http_limit_of_this_process_is_not_exceeded() -> None:
    assert 1 <= connection_count_max(512) <= 512
