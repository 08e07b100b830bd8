"""CRC32C of bytes that follow each other, from the CRC32C of each part, without the bytes.

A CRC is a polynomial over GF(2), modulo the polynomial below. Bytes that follow multiply it by x to the power of eight
times their number. Polynomials are numbers with the coefficient of x^0 in the highest of 32 bits, as in the CRC itself.
"""

from __future__ import annotations

from functools import lru_cache

_POLYNOMIAL = 0x82F63B78
_ONE = 1 << 31


def joined(first: int, second: int, second_bytes: int) -> int:
    """The CRC of two parts together. second_bytes: the length of the second."""
    return _product(_shift(second_bytes), first) ^ second


def _product(one: int, other: int) -> int:
    product = 0
    for bit in range(31, -1, -1):
        if one >> bit & 1:
            product ^= other
        other = (other >> 1) ^ (_POLYNOMIAL if other & 1 else 0)
    return product


@lru_cache(maxsize=256)
def _shift(length: int) -> int:
    """x to the power of 8 * length."""
    power, square = _ONE, _ONE >> 8
    while length:
        if length & 1:
            power = _product(power, square)
        square = _product(square, square)
        length >>= 1
    return power
