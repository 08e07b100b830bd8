"""Checks access to a Ceph cluster for `config check --connect`. A probe object is written, read and removed, and
nothing else changes."""

from __future__ import annotations

import errno
import os

from nos_ec.adapters.rados.client import steps
from nos_ec.adapters.rados.client.cluster import RadosCluster
from nos_ec.adapters.rados.client.failures import port_error
from nos_ec.adapters.rados.client.pool import Pool
from nos_ec.core.errors import ConfigError, Corrupt, NosError

_PROBE = "nos_ec.probe"
SKEW_S_MAX = 0.5
"""The largest allowed difference between the clocks of monitors. Ceph itself warns above 0.05 s."""


def try_access(pool: Pool, namespace: str, size_bytes: int) -> str:
    """Write a probe object of this size, read it back and remove it; if the user may only read, just read. Returns a
    text about what succeeded. Raises ConfigError, Corrupt, NoSpace, Transient; if the probe may still exist, the error
    names it."""
    name, content = f"{_PROBE}.{os.urandom(8).hex()}", os.urandom(size_bytes)
    action = f"trying Ceph pool {pool.name}"
    try:
        pool.write(name, steps.must_be_new(), steps.append(content))
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EACCES):
            _try_reading(pool, action)
            return "the user may only read"
        failed: NosError | None = port_error(action, error)
        if error.errno == errno.ETIMEDOUT:  # it may have been written, or may still be
            failed = _remove(pool, namespace, name, failed)
        assert failed is not None
        raise failed from error
    failed = None
    try:
        if pool.read(name, 0, size_bytes + 1) != content:
            failed = Corrupt(f"{action}: an object reads back differently")
    except OSError as error:
        failed = port_error(action, error)
    failed = _remove(pool, namespace, name, failed)
    if failed is not None:
        raise failed
    return "written, read and removed a probe"


def _remove(pool: Pool, namespace: str, name: str, failed: NosError | None) -> NosError | None:
    """Remove the probe. Returns `failed`, or an error that also names the probe if it may still exist."""
    try:
        pool.write(name, steps.remove())
    except FileNotFoundError:
        return failed
    except OSError as error:
        left = failed or port_error(f"trying Ceph pool {pool.name}: removing a probe", error)
        where = f"-p {pool.name}{f' -N {namespace}' if namespace else ''}"
        return type(left)(f"{left}; afterwards remove the probe, if it exists: rados {where} rm {name}")
    return failed


def _try_reading(pool: Pool, action: str) -> None:
    try:
        pool.size_of(_PROBE)
    except FileNotFoundError:
        return
    except OSError as error:
        raise port_error(action, error) from error


def monitors_apart_s(cluster: RadosCluster) -> float:
    """Return the largest difference between the clocks of the monitors, in seconds. Ceph does not report the time
    itself, so it cannot be compared with this machine's. Raises ConfigError when the difference is too large,
    Transient."""
    skews = (cluster.command("time-sync-status") or {}).get("time_skew_status", {})
    worst = max((abs(float(monitor.get("skew", 0))) for monitor in skews.values()), default=0.0)
    if worst > SKEW_S_MAX:
        raise ConfigError(f"the clocks of the Ceph monitors differ by {worst:.1f} s; synchronise them (NTP)")
    return worst
