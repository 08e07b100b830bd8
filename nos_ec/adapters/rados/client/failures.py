"""Translates librados' error numbers into the errors of the ports."""

from __future__ import annotations

import errno
import os

from nos_ec.core.errors import FREE_SPACE, Blocklisted, ConfigError, Corrupt, NosError, NoSpace, Transient

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
"""The error codes of a full pool, and of a pool over its quota of bytes or objects. An OSD that returns one of them has
written nothing."""
_DENIED = frozenset({errno.EPERM, errno.EACCES})
_BLOCKLISTED = errno.ESHUTDOWN


def port_error(action: str, error: OSError) -> NosError:
    """Return the port's error for an error of librados. Its message starts with `action`.

    Only the caller knows the meaning of ENOENT, EEXIST and ECANCELED, so they are not translated here. If the caller
    did not expect such a code, it counts as Transient, like every unknown one.
    """
    code = error.errno or 0
    if code == errno.ETIMEDOUT:
        return Transient(
            f"{action}: no answer from Ceph in time; look for OSDs that are down and placement groups that are not"
            " active with `ceph health detail`, then try again"
        )
    if code in NO_SPACE:
        return NoSpace(f"{action}: the pool is full or over its quota; {FREE_SPACE}, or add OSDs")
    if code in _DENIED:
        return ConfigError(f"{action}: Ceph denies this to the user; give the user the caps that docs/CEPH.md lists")
    if code == errno.EIO:
        return Corrupt(f"{action}: Ceph cannot read it (EIO): too many chunks are lost or damaged to recover the data")
    if code == errno.EFBIG:
        return ConfigError(f"{action}: larger than osd_max_object_size; raise that in Ceph, or use smaller blocks")
    if code == errno.EMSGSIZE:
        return ConfigError(
            f"{action}: larger than osd_max_write_size; raise that in Ceph, or use smaller stripe groups"
        )
    if code == _BLOCKLISTED:
        return Blocklisted(f"{action}: Ceph has put this process on its blocklist; restart the process")
    return Transient(f"{action}: {os.strerror(code)} (errno {code}); try again")


def rados_error(code: int) -> OSError:
    """Turn a (negative) return code of librados into an exception. Python picks a subclass such as
    FileNotFoundError."""
    return OSError(-code, os.strerror(-code))
