import google_crc32c
import numpy as np
import pytest

from loadtest.plan.checksums import joined, of_zeros

DATA = np.random.default_rng(7).integers(0, 256, 70_001, np.uint8).tobytes()


@pytest.mark.parametrize("sizes", [[70_001], [0, 70_001], [1, 65_536, 4_464], [70_000, 0, 1]])
def test_checksums_of_pieces_join_to_that_of_all(sizes: list[int]):
    pieces, start = [], 0
    for size in sizes:
        pieces.append((google_crc32c.value(DATA[start : start + size]), size))
        start += size
    assert joined(pieces) == google_crc32c.value(DATA)


def test_nothing_has_the_checksum_zero():
    assert joined([]) == google_crc32c.value(b"") == of_zeros(0)


@pytest.mark.parametrize("size", [1, 2, 63, 64, 1_000_003])
def test_zeros_have_their_checksum_without_bytes(size: int):
    assert of_zeros(size) == google_crc32c.value(bytes(size))
