"""`bench` with a server of any make: failures that h2load does not see."""

import pytest

from loadtest.measure.bench_server import check_data
from serving.base.errors import Unavailable


def test_data_of_all_answers_passes():
    check_data(1_000, answer_bytes=105, data_bytes=105_000)


def test_missing_answers_are_counted():
    with pytest.raises(Unavailable, match=r"1000 requests got 104790 bytes .* about 2 failed"):
        check_data(1_000, answer_bytes=105, data_bytes=104_790)
