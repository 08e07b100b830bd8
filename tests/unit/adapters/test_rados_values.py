"""What the Ceph adapter computes without a cluster: block ends, read costs, error classes, options."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nos_ec.adapters.rados.client import binding
from nos_ec.adapters.rados.client.cluster import RadosCluster, RadosOptions
from nos_ec.adapters.rados.client.failures import port_error, rados_error
from nos_ec.adapters.rados.known_ends import BLOCKS_MAX, BlockEnd, KnownEnd, KnownEnds
from nos_ec.adapters.rados.read_cost import ReadCost, ReadCounter
from nos_ec.adapters.rados.segment_log import LIMITS, SealState
from nos_ec.core.errors import Blocklisted, ConfigError, Corrupt, NosError, NoSpace, Transient
from nos_ec.core.geometry import PAGE, Geometry
from nos_ec.core.ids import BlockId, SegmentId

GEOMETRY = Geometry()
SEGMENT = SegmentId(b"\x80segment")
CHUNK, STRIPE = GEOMETRY.chunk_size, GEOMETRY.stripe_size


@given(st.integers(0, 1024), st.booleans())
def test_block_ends_round_trip(stripes: int, sealed: bool) -> None:
    assert BlockEnd.decode(BlockEnd(stripes, sealed).encode()) == BlockEnd(stripes, sealed)


def test_golden_block_ends() -> None:
    assert BlockEnd(0, sealed=False).encode() == b"open 0"
    assert BlockEnd(32, sealed=True).encode() == b"sealed 32"


@given(st.integers(0, 2 * LIMITS.segment_bytes), st.integers(0, 1 << 24))
def test_states_of_segments_round_trip(end: int, records: int) -> None:
    state = SealState(end, records)
    assert SealState.decode(SEGMENT, state.encode()) == state


def test_golden_states_of_segments() -> None:
    assert SealState(None).encode() == b"open"
    assert SealState(16 << 20, 4000).encode() == b"sealed 16777216 4000"
    assert SealState.decode(SEGMENT, b"open") == SealState(None)


@given(st.binary(max_size=40) | st.sampled_from([b"open 1", b"sealed 1", b"sealed 01 2", b"open\n", b"sealed 1 -2"]))
def test_any_bytes_are_a_state_of_a_segment_or_corrupt(value: bytes) -> None:
    try:
        state = SealState.decode(SEGMENT, value)
    except Corrupt:
        return
    assert state.encode() == value


@given(st.binary(max_size=40) | st.sampled_from([b"open -1", b"open 007", b"open 99999", b"open 1\n", b"Sealed 1"]))
def test_any_bytes_are_a_block_end_or_corrupt(value: bytes) -> None:
    try:
        end = BlockEnd.decode(value)
    except Corrupt:
        return
    assert end.encode() == value


@pytest.mark.parametrize(
    ("granularity", "offset", "length", "cost"),
    [
        (PAGE, 0, PAGE, (1, PAGE)),
        (PAGE, 100, PAGE, (1, 2 * PAGE)),
        (PAGE, CHUNK - 1, 2, (2, 2 * PAGE)),
        (PAGE, STRIPE - 1, 2, (2, 2 * PAGE)),
        (PAGE, 1, 3 * STRIPE - 2, (8, 3 * STRIPE)),
        (PAGE, 7, 0, (0, 0)),
        (CHUNK, 0, PAGE, (1, CHUNK)),
        (CHUNK, CHUNK - 1, 2, (2, 2 * CHUNK)),
        (STRIPE, 0, PAGE, (8, STRIPE)),
        (STRIPE, STRIPE - 1, 2, (8, 2 * STRIPE)),
    ],
)
def test_what_a_read_costs(granularity: int, offset: int, length: int, cost: tuple[int, int]) -> None:
    assert ReadCost(GEOMETRY, granularity).of(offset, length) == cost


def test_costs_add_up() -> None:
    counter = ReadCounter(ReadCost(GEOMETRY, PAGE))
    counter.count(0, PAGE)
    counter.count(STRIPE, PAGE)
    counter.count(CHUNK - 1, 2)
    value = counter.counters()
    assert (value.shard_reads, value.shard_bytes, value.degraded_reads) == (4, 4 * PAGE, 0)
    for error, count in (
        (OSError(errno.ETIMEDOUT, ""), 1),
        (OSError(errno.EIO, ""), 1),
        (OSError(errno.ETIMEDOUT, ""), 2),
    ):
        with pytest.raises(OSError, match=str(error.errno)), counter.counting_time_outs():
            raise error
        assert counter.counters().timed_out_reads == count


@pytest.mark.parametrize(
    ("code", "kind", "says"),
    [
        (errno.ETIMEDOUT, Transient, "ceph health"),
        (errno.ENOSPC, NoSpace, "add OSDs"),
        (errno.EDQUOT, NoSpace, "quota"),
        (errno.EPERM, ConfigError, "caps"),
        (errno.EACCES, ConfigError, "caps"),
        (errno.EIO, Corrupt, "damaged"),
        (errno.EFBIG, ConfigError, "osd_max_object_size"),
        (errno.EMSGSIZE, ConfigError, "osd_max_write_size"),
        (errno.ESHUTDOWN, Blocklisted, "blocklist"),
        (errno.ENOTCONN, Transient, "try again"),
    ],
)
def test_every_failure_has_its_class_and_says_what_to_do(code: int, kind: type[NosError], says: str) -> None:
    error = port_error("block 7", rados_error(-code))
    assert type(error) is kind
    assert str(error).startswith("block 7: ")
    assert says in str(error)


@pytest.fixture
def no_binding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A Python that finds no binding; returns the folder in which it will look for one."""
    monkeypatch.setattr(binding, "_FOLDERS", (tmp_path,))
    monkeypatch.delitem(sys.modules, "rados", raising=False)
    monkeypatch.setattr(sys, "path", [])
    binding.load.cache_clear()
    yield tmp_path
    binding.load.cache_clear()


