"""Seven size distributions for measuring packing. The same random.Random state gives the same sizes.

name  what it stands for           sizes (bytes; K = 1024, M = 1024 K)
W1    the mix NOS published        80 % uniform in (0, 128K], 15 % in (128K, 1M], 5 % in (1M, 4M)
W2    thumbnails                   log-normal, sigma 1.0, mu = ln(24K) - 1/2 (mean 24K); over 128K is drawn again
W3    no structure at all          uniform in (0, 128K]
W4    just over half a chunk       uniform in [65K, 70K]: one object per chunk, whatever the policy
W5    nearly a chunk               uniform in [100K, 124K]: likewise
W6    tiny                         uniform in [0.2K, 4K]
W7    images                       70 % uniform in [4K, 60K], 30 % in (60K, 600K]

Sizes are meant for 128 KiB chunks and groups of 4 MiB. Drawing W2 again above a chunk leaves a mean of about 22.4K. In
W1 the last interval ends at `size_max`, the largest object that is packed at all: larger objects are stored elsewhere.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from itertools import repeat

from nos_ec.core.errors import InvalidInput

_K = 1024
_M = 1024 * _K

LOG_NORMAL_SIGMA = 1.0
LOG_NORMAL_MEAN = 24 * _K


def _w1(rng: random.Random, size_max: int) -> int:
    kind = rng.random()
    if kind < 0.80:
        return rng.randint(1, 128 * _K)
    if kind < 0.95:
        return rng.randint(128 * _K + 1, _M)
    return rng.randint(_M + 1, min(4 * _M - 1, size_max))


def _w2(rng: random.Random, _size_max: int) -> int:
    mu = math.log(LOG_NORMAL_MEAN) - LOG_NORMAL_SIGMA**2 / 2
    while True:
        size = math.ceil(rng.lognormvariate(mu, LOG_NORMAL_SIGMA))
        if size <= 128 * _K:
            return size


def _w7(rng: random.Random, _size_max: int) -> int:
    if rng.random() < 0.70:
        return rng.randint(4 * _K, 60 * _K)
    return rng.randint(60 * _K + 1, 600 * _K)


_DRAWS: dict[str, Callable[[random.Random, int], int]] = {
    "W1": _w1,
    "W2": _w2,
    "W3": lambda rng, _: rng.randint(1, 128 * _K),
    "W4": lambda rng, _: rng.randint(65 * _K, 70 * _K),
    "W5": lambda rng, _: rng.randint(100 * _K, 124 * _K),
    "W6": lambda rng, _: rng.randint(_K // 5, 4 * _K),
    "W7": _w7,
}

WORKLOADS = tuple(_DRAWS)


def sizes(drawn: str | int, count: int, rng: random.Random, size_max: int) -> Iterator[int]:
    """Return `count` object sizes in bytes. `drawn` is the name of a workload, or the size of every object.

    Raises InvalidInput for an unknown workload, a negative count, a size below 1, or a `size_max` (bytes) that is too
    small for this size, or for a workload with objects over 1 MiB.
    """
    if isinstance(drawn, str) and drawn not in _DRAWS:
        raise InvalidInput(f"unknown workload {drawn!r}; choose one of: {', '.join(WORKLOADS)}")
    if count < 0:
        raise InvalidInput(f"object count is {count}; it cannot be negative")
    if isinstance(drawn, int):
        if not 1 <= drawn <= size_max:
            raise InvalidInput(f"objects of {drawn} bytes are not packed; choose at most {size_max}, and at least 1")
        return repeat(drawn, count)
    if drawn == "W1" and size_max <= _M:
        raise InvalidInput(f"workload W1 has objects over 1 MiB, but this geometry packs only up to {size_max} bytes")
    draw = _DRAWS[drawn]
    return (draw(rng, size_max) for _ in range(count))
