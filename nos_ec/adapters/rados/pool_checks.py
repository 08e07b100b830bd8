"""Checks, once when a store is opened, that its pool fits. An unsuitable pool would fail later, or silently cost more.

The replies used (`osd pool ls detail`, `osd erasure-code-profile get`, `versions`, `config get`) need the cap `mon
'allow r'`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from nos_ec.adapters.rados.client.cluster import RadosCluster
from nos_ec.adapters.rados.client.pool import Pool
from nos_ec.adapters.rados.read_cost import ReadCost
from nos_ec.core.errors import ConfigError, Transient
from nos_ec.core.geometry import PAGE, Geometry

REPLICATED, ERASURE = 1, 3
PARTIAL_READS_RELEASE_MIN = 20
"""The major version of the first Ceph whose OSDs read only the chunks that contain the range (measured:
docs/CEPH.md)."""

_VERSION = re.compile(r"ceph version (\d+)\.")


def check_blocks_pool(cluster: RadosCluster, pool: Pool, geometry: Geometry) -> ReadCost:
    """Check a pool and return the cost of its reads. Raises ConfigError unless it is an erasure-coded pool of this
    geometry that accepts only whole stripes; Transient."""
    facts = _facts(cluster, pool.name)
    if facts.get("type") != ERASURE:
        raise ConfigError(f"Ceph pool {pool.name} is not erasure-coded: blocks need an EC pool, {_wanted(geometry)}")
    profile = cluster.command("osd erasure-code-profile get", name=str(facts.get("erasure_code_profile")))
    k, m = (int(profile.get(name, 0)) for name in ("k", "m"))
    if (k, m) != (geometry.k, geometry.m):
        raise ConfigError(
            f"Ceph pool {pool.name} is {k}+{m}, but the configuration says {geometry.k}+{geometry.m}: correct the"
            f" configuration, or make a pool {_wanted(geometry)}"
        )
    if pool.alignment == 0 or "ec_overwrites" in str(facts.get("flags_names", "")):
        raise ConfigError(
            f"Ceph pool {pool.name} accepts partial stripes (allow_ec_overwrites is set, which cannot be undone):"
            f" make another pool without it, {_wanted(geometry)}"
        )
    if pool.alignment != geometry.stripe_size:
        raise ConfigError(
            f"Ceph pool {pool.name} has chunks (stripe_unit) of {pool.alignment // k} bytes, but the configuration"
            f" says {geometry.chunk_size}: correct the configuration, or make a pool {_wanted(geometry)}"
        )
    return ReadCost(geometry, _read_granularity(cluster, facts, geometry))


def check_landing_pool(cluster: RadosCluster, pool: Pool) -> None:
    """Raise ConfigError unless the pool keeps at least 2 replicas. Raises Transient."""
    facts = _facts(cluster, pool.name)
    if facts.get("type") != REPLICATED:
        raise ConfigError(
            f"Ceph pool {pool.name} is erasure-coded, where a small landing copy takes up to a whole stripe: use a"
            " replicated pool of size 3"
        )
    if int(facts.get("size", 0)) < 2:
        raise ConfigError(
            f"Ceph pool {pool.name} keeps a single copy, so that the loss of one disk loses acknowledged objects: run"
            f" `ceph osd pool set {pool.name} size 3`"
        )


def check_write_limits(cluster: RadosCluster, *, object_bytes: int, write_bytes: int) -> None:
    """Raise ConfigError unless the OSDs accept objects and writes of these sizes, by the limits that the monitors know.
    An OSD with a stricter limit in its own ceph.conf refuses the write. Raises Transient."""
    for option, unit, needed in (
        ("osd_max_object_size", 1, object_bytes),
        ("osd_max_write_size", 1 << 20, write_bytes),
    ):
        allowed = int(cluster.command("config get", who="osd", key=option)) * unit
        if allowed < needed:
            raise ConfigError(
                f"{option} of the Ceph cluster allows {allowed} bytes, but the landing log needs {needed}: run"
                f" `ceph config set osd {option} {-(-needed // unit)}`, or switch the landing log off"
            )


def _facts(cluster: RadosCluster, name: str) -> Mapping[str, Any]:
    for facts in cluster.command("osd pool ls", detail="detail"):
        if facts.get("pool_name") == name:
            return dict(facts)
    raise Transient(f"the monitors do not list Ceph pool {name}, perhaps because it was just created or renamed: retry")


def _read_granularity(cluster: RadosCluster, facts: Mapping[str, Any], geometry: Geometry) -> int:
    """Return the smallest number of bytes that an OSD reads of each chunk that a range touches. It is a whole stripe
    where every read touches all k chunks."""
    if "ec_optimizations" in str(facts.get("flags_names", "")):
        return PAGE
    versions = cluster.command("versions").get("osd", {})
    majors = [int(match[1]) for name in versions if (match := _VERSION.match(name))]
    return geometry.chunk_size if min(majors, default=0) >= PARTIAL_READS_RELEASE_MIN else geometry.stripe_size


def _wanted(geometry: Geometry) -> str:
    return f"k={geometry.k} m={geometry.m} stripe_unit={geometry.chunk_size} (docs/CEPH.md has the commands)"
