"""Computes the CRC32C of a file from the checksums of its pieces, without the zeros between them in memory. Pure."""

from collections.abc import Iterable
from functools import cache

_POLYNOMIAL = 0x82F63B78
_BITS = 32

Matrix = tuple[int, ...]
"""The effect of some zero bytes on a checksum: the column of each of its bits, over GF(2)."""


def joined(pieces: Iterable[tuple[int, int]]) -> int:
    """The checksum of pieces behind each other, from the checksum and the size of each."""
    crc = 0
    for own, size in pieces:
        crc = _after_zeros(crc, size) ^ own
    return crc


def of_zeros(size: int) -> int:
    """The checksum of `size` zero bytes."""
    # A checksum begins with all bits set, and ends with all bits flipped.
    ones = (1 << _BITS) - 1
    return _after_zeros(ones, size) ^ ones


def _after_zeros(crc: int, size: int) -> int:
    for power in range(size.bit_length()):
        if size >> power & 1:
            crc = _times(_zeros(power), crc)
    return crc


@cache
def _zeros(power: int) -> Matrix:
    """The effect of 2**power zero bytes."""
    if not power:
        return _one_zero_byte()
    half = _zeros(power - 1)
    return tuple(_times(half, column) for column in half)


def _times(matrix: Matrix, vector: int) -> int:
    product = 0
    for bit, column in enumerate(matrix):
        if vector >> bit & 1:
            product ^= column
    return product


def _one_zero_byte() -> Matrix:
    columns = []
    for bit in range(_BITS):
        crc = 1 << bit
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        columns.append(crc)
    return tuple(columns)
