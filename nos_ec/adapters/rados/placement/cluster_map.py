"""Converts the monitors' answers about a pool into a ClusterMap. The commands need the cap `mon 'allow r'` but no cap
on the manager: the monitors pass on the manager's figures in `osd df` and `pg dump`.

The fields are the same in 16.2 and 20.2. A missing or unexpected field raises Transient, and the caller keeps its
earlier map.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from nos_ec.adapters.rados.placement.object_hash import RJENKINS
from nos_ec.core.errors import ConfigError, Transient
from nos_ec.core.placement import ClusterMap, Fullness, Group, Osd

_FULLNESS = {"nearfull": Fullness.NEARLY, "backfillfull": Fullness.NEARLY, "full": Fullness.FULL}


def with_osds(earlier: ClusterMap, dump: Any, pool_name: str) -> ClusterMap:
    """Return `earlier` with the OSDs and the pool's settings from `osd dump`. Fill ratios and groups stay unchanged.

    Raises ConfigError when the pool is missing or maps objects by a rule that this program does not know; Transient.
    """
    try:
        pool = _pool(dump, pool_name)
        return replace(
            earlier,
            group_count=int(pool["pg_num"]),
            writable_min=int(pool["min_size"]),
            osds={int(entry["osd"]): _osd(entry, earlier.osds) for entry in dump["osds"]},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _unexpected("osd dump", error) from error


def with_fills(earlier: ClusterMap, df: Any) -> ClusterMap:
    """Return `earlier` with the fill ratios from `osd df`. Raises Transient."""
    try:
        ratios = {int(node["id"]): float(node["utilization"]) / 100 for node in df["nodes"]}
    except (KeyError, TypeError, ValueError) as error:
        raise _unexpected("osd df", error) from error
    osds = {number: replace(osd, fill_ratio=ratios.get(number, 0.0)) for number, osd in earlier.osds.items()}
    return replace(earlier, osds=osds)


def with_groups(earlier: ClusterMap, brief: Any, pool_id: int) -> ClusterMap:
    """Return `earlier` with one pool's groups from `pg dump pgs_brief`. Raises Transient."""
    prefix = f"{pool_id}."
    try:
        groups = {
            int(entry["pgid"].removeprefix(prefix), 16): _group(entry)
            for entry in brief["pg_stats"]
            if entry["pgid"].startswith(prefix)
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _unexpected("pg dump pgs_brief", error) from error
    return replace(earlier, groups=groups)


def osds_down(dump: Any) -> list[int]:
    """Return the numbers of the OSDs that are down according to `osd dump`, in order. Raises Transient."""
    try:
        return sorted(int(entry["osd"]) for entry in dump["osds"] if not entry["up"])
    except (KeyError, TypeError, ValueError) as error:
        raise _unexpected("osd dump", error) from error


def pool_id(dump: Any, pool_name: str) -> int:
    """Return the pool's number. Raises ConfigError, Transient."""
    try:
        return int(_pool(dump, pool_name)["pool"])
    except (KeyError, TypeError, ValueError) as error:
        raise _unexpected("osd dump", error) from error


def _pool(dump: Any, pool_name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] | None = next((pool for pool in dump["pools"] if pool["pool_name"] == pool_name), None)
    if found is None:
        raise ConfigError(f"Ceph pool {pool_name} no longer exists: restore it or correct the configuration")
    if found["object_hash"] != RJENKINS:
        raise ConfigError(
            f"Ceph pool {pool_name} has object_hash {found['object_hash']}, but this program knows only {RJENKINS}"
            " (rjenkins): blocks are placed at random; create another pool to change that"
        )
    return found


def _osd(entry: Mapping[str, Any], earlier: Mapping[int, Osd]) -> Osd:
    known = earlier.get(int(entry["osd"]))
    fullness = max((_FULLNESS.get(word, Fullness.ROOMY) for word in entry["state"]), default=Fullness.ROOMY)
    return Osd(bool(entry["up"]), bool(entry["in"]), known.fill_ratio if known else 0.0, fullness)


def _group(entry: Mapping[str, Any]) -> Group:
    return Group(frozenset(entry["state"].split("+")), tuple(int(osd) for osd in entry["acting"]))


def _unexpected(command: str, error: Exception) -> Transient:
    return Transient(f"Ceph's answer to `{command}` is not as expected ({error!r})")
