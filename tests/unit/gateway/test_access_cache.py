"""The cache of access keys and buckets in a gateway."""

from __future__ import annotations

from nos_ec.adapters.system_clock import SystemClock
from nos_ec.gateway.auth.access import _Cache


def test_an_answer_from_before_a_change_is_not_kept() -> None:
    cache: _Cache[str] = _Cache(SystemClock(), 60_000)

    def look_up(name: str) -> str:
        cache.forget(name)  # it changes while it is looked up
        return "old"

    assert cache.find("a", look_up) == "old"
    assert cache.find("a", lambda _: "new") == "new"
    assert cache.find("a", lambda _: "newer") == "new"
