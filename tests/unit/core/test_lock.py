"""Locks are stored and read back exactly, and a damaged one is never taken for none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nos_ec.core.attributes import encode_attributes
from nos_ec.core.errors import Corrupt
from nos_ec.core.locking.lock import UNTIL_MS_MAX, Lock, LockMode, lock_of, with_lock

locks = st.builds(
    Lock, st.sampled_from([None, *LockMode]), st.integers(0, UNTIL_MS_MAX), st.booleans(), st.integers(0, 2**63 - 1)
)


@given(locks, st.dictionaries(st.text(min_size=1, max_size=9), st.text(max_size=9), max_size=3))
def test_a_lock_reads_back_beside_other_attributes(lock: Lock, others: dict[str, str]) -> None:
    attributes = encode_attributes({name: text for name, text in others.items() if name != "nos_ec:lock"})
    assert lock_of(attributes) is None
    assert lock_of(with_lock(attributes, lock)) == lock
    assert with_lock(with_lock(attributes, Lock(hold=True)), lock) == with_lock(attributes, lock)


def test_its_name_in_another_attribute_is_no_lock() -> None:
    assert lock_of(encode_attributes({"note": "nos_ec:lock"})) is None


@pytest.mark.parametrize(
    "text",
    ["", "GOVERNANCE", "governance 1 - 0", "- 1 on 0", "- -1 - 0", "- 1 - -1", "- x - 0", f"- {UNTIL_MS_MAX + 1} - 0"],
)
def test_a_damaged_lock_raises(text: str) -> None:
    with pytest.raises(Corrupt, match="nos_ec:lock"):
        lock_of(encode_attributes({"nos_ec:lock": text}))


def test_what_protects_a_version_at_which_time() -> None:
    retained = Lock(LockMode.GOVERNANCE, 5)
    assert [retained.protects(at) for at in (0, 4, 5)] == [True, True, False]
    assert Lock(hold=True).protects(UNTIL_MS_MAX)
    assert not Lock(None, 5).protects(0)
