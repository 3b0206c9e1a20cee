import numpy as np

from loadtest.commands.first_requests import describe


def test_first_requests_stand_beside_later_median() -> None:
    slow_start = np.concatenate([[400.0], np.full(199, 100.0)])
    text = describe([slow_start, slow_start], [np.full(2_000, 100.0)] * 2)
    assert "2 swaps; later requests: median 100 us" in text
    assert "request 1: 400 us, 4.00 times as long" in text
    assert "requests 51 to 200: 100 us, 1.00 times as long" in text


def test_first_requests_skip_disturbed_swap() -> None:
    quiet, disturbed = np.full(200, 100.0), np.full(200, 100.0)
    disturbed[0] = 50_000.0
    text = describe([quiet, disturbed, quiet], [np.full(2_000, 100.0)])
    assert "request 1: 100 us" in text
