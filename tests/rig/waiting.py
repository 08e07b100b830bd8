"""Waiting for what other threads, processes and servers do."""

from __future__ import annotations

import time
from collections.abc import Callable

WAIT_S_MAX = 120.0
"""The usual limit: longer than anything takes that works, also on a machine that is busy and stalls. A test whose
condition comes true in the end in any case, by a time limit of the product, needs one below that."""
REST_S_MAX = 0.05


def until(
    condition: Callable[[], object],
    what: str = "it came true",
    tell: Callable[[], str] = str,
    *,
    wait_s: float = WAIT_S_MAX,
) -> None:
    """Wait until the condition holds. Between looks, rest 1 ms at first, and twice as long each time. Raises
    AssertionError after `wait_s`, with what `tell` then says."""
    deadline_s, rest_s = time.monotonic() + wait_s, 0.001
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {wait_s:.0f} s: {what} {tell()}".rstrip()
        time.sleep(rest_s)
        rest_s = min(REST_S_MAX, 2 * rest_s)
