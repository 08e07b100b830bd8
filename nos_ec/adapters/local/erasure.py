"""Reed-Solomon coding of stripes: pyeclib with ISA-L's Cauchy matrices, which are MDS for every k and m.

Each byte of a coding chunk depends on the bytes at the same offset of the k data chunks alone. So any range of
a chunk can be decoded from the same range of any k chunks, and a small degraded read need not read whole chunks.
pyeclib puts a header of its own before each fragment. It says nothing but index and sizes, so it is not
stored: `decode` puts it back, taken from a stripe of zeros of the same width.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyeclib.ec_iface import ECDriver, ECDriverError

from nos_ec.core.errors import ConfigError

_FRAMING = 80
"""Bytes of the header pyeclib puts before each fragment."""


class StripeCoder:
    """Encodes stripes of k chunks into k + m, and back from any k. Safe to call from several threads.

    Raises ConfigError when this machine's pyeclib cannot do it.
    """

    def __init__(self, k: int, m: int) -> None:
        self._k, self._m = k, m
        self._framings: dict[int, list[bytes]] = {}
        try:
            self._driver = ECDriver(k=k, m=m, ec_type="isa_l_rs_cauchy")
        except ECDriverError as error:
            raise ConfigError(
                f"erasure coding {k}+{m} is not available: {error}; install pyeclib with its ISA-L backend"
            ) from error

    def encode(self, stripe: bytes) -> list[bytes]:
        """k + m fragments of a stripe of k equal chunks; `payload` gives their chunks. The first k are the data."""
        fragments: list[bytes] = self._driver.encode(stripe)
        assert len(fragments[0]) == _FRAMING + len(stripe) // self._k, "pyeclib changed its framing"
        return fragments

    def decode(self, width: int, parts: Mapping[int, bytes]) -> list[bytes]:
        """The k data parts, each `width` bytes, from the same range of any k chunks (by number, 0 .. k + m - 1)."""
        framings = self._framing(width)
        joined: bytes = self._driver.decode([framings[number] + part for number, part in parts.items()])
        return [joined[start : start + width] for start in range(0, self._k * width, width)]

    def _framing(self, width: int) -> list[bytes]:
        # Widths are whole pages of a chunk, so this stays small; two threads may both fill it, with equal values.
        if width not in self._framings:
            self._framings[width] = [part[:_FRAMING] for part in self.encode(bytes(self._k * width))]
        return self._framings[width]


def payload(fragment: bytes) -> memoryview:
    """The chunk in a fragment that `StripeCoder.encode` gave, without a copy."""
    return memoryview(fragment)[_FRAMING:]
