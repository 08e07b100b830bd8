"""What the Ceph adapter computes without a cluster: block ends, read costs, error classes, options."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nos_ec.adapters.rados import librados
from nos_ec.adapters.rados.block_store import BlockEnd
from nos_ec.adapters.rados.cluster import RadosCluster, RadosOptions
from nos_ec.adapters.rados.failures import port_error, rados_error
from nos_ec.adapters.rados.read_cost import ReadCost, ReadCounter
from nos_ec.core.errors import ConfigError, Corrupt, NosError, NoSpace, Transient
from nos_ec.core.geometry import PAGE, Geometry

GEOMETRY = Geometry()
CHUNK, STRIPE = GEOMETRY.chunk_size, GEOMETRY.stripe_size


@given(st.integers(0, 1024), st.booleans())
def test_block_ends_round_trip(stripes: int, sealed: bool) -> None:
    assert BlockEnd.decode(BlockEnd(stripes, sealed).encode()) == BlockEnd(stripes, sealed)


def test_golden_block_ends() -> None:
    assert BlockEnd(0, sealed=False).encode() == b"open 0"
    assert BlockEnd(32, sealed=True).encode() == b"sealed 32"


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
    counter.count([(0, PAGE), (STRIPE, PAGE)])
    counter.count([(CHUNK - 1, 2)])
    value = counter.value()
    assert (value.shard_reads, value.shard_bytes, value.degraded_reads) == (4, 4 * PAGE, 0)


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
        (errno.ESHUTDOWN, Transient, "blocklist"),
        (errno.ENOTCONN, Transient, "try again"),
    ],
)
def test_every_failure_has_its_class_and_says_what_to_do(code: int, kind: type[NosError], says: str) -> None:
    error = port_error("block 7", rados_error(-code))
    assert type(error) is kind
    assert str(error).startswith("block 7: ")
    assert says in str(error)


def test_a_missing_library_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(librados, "_SONAME", "librados-that-is-not-there.so.2")
    librados.load.cache_clear()
    with pytest.raises(ConfigError, match="install librados2"):
        RadosCluster(RadosOptions(tmp_path / "ceph.conf", "client.x"))
    librados.load.cache_clear()


def test_options_that_make_no_sense(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="whole name"):
        RadosOptions(tmp_path, "nos-ec")
    with pytest.raises(ConfigError, match="hang for ever"):
        RadosOptions(tmp_path, "client.x", op_timeout_ms=0)
    with pytest.raises(ConfigError, match="hang for ever"):
        RadosOptions(tmp_path, "client.x", connect_timeout_ms=-1)
