"""Reed-Solomon coding of stripes: pyeclib with ISA-L's Cauchy matrices, which are MDS for every k and m.

Each byte of a coding chunk depends only on the bytes at the same offset of the k data chunks. So any range of a chunk
can be decoded from the same range of any k chunks, and a small degraded read need not read whole chunks.
pyeclib puts its own header before each fragment. The header holds only the index and sizes, so it is not stored.
`decode` takes it from the encoding of a stripe of zeros of the same width.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyeclib.ec_iface import ECDriver, ECDriverError

from nos_ec.core.errors import ConfigError

_FRAMING = 80
"""The size in bytes of the header that pyeclib puts before each fragment."""


class StripeCoder:
    """Encodes stripes of k chunks into k + m, and decodes them from any k. Safe to call from several threads.

    Raises ConfigError when this machine's pyeclib does not support the coding.
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
        """Return the k + m fragments of a stripe of k equal chunks, data first. `payload` extracts the chunk of a
        fragment."""
        fragments: list[bytes] = self._driver.encode(stripe)
        assert len(fragments[0]) == _FRAMING + len(stripe) // self._k, "pyeclib changed its framing"
        return fragments

    def decode(self, width: int, parts: Mapping[int, bytes]) -> list[bytes]:
        """Return the k data parts, each of `width` bytes, from the same range of any k chunks. `parts` has these by
        chunk number (0 .. k + m - 1)."""
        framings = self._framing(width)
        joined: bytes = self._driver.decode([framings[number] + part for number, part in parts.items()])
        return [joined[start : start + width] for start in range(0, self._k * width, width)]

    def _framing(self, width: int) -> list[bytes]:
        # Widths are whole pages of a chunk, so the cache stays small. Two threads may both fill it, with equal values.
        if width not in self._framings:
            self._framings[width] = [part[:_FRAMING] for part in self.encode(bytes(self._k * width))]
        return self._framings[width]


def payload(fragment: bytes) -> memoryview:
    """Return the chunk of a fragment that `StripeCoder.encode` returned, without copying it."""
    return memoryview(fragment)[_FRAMING:]
