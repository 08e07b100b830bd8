"""What `nos-ec status` says about costs, from figures alone."""

from __future__ import annotations

import pytest

from nos_ec.cli.operator.status import _cost_rows


@pytest.mark.parametrize(
    ("most", "said"), [(2.166, "at a space amplification of 2.17"), (-3423.54, "already without dead bytes")]
)
def test_a_store_of_a_few_bytes_is_dearer_than_replicas_already(most: float, said: str) -> None:
    cost = {
        "parts": {"live": 1.0},
        "headers_surveyed_ms": None,
        "raw_bytes_per_live_byte": 1.5,
        "landing_bytes_per_live_byte": 0.0,
        "break_even_space_amplification": most,
        "usage": {},
    }
    assert _cost_rows(cost, None)["as costly as 3 replicas"] == said
