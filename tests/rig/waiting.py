"""Waiting for what other threads, processes and servers do."""

from __future__ import annotations

import time
from collections.abc import Callable

WAIT_S_MAX = 120.0
"""The usual limit: longer than anything takes that works, also on a machine that is busy and stalls. A test whose
condition comes true in the end in any case, by a time limit of the product, needs one below that."""
REST_SHARE, REST_S_MAX = 0.05, 0.2
"""Between two looks: the share of the time that has passed, and at most this many seconds. Many looks ask a server."""


def until(
    condition: Callable[[], object],
    what: str = "it came true",
    tell: Callable[[], str] = str,
    *,
    wait_s: float = WAIT_S_MAX,
) -> None:
    """Wait until the condition holds. Rest between two looks: 1 ms at first, and longer the longer it takes. Raises
    AssertionError after `wait_s`, with what `tell` then says."""
    begun_s, rest_s = time.monotonic(), 0.001
    while not condition():
        passed_s = time.monotonic() - begun_s
        assert passed_s < wait_s, f"not within {wait_s:.0f} s: {what} {tell()}".rstrip()
        time.sleep(rest_s)
        rest_s = min(2 * rest_s, max(0.02, REST_SHARE * passed_s), REST_S_MAX)
