"""Keys of objects that are refused, one by one and in pages."""

from __future__ import annotations

import pytest

from nos_ec.core.errors import InvalidInput
from nos_ec.core.ids import BUCKET_BYTES_MAX, NAME_BYTES_MAX, ObjectKey, require_keys

GOOD = ["a", "a/b", ".a", "a.", "..a", "a..", "...", "a/.b", "a./b", "/", "//", "a\n/b", "x" * NAME_BYTES_MAX, "\u20ac"]
BAD = ["", ".", "..", "./a", "../a", "a/.", "a/..", "a/./b", "a/../b", "a\0b", "x" * (NAME_BYTES_MAX + 1), "\ud800"]


@pytest.mark.parametrize("name", [*BAD, "\U00010000" * (NAME_BYTES_MAX // 4 + 1)])
def test_a_page_of_names_is_refused_for_one_that_is(name: str) -> None:
    with pytest.raises(InvalidInput) as alone:
        ObjectKey("bucket", name)
    for names in ([name], [*GOOD, name], [name, *GOOD]):
        with pytest.raises(InvalidInput) as refused:
            require_keys(["bucket"], names)
        assert str(refused.value) == str(alone.value)


def test_names_with_dots_and_slashes_are_accepted() -> None:
    assert [ObjectKey("bucket", name).name for name in GOOD] == GOOD
    require_keys(["bucket"], GOOD)


@pytest.mark.parametrize("bucket", ["", ".", "..", "a/b", "x" * (BUCKET_BYTES_MAX + 1), "\0"])
def test_a_page_is_refused_for_its_bucket(bucket: str) -> None:
    require_keys(["bucket", "..."], ["a"])
    with pytest.raises(InvalidInput):
        require_keys(["bucket", bucket], ["a"])


def test_an_empty_page_has_only_valid_keys() -> None:
    require_keys([], [])
