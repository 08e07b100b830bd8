"""Geometry, keys and lifecycle: the small rules that everything else relies on."""

from __future__ import annotations

import hashlib
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nos_ec.composition.backends import settings_named
from nos_ec.core.errors import ConfigError, Conflict, Corrupt, InvalidInput, NoSpace, NotFound
from nos_ec.core.geometry import Geometry
from nos_ec.core.ids import NAME_BYTES_MAX, BlockId, LandingId, ObjectKey
from nos_ec.core.ratios import ratio, rounded
from nos_ec.core.states import (
    BlockEvent,
    BlockState,
    ObjectEvent,
    ObjectState,
    advance_block,
    advance_object,
    object_sources,
)


def test_an_error_carries_what_it_concerns() -> None:
    error = Corrupt("b/n v1: damaged", key=ObjectKey("b", "n"), block_id=BlockId(b"\1" * 16))
    assert (str(error), error.landing_id, error.settings) == ("b/n v1: damaged", None, ())
    assert error.facts() == {"bucket": "b", "name": "n", "block": "01" * 16}
    assert NotFound("gone", landing_id=LandingId(b"\2" * 16)).facts() == {"landing": "02" * 16}
    assert ConfigError("wrong", settings=("put", "gc.reserve_bytes")).facts() == {
        "settings": ["put", "gc.reserve_bytes"]
    }
    assert Conflict().facts() == {}


def test_an_error_that_gets_the_settings_to_check_keeps_what_it_concerns() -> None:
    found = NoSpace("full", key=ObjectKey("b", "n"), block_id=BlockId(b"\1" * 16), landing_id=LandingId(b"\2" * 16))
    with pytest.raises(NoSpace, match=r"full \[settings: ceph.user\]") as error, settings_named("ceph.user"):
        raise found
    assert error.value.facts() == {**found.facts(), "settings": ["ceph.user"]}
    with pytest.raises(ConfigError) as wrong, settings_named("kafka.servers", "log.partitions"):
        raise ConfigError("wrong", settings=("log.partitions", "kafka.topic"))
    assert wrong.value.settings == ("kafka.servers", "log.partitions", "kafka.topic")


def test_the_default_geometry() -> None:
    geometry = Geometry()
    assert (geometry.stripe_size, geometry.group_size_max, geometry.block_size) == (1 << 20, 4 << 20, 32 << 20)
    assert geometry.raw_bytes(2) == 2 * 11 * (128 << 10)
    assert geometry.share(3 << 19, 2) == 0.75
    assert geometry.share(0, 0) is None


def test_ratios() -> None:
    assert ratio(2, 3) == 2 / 3
    assert ratio(0, 3) == 0.0
    assert ratio(0, 0) is None
    assert rounded(ratio(2, 3)) == 0.666667
    assert rounded(None) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"k": 0},
        {"k": 33},
        {"m": 0},
        {"m": 9},
        {"chunk_size": 0},
        {"chunk_size": 8192},
        {"chunk_size": 128 * 1024 + 1},
        {"chunk_size": 8 << 20},
        {"stripes_per_group_max": 0},
        {"stripes_per_group_max": 33},
        {"stripes_per_block": 0},
        {"stripes_per_block": 1025, "stripes_per_group_max": 1},
        {"k": 32, "chunk_size": 4 << 20, "stripes_per_block": 32},
    ],
)
def test_impossible_geometries_are_refused(fields: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="geometry"):
        Geometry(**fields)


@pytest.mark.parametrize(
    ("offset", "length", "chunks"),
    [(0, 0, 0), (0, 1, 1), (0, 131072, 1), (1, 131072, 2), (131071, 1, 1), (131071, 2, 2), (0, 1 << 20, 8)],
)
def test_chunks_touched(offset: int, length: int, chunks: int) -> None:
    assert Geometry().chunks_touched(offset, length) == chunks


_text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300)


@given(_text, _text)
def test_a_key_is_valid_or_says_why(bucket: str, name: str) -> None:
    bad = "/" in bucket or bucket in (".", "..") or "\0" in bucket + name or {".", ".."} & set(name.split("/"))
    if bad or len(bucket.encode(errors="replace")) > 255 or len(name.encode(errors="replace")) > 1024:
        with pytest.raises(InvalidInput):
            ObjectKey(bucket, name)
        return
    key = ObjectKey(bucket, name)
    assert key.md5 == hashlib.md5(f"{bucket}/{name}".encode()).digest()


def test_the_longest_name_is_counted_in_bytes() -> None:
    ObjectKey("b", "ä" * (NAME_BYTES_MAX // 2))
    with pytest.raises(InvalidInput, match="1025"):
        ObjectKey("b", "a" * (NAME_BYTES_MAX + 1))


def test_object_transitions_are_the_documented_ones() -> None:
    legal = {
        (None, ObjectEvent.LAND): ObjectState.LANDED,
        (None, ObjectEvent.STORE): ObjectState.LARGE,
        (None, ObjectEvent.KEEP): ObjectState.EMPTY,
        (ObjectState.LANDED, ObjectEvent.PUBLISH): ObjectState.QUEUED,
        (ObjectState.QUEUED, ObjectEvent.PUBLISH): ObjectState.QUEUED,
        (ObjectState.LANDED, ObjectEvent.PACK): ObjectState.PACKED,
        (ObjectState.QUEUED, ObjectEvent.PACK): ObjectState.PACKED,
        (ObjectState.PACKED, ObjectEvent.PACK): ObjectState.PACKED,
        (ObjectState.PACKED, ObjectEvent.REVERT): ObjectState.LANDED,
    }
    for state, event in product((None, *ObjectState), ObjectEvent):
        if (state, event) in legal:
            assert advance_object(state, event) is legal[state, event]
            assert (state in object_sources(event)) is (state is not None)
        else:
            with pytest.raises(Conflict):
                advance_object(state, event)
            assert state not in object_sources(event)


def test_block_transitions_are_the_documented_ones() -> None:
    legal = {
        (None, BlockEvent.ALLOCATE): BlockState.OPEN,
        (None, BlockEvent.QUARANTINE): BlockState.CONDEMNED,
        (BlockState.OPEN, BlockEvent.APPEND): BlockState.OPEN,
        (BlockState.OPEN, BlockEvent.FENCE): BlockState.FENCED,
        (BlockState.FENCED, BlockEvent.FENCE): BlockState.FENCED,
        (BlockState.OPEN, BlockEvent.SEAL): BlockState.SEALED,
        (BlockState.FENCED, BlockEvent.SEAL): BlockState.SEALED,
        (BlockState.SEALED, BlockEvent.CONDEMN): BlockState.CONDEMNED,
    }
    for state, event in product((None, *BlockState), BlockEvent):
        if (state, event) in legal:
            assert advance_block(state, event) is legal[state, event]
        else:
            with pytest.raises(Conflict):
                advance_block(state, event)
