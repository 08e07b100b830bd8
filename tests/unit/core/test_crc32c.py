"""The CRC of parts that follow each other is that of their bytes."""

from __future__ import annotations

import google_crc32c
from hypothesis import given
from hypothesis import strategies as st

from nos_ec.core.crc32c import joined


@given(st.binary(max_size=300), st.binary(max_size=300), st.integers(0, 70_000))
def test_joined_crcs(first: bytes, second: bytes, zeros: int) -> None:
    second += bytes(zeros)
    whole = google_crc32c.value(first + second)
    assert joined(google_crc32c.value(first), google_crc32c.value(second), len(second)) == whole