def test_a_missing_binding_is_a_configuration_error(no_binding: Path) -> None:
    with pytest.raises(ConfigError, match="apt-get install python3-rados"):
        RadosCluster(RadosOptions(no_binding / "ceph.conf", "client.x"))


def test_a_binding_for_another_python_is_a_configuration_error(no_binding: Path) -> None:
    (no_binding / "rados.cpython-399-x86_64-linux-gnu.so").touch()
    with pytest.raises(ConfigError, match=r"cpython-399.* is not for this Python .*/usr/bin/python3"):
        binding.load()


def test_a_damaged_binding_is_a_configuration_error(no_binding: Path) -> None:
    (no_binding / f"rados{EXTENSION_SUFFIXES[0]}").touch()
    with pytest.raises(ConfigError, match="cannot be loaded"):
        binding.load()
    assert "rados" not in sys.modules


def test_another_module_of_that_name_is_a_configuration_error(
    no_binding: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rados", ModuleType("rados"))
    with pytest.raises(ConfigError, match=r"not a Python binding of Ceph.*install python3-rados"):
        binding.load()


def known(stripes: int) -> KnownEnd:
    return KnownEnd(BlockEnd(stripes, sealed=False), version=stripes + 100)


def test_known_ends_are_taken_once() -> None:
    ends, block_id = KnownEnds(), BlockId(bytes(16))
    assert ends.take_end(block_id) is None
    ends.remember_end(block_id, known(1))
    ends.remember_end(block_id, known(2))
    assert ends.take_end(block_id) == known(2)
    assert ends.take_end(block_id) is None


def test_known_ends_are_bounded_and_the_oldest_is_dropped() -> None:
    ends = KnownEnds()
    block_ids = [BlockId(number.to_bytes(16)) for number in range(BLOCKS_MAX + 2)]
    for number, block_id in enumerate(block_ids[:BLOCKS_MAX]):
        ends.remember_end(block_id, known(number))
    ends.remember_end(block_ids[0], known(0))
    for block_id in block_ids[BLOCKS_MAX:]:
        ends.remember_end(block_id, known(7))
    gone = [block_id for block_id in block_ids if ends.take_end(block_id) is None]
    assert gone == block_ids[1:3]


def test_invalid_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="full name"):
        RadosOptions(tmp_path, "nos-ec")
    with pytest.raises(ConfigError, match="hang forever"):
        RadosOptions(tmp_path, "client.x", op_timeout_ms=0)
    with pytest.raises(ConfigError, match="hang forever"):
        RadosOptions(tmp_path, "client.x", connect_timeout_ms=-1)
